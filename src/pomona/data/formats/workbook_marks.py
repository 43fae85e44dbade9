"""What the library for spreadsheets does not tell of .xlsx and .ods: cells with an error, formulas
without a result, hidden rows and columns.

python-calamine returns empty cells for the first two. Both formats are XML in a zip archive.
"""

import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

from pomona.core.errors import DataError

_WORTH_PARSING = re.compile(rb"""<(?:\w+:)?f[\s/>]|t=["']e["']|hidden=["'](?:1|true)["']""")
_ODS_WORTH_PARSING = re.compile(rb"""value-type="error"|table:visibility=|-columns-spanned=""")
_CELL = re.compile(r"([A-Z]+)(\d+)")
_TRUE = {"1", "true"}
Position = tuple[int, int]


@dataclass
class Marks:
    """Marked cells of a sheet, by row and column from 0.

    Attributes:
        errors: the cells with an error, and what they show, such as #DIV/0!.
        uncomputed: cells whose formula has no result, or the 0 that a library writes in its place.
        unsure: results of formulas that no spreadsheet has computed.
        hidden_rows, hidden_columns: rows and columns that are not shown.
        merged: first and last cell of merged ranges (.ods only).
    """

    errors: dict[Position, str] = field(default_factory=dict)
    uncomputed: list[Position] = field(default_factory=list)
    unsure: list[Position] = field(default_factory=list)
    hidden_rows: set[int] = field(default_factory=set)
    hidden_columns: set[int] = field(default_factory=set)
    merged: list[tuple[Position, Position]] = field(default_factory=list)


def address(row: int, column: int) -> str:
    """Return a cell's address: B3 for row 2 and column 1, both from 0."""
    return f"{letters(column)}{row + 1}"


def letters(column: int) -> str:
    """Return the letters of a column from 0: A for 0, AA for 26."""
    text = ""
    column += 1
    while column:
        column, digit = divmod(column - 1, 26)
        text = chr(65 + digit) + text
    return text


def marks(path: Path, file: IO[bytes], sheet: str) -> Marks | None:
    """Return the marks of a sheet; None for a format in which they cannot be seen.

    Raises DataError for a damaged file.
    """
    file.seek(0)
    if not zipfile.is_zipfile(file):
        return None
    with zipfile.ZipFile(file) as archive:
        names = set(archive.namelist())
        try:
            if "xl/workbook.xml" in names:
                return _xlsx(archive, sheet)
            return _ods(archive, sheet) if "content.xml" in names else None
        except (ElementTree.ParseError, LookupError, ValueError, StopIteration) as fault:
            raise DataError(
                f"{path}: parts of its XML are missing or damaged ({fault}); save it again"
            ) from fault


def _xlsx(archive: zipfile.ZipFile, sheet: str) -> Marks:
    book = _parsed(archive.read("xl/workbook.xml"))
    setup = book.find("{*}calcPr")
    pending = setup is not None and setup.get("fullCalcOnLoad") in _TRUE
    identifier = next(
        value
        for element in book.iterfind("{*}sheets/{*}sheet")
        if element.get("name") == sheet
        for key, value in element.attrib.items()
        if key.endswith("}id")
    )
    relations = _parsed(archive.read("xl/_rels/workbook.xml.rels"))
    target = next(r.get("Target", "") for r in relations if r.get("Id") == identifier)
    content = archive.read(target[1:] if target.startswith("/") else f"xl/{target}")
    sheet_marks = Marks()
    if not _WORTH_PARSING.search(content):
        return sheet_marks
    root = _parsed(content)
    for column in root.iterfind("{*}cols/{*}col"):
        if column.get("hidden") in _TRUE:
            sheet_marks.hidden_columns |= {
                *range(int(column.get("min", 1)) - 1, int(column.get("max", 1)))
            }
    for (row, column_number), cell in _cells(root, sheet_marks):
        value, formula = cell.find("{*}v"), cell.find("{*}f")
        text = (value.text or "") if value is not None else ""
        if cell.get("t") == "e":
            sheet_marks.errors[row, column_number] = text
        elif formula is not None and cell.get("t") != "str" and (not text or pending):
            group = sheet_marks.uncomputed if text in {"", "0"} else sheet_marks.unsure
            group.append((row, column_number))
    return sheet_marks


def _cells(
    root: ElementTree.Element, sheet_marks: Marks
) -> Iterator[tuple[Position, ElementTree.Element]]:
    """Yield the cells of a sheet; rows and cells without an address follow the one before."""
    row = -1
    for line in root.iterfind("{*}sheetData/{*}row"):
        row = int(line.get("r", row + 2)) - 1
        if line.get("hidden") in _TRUE:
            sheet_marks.hidden_rows.add(row)
        column = -1
        for cell in line.iterfind("{*}c"):
            match = _CELL.fullmatch(cell.get("r", ""))
            column = _number(match[1]) if match else column + 1
            yield (row, column), cell


def _number(text: str) -> int:
    """Return the number from 0 of a column by its letters."""
    total = 0
    for letter in text:
        total = total * 26 + ord(letter) - 64
    return total - 1


def _ods(archive: zipfile.ZipFile, sheet: str) -> Marks:
    content = archive.read("content.xml")
    sheet_marks = Marks()
    if not _ODS_WORTH_PARSING.search(content):
        return sheet_marks
    tables = _parsed(content).iterfind(".//{*}table")
    table = next(t for t in tables if _attribute(t, "name") == sheet)
    row = 0
    for line in table.iter():
        if not line.tag.endswith("}table-row"):
            continue
        repeated = int(_attribute(line, "number-rows-repeated") or 1)
        if _attribute(line, "visibility") in {"collapse", "filter"} and repeated < 2**16:
            sheet_marks.hidden_rows |= {*range(row, row + repeated)}
        _ods_cells(line, row, sheet_marks)
        row += repeated
    return sheet_marks


def _ods_cells(line: ElementTree.Element, row: int, sheet_marks: Marks) -> None:
    column = 0
    for cell in line:
        # the type that OpenDocument has is "string" for an error: LibreOffice adds one of its own
        if any(v == "error" for k, v in cell.attrib.items() if k.endswith("}value-type")):
            sheet_marks.errors[row, column] = "".join(cell.itertext())
        width = int(_attribute(cell, "number-columns-spanned") or 1)
        height = int(_attribute(cell, "number-rows-spanned") or 1)
        if width > 1 or height > 1:
            end = (row + height - 1, column + width - 1)
            sheet_marks.merged.append(((row, column), end))
        column += int(_attribute(cell, "number-columns-repeated") or 1)


def _parsed(content: bytes) -> ElementTree.Element:
    """Parse XML; whatever it does ends no more than the child process that reads the file."""
    return ElementTree.fromstring(content)  # noqa: S314


def _attribute(element: ElementTree.Element, name: str) -> str:
    """Return an attribute whatever its namespace; empty if it is missing."""
    return next((v for k, v in element.attrib.items() if k.rpartition("}")[2] == name), "")

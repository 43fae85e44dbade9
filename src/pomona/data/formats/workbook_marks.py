"""What the library for spreadsheets does not return of a workbook of Excel (.xlsx): cells with an
error and formulas without a result, which it reads as empty cells, and hidden rows and columns.
"""

import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO
from xml.etree import ElementTree

from pomona.core.errors import listed

_WORTH_PARSING = re.compile(
    rb"""<(?:\w+:)?f[\s/>]|t=["']e["']|hidden=["'](?:1|true)["']|vertAlign"""
)
_DIGITS = re.compile(r"[-+\d.,\s]+")
_TRUE = {"1", "true"}
_TEXTS = "xl/sharedStrings.xml"


@dataclass(frozen=True)
class Marks:
    """Addresses of marked cells, and numbers of marked rows.

    Attributes:
        errors: cells with an error, and what they show, such as #DIV/0!.
        uncomputed: formulas without a result, or with the 0 that a library writes in its place.
        unsure: results of formulas that no spreadsheet has computed.
        hidden_rows: rows that are not shown.
        hidden_columns: columns that are read and not shown.
        totals: rows with a formula over rows above or below.
        raised: numbers of which some digits, as those of footnotes, are raised or lowered.
    """

    errors: list[str] = field(default_factory=list)
    uncomputed: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)
    hidden_rows: list[str] = field(default_factory=list)
    hidden_columns: list[str] = field(default_factory=list)
    totals: list[str] = field(default_factory=list)
    raised: list[str] = field(default_factory=list)

    def notes(self, problems: list[str]) -> list[str]:
        """Return notes about the marks; adds a problem if formulas have no result."""
        if self.uncomputed:
            problems.append(
                f"{len(self.uncomputed)} formulas have no result ({listed(self.uncomputed)}); open "
                "the file in a spreadsheet, which computes them, and save it"
            )
        remarks = {
            f"{len(self.errors)} cells with an error are gaps": self.errors,
            "results of formulas that no spreadsheet has computed": self.unsure,
            "rows of totals or averages are read as the other rows; delete them": self.totals,
            f"{len(self.hidden_rows)} hidden rows are read": self.hidden_rows,
            f"{len(self.hidden_columns)} hidden columns are read": self.hidden_columns,
            "raised or lowered digits are read as the others (7 with a footnote 2 is 72)": (
                self.raised
            ),
        }
        return [f"{remark}: {listed(cells)}" for remark, cells in remarks.items() if cells]


def read_marks(
    file: IO[bytes], sheet: str, first_row: int, columns: Mapping[int, str]
) -> Marks | None:
    """Return the marks of a sheet; None if it is not .xlsx.

    ``first_row``: the first row of the table. ``columns``: its columns that are read, by their
    number; both counted from 1.
    """
    file.seek(0)
    if not zipfile.is_zipfile(file):
        return None
    with zipfile.ZipFile(file) as archive:
        if "xl/workbook.xml" not in archive.namelist():
            return None
        book = _parsed(archive.read("xl/workbook.xml"))
        content = archive.read(_member(archive, book, sheet))
        texts = archive.read(_TEXTS) if _TEXTS in archive.namelist() else b"<sst/>"
    setup = book.find("{*}calcPr")
    pending = setup is not None and setup.get("fullCalcOnLoad") in _TRUE
    marks = Marks()
    if b"vertAlign" in texts or _WORTH_PARSING.search(content):
        root = _parsed(content)
        marks.hidden_columns.extend(_hidden_columns(root, columns))
        numbered = enumerate(root.iterfind("{*}sheetData/{*}row"), start=1)
        rows = [row for number, row in numbered if int(row.get("r", number)) >= first_row]
        for row in rows:
            _add_row(marks, row, pending)
        if b"vertAlign" in texts + content:
            marks.raised.extend(_raised(rows, [*_parsed(texts)]))
    return marks


def _member(archive: zipfile.ZipFile, book: ElementTree.Element, sheet: str) -> str:
    """Return the name of a sheet's file in the archive."""
    elements = book.iterfind("{*}sheets/{*}sheet")
    attributes = next(element.attrib for element in elements if element.get("name") == sheet)
    identifier = next(value for key, value in attributes.items() if key.endswith("}id"))
    relations = _parsed(archive.read("xl/_rels/workbook.xml.rels"))
    targets = {element.get("Id"): element.get("Target", "") for element in relations}
    target = targets[identifier]
    return target[1:] if target.startswith("/") else f"xl/{target}"


def _hidden_columns(root: ElementTree.Element, columns: Mapping[int, str]) -> Iterator[str]:
    """Yield the names of columns that a sheet does not show."""
    for span in root.iterfind("{*}cols/{*}col"):
        hidden = range(int(span.get("min", 1)), int(span.get("max", 1)) + 1)
        if span.get("hidden") in _TRUE:
            yield from (name for k, name in columns.items() if k in hidden)


def _raised(
    rows: Iterable[ElementTree.Element], texts: Sequence[ElementTree.Element]
) -> Iterator[str]:
    """Yield the cells whose text is of digits, of which some are raised or lowered; ``texts``:
    those that cells have by their number.
    """
    by_number = {str(number): text for number, text in enumerate(texts)}
    for cell in (cell for row in rows for cell in row.iterfind("{*}c")):
        text = by_number.get(cell.findtext("{*}v", "")) if cell.get("t") == "s" else cell
        if text is None or text.find(".//{*}vertAlign[@val!='baseline']") is None:
            continue
        if _DIGITS.fullmatch("".join(text.itertext())):
            yield cell.get("r", "?")


def _add_row(marks: Marks, row: ElementTree.Element, pending: bool) -> None:
    """Add the marks of a row; ``pending``: the next program shall compute all formulas."""
    if row.get("hidden") in _TRUE:
        marks.hidden_rows.append(row.get("r", "?"))
    cells = row.findall("{*}c")
    if any(_is_total(cell.get("r", "?"), cell.findtext("{*}f", "")) for cell in cells):
        marks.totals.append(row.get("r", "?"))
    for cell in cells:
        _add_cell(marks, cell, pending)


def _add_cell(marks: Marks, cell: ElementTree.Element, pending: bool) -> None:
    address, value = cell.get("r", "?"), cell.findtext("{*}v", "")
    if cell.get("t") == "e":
        marks.errors.append(f"{address} ({value})")
    elif cell.find("{*}f") is None or cell.get("t") == "str":
        return
    elif not value or (pending and value == "0"):
        marks.uncomputed.append(address)
    elif pending:
        marks.unsure.append(address)


def _is_total(address: str, formula: str) -> bool:
    """Return whether a cell's formula is over a range of its own column, or the subtotal of a
    table's column. A range of one fixed end, A$2:A3, runs on with the rows, as in their numbers.
    """
    column = address.rstrip("0123456789")
    own_range = rf"(?<![A-Z$!'])\$?{column}(\$?)\d+:\$?{column}\1\d"
    return re.search(rf"SUBTOTAL\(\d+,\w*\[[^\[]|{own_range}", formula) is not None


def _parsed(content: bytes) -> ElementTree.Element:
    """Parse XML; whatever it does ends no more than the child process that reads the file."""
    return ElementTree.fromstring(content)  # noqa: S314

"""What the library for spreadsheets does not return of a workbook of Excel (.xlsx): cells with an
error and formulas without a result, which it reads as empty cells, hidden rows and columns, and
cells that are struck through; and hidden rows of LibreOffice (.ods).

Marks are addresses of cells, numbers of rows or names of columns, by a key of ``REMARKS``, or by
"uncomputed": formulas without a result, or with the 0 that a library writes in its place. Where
errors are not read, their key is not there.
"""

import re
import zipfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import IO
from xml.etree import ElementTree

from pomona.core.errors import listed

REMARKS = {
    "errors": "{} cells with an error are gaps",
    "unsure": "results of formulas that no spreadsheet has computed",
    "totals": "rows of totals or averages are read as the other rows; delete them",
    "hidden rows": "{} hidden rows are read",
    "hidden columns": "{} hidden columns are read",
    "raised": "raised or lowered digits are read as the others (7 with a footnote 2 is 72)",
    "struck": "{} cells that are struck through are read",
    "units": "{} columns show numbers in several units, but are read as stored",
}
_WORTH_PARSING = re.compile(
    rb"""<(?:\w+:)?f[\s/>]|t=["']e["']|hidden=["'](?:1|true)["']|vertAlign"""
)
# a per cent sign, a text, a currency; _% is a blank, and \% or "%" does not multiply by 100
_UNIT = re.compile(r'(?<![_\\])(%)|"([^"]+)"|\[\$([^-\]]+)')
_DATE, _NO_UNIT = re.compile("[dmyhs]", re.IGNORECASE), " %\xa0\u202f+-.,:()"
_PERCENT = {"9": "0%", "10": "0.00%"}  # numbers of formats that styles do not list
_DIGITS = re.compile(r"[-+\d.,\s]+")
_TRUE, _FALSE = {"1", "true"}, {"0", "false"}
_BOOK, _TEXTS, _STYLES = "xl/workbook.xml", "xl/sharedStrings.xml", "xl/styles.xml"
_OPEN_DOCUMENT = "content.xml"
_TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
Marks = dict[str, list[str]]


def remarks(marks: Marks, problems: list[str]) -> list[str]:
    """Return notes about the marks; adds a problem if formulas have no result."""
    if uncomputed := marks.get("uncomputed"):
        problems.append(
            f"{len(uncomputed)} formulas have no result ({listed(uncomputed)}); open the file in a "
            "spreadsheet, which computes them, and save it"
        )
    pairs = ((text, marks.get(key)) for key, text in REMARKS.items())
    return [f"{text.format(len(cells))}: {listed(cells)}" for text, cells in pairs if cells]


def read_marks(file: IO[bytes], sheet: str, first_row: int, columns: Mapping[int, str]) -> Marks:
    """Return the marks of a sheet; none of formats but .xlsx and .ods.

    ``first_row``: the first row of the table. ``columns``: its columns that are read, by their
    number; both counted from 1.
    """
    file.seek(0)
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            if _BOOK in archive.namelist():
                return _of_excel(archive, sheet, first_row, columns)
            if _OPEN_DOCUMENT in archive.namelist():
                return {"hidden rows": _hidden_rows(archive.read(_OPEN_DOCUMENT), sheet, first_row)}
    return {}


def _of_excel(
    archive: zipfile.ZipFile, sheet: str, first_row: int, columns: Mapping[int, str]
) -> Marks:
    """Return the marks of a sheet of Excel."""
    book = _parsed(archive.read(_BOOK))
    content = archive.read(_member(archive, book, sheet))
    texts, styles = _content(archive, _TEXTS), _content(archive, _STYLES)
    setup = book.find("{*}calcPr")
    pending = setup is not None and setup.get("fullCalcOnLoad") in _TRUE
    marks = defaultdict[str, list[str]](list, errors=[])
    struck, units = _struck_styles(_parsed(styles)), _units(_parsed(styles))
    may_differ = len({*units.values()}) > 1 or "%" in units.values()
    if struck or may_differ or b"vertAlign" in texts or _WORTH_PARSING.search(content):
        root = _parsed(content)
        marks["hidden columns"] += _hidden_columns(root, columns)
        numbered = enumerate(root.iterfind("{*}sheetData/{*}row"), start=1)
        rows = [row for number, row in numbered if int(row.get("r", number)) >= first_row]
        for row in rows:
            _add_row(marks, row, pending, struck)
        marks["units"] += _several_units(rows, columns.values(), units)
        if b"vertAlign" in texts + content:
            marks["raised"] += _raised(rows, [*_parsed(texts)])
    return marks


def _content(archive: zipfile.ZipFile, member: str) -> bytes:
    """Return the content of a file in the archive; an empty element if there is none."""
    return archive.read(member) if member in archive.namelist() else b"<none/>"


def _struck_styles(styles: ElementTree.Element) -> set[str]:
    """Return the numbers of the styles of cells whose font is struck through."""
    strikes = [font.find("{*}strike") for font in styles.iterfind("{*}fonts/{*}font")]
    fonts = {str(k) for k, x in enumerate(strikes) if x is not None and x.get("val") not in _FALSE}
    cell_styles = enumerate(styles.iterfind("{*}cellXfs/{*}xf"))
    return {str(k) for k, style in cell_styles if style.get("fontId") in fonts}


def _units(styles: ElementTree.Element) -> dict[str, str]:
    """Return the units that styles of cells show behind or before a number, by their numbers."""
    listed_formats = styles.iterfind("{*}numFmts/{*}numFmt")
    codes = _PERCENT | {x.get("numFmtId", ""): x.get("formatCode", "") for x in listed_formats}
    units = dict[str, str]()
    for k, style in enumerate(styles.iterfind("{*}cellXfs/{*}xf")):
        code = codes.get(style.get("numFmtId", ""), "").split(";")[0]
        parts = _UNIT.findall(code)
        symbols = [sign or (text + currency).strip(_NO_UNIT) for sign, text, currency in parts]
        if any(symbols) and not _DATE.search(re.sub(r'"[^"]*"|\[.*?\]', "", code)):
            units[str(k)] = " ".join(filter(None, symbols))
    return units


def _several_units(
    rows: Iterable[ElementTree.Element], columns: Collection[str], units: Mapping[str, str]
) -> Iterator[str]:
    """Yield the columns whose numbers have several units, or some beyond 1 none beside a per cent
    sign; others often have their unit in the first row alone.
    """
    examples = defaultdict[str, dict[str, str]](dict)
    for address, style, value in _numbers(rows):
        unit = units.get(style, "no unit" * (abs(value) > 1))
        examples[address.rstrip("0123456789")].setdefault(unit, address)
    for addresses in map(examples.__getitem__, columns):
        symbols = {*addresses} - {""}
        if len(symbols - {"no unit"}) > 1 or symbols == {"%", "no unit"}:
            yield " and ".join(f"{unit} in {addresses[unit]}" for unit in addresses if unit)


def _numbers(rows: Iterable[ElementTree.Element]) -> Iterator[tuple[str, str, float]]:
    """Yield the cells of numbers and dates: address, number of the style, and value."""
    for cell in (cell for row in rows for cell in row if cell.get("t", "n") == "n"):
        if value := cell.findtext("{*}v"):
            yield cell.get("r", ""), cell.get("s", "0"), float(value)


def _hidden_rows(content: bytes, sheet: str, first_row: int) -> list[str]:
    """Return the rows of a table that a sheet of LibreOffice hides, as a filter does."""
    if b"table:visibility" not in content:
        return []
    tables = _parsed(content).iter(f"{_TABLE}table")
    table = next(table for table in tables if table.get(f"{_TABLE}name") == sheet)
    hidden, number = list[int](), 1
    for row in table.iter(f"{_TABLE}table-row"):
        following = number + int(row.get(f"{_TABLE}number-rows-repeated", 1))
        is_filled = any(key.endswith("}value-type") for cell in row for key in cell.attrib)
        if is_filled and row.get(f"{_TABLE}visibility", "visible") != "visible":
            hidden += range(max(number, first_row), following)
        number = following
    return [*map(str, hidden)]


def _member(archive: zipfile.ZipFile, book: ElementTree.Element, sheet: str) -> str:
    """Return the name of a sheet's file in the archive."""
    elements = book.iterfind("{*}sheets/{*}sheet")
    attributes = next(element.attrib for element in elements if element.get("name") == sheet)
    identifier = next(value for key, value in attributes.items() if key.endswith("}id"))
    relations = _parsed(archive.read("xl/_rels/workbook.xml.rels"))
    target = next(x.get("Target", "") for x in relations if x.get("Id") == identifier)
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


def _add_row(
    marks: Marks, row: ElementTree.Element, pending: bool, struck: Collection[str]
) -> None:
    """Add the marks of a row; ``pending``: the next program shall compute all formulas;
    ``struck``: the styles of cells that are struck through.
    """
    number, cells = row.get("r", "?"), row.findall("{*}c")
    marks["hidden rows"] += [number] * (row.get("hidden") in _TRUE)
    is_total = any(_is_total(cell.get("r", "?"), cell.findtext("{*}f", "")) for cell in cells)
    marks["totals"] += [number] * is_total
    for cell in cells:
        _add_cell(marks, cell, pending)
        is_struck = cell.get("s") in struck and len(cell) > 0
        marks["struck"] += [cell.get("r", "?")] * is_struck


def _add_cell(marks: Marks, cell: ElementTree.Element, pending: bool) -> None:
    address, value = cell.get("r", "?"), cell.findtext("{*}v", "")
    if cell.get("t") == "e":
        marks["errors"].append(f"{address} ({value})")
    elif cell.find("{*}f") is None or cell.get("t") == "str":
        return
    elif not value or (pending and value == "0"):
        marks["uncomputed"].append(address)
    elif pending:
        marks["unsure"].append(address)


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

"""Spreadsheets of Excel and LibreOffice (.xlsx, .xlsm, .xlsb, .xls, .ods), by python-calamine.

All cells become texts, as in CSV: one column may hold numbers, dates and remarks. Which cells are
the table is decided here: the sheet, the row of names, what is merged, empty or hidden.
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NamedTuple
from unicodedata import normalize

from pomona.core.errors import DataError, listed, near
from pomona.core.files import opened
from pomona.data.formats.arrow import text_array
from pomona.data.formats.columns import Columns
from pomona.data.formats.sheet_cells import filled, is_clock, seconds, text
from pomona.data.formats.sheet_table import (
    Ranges,
    Rows,
    header_names,
    marked,
    named_columns,
    refuse_uncomputed,
    repeat_merged,
    trim,
)
from pomona.data.formats.workbook_marks import Marks, marks
from pomona.data.settings import MARKS, DecimalMark, SpreadsheetForm


class Sheet(NamedTuple):
    """A sheet's cells from A1, its merged ranges, its marks if they can be seen, and notes."""

    rows: Rows
    merged: Ranges
    marks: Marks | None
    notes: tuple[str, ...]


def read(path: Path, settings: object) -> Columns:
    """Read the table of a spreadsheet.

    Raises DataError if it cannot be read, several sheets may be meant, or the row of names is
    unclear; cells are named as the spreadsheet names them.
    """
    options = settings if isinstance(settings, SpreadsheetForm) else None
    mark = settings.decimal if isinstance(settings, DecimalMark) else None
    decimal = MARKS[mark or "point"]
    with opened(path) as file:
        sheet = _sheet(path, file, options.sheet if options else None)
    rows, notes = sheet.rows, list(sheet.notes)
    top = next((k for k, row in enumerate(rows) if any(map(filled, row))), None)
    if top is None:
        raise DataError(f"{path} has no cells with a value; at least one row is needed")
    if options and options.header_row:
        top = options.header_row - 1
        if top >= len(rows):
            raise DataError(
                f"{path} has {len(rows)} rows, so none after data.header_row = {options.header_row}"
            )
    refuse_uncomputed(path, sheet.marks, top)
    names = header_names(path, rows, top, sheet.merged)
    notes += repeat_merged(path, rows, top, sheet.merged)
    notes += trim(rows, top)
    body = rows[top + 1 :]
    columns, remarks = named_columns(path, names, rows, top)
    notes += remarks
    notes += marked(path, sheet.marks, top, len(body), columns)
    arrays, clocks = [], []
    for column in columns:
        cells = [row[column] for row in body]
        if is_clock(cells):
            clocks.append(names[column])
            cells = [cell if cell == "" else seconds(cell) for cell in cells]
        arrays.append(text_array([text(cell, decimal) for cell in cells]))
    if clocks:
        notes.append(f"times and durations are read in seconds: {listed(clocks, 8)}")
    return Columns(
        tuple(names[column] for column in columns),
        tuple(arrays),
        "row",
        top + 2,
        notes=tuple(notes),
    )


def _sheet(path: Path, file: IO[bytes], sheet_name: str | None) -> Sheet:
    """Return the sheet of that name, or the only one that is neither empty nor hidden."""
    calamine = import_module("python_calamine")
    try:
        with calamine.load_workbook(file) as book:
            tables = [
                sheet
                for sheet in book.sheets_metadata
                if sheet.typ == calamine.SheetTypeEnum.WorkSheet
            ]
            names = [sheet.name for sheet in tables]
            if sheet_name is None:
                hidden = calamine.SheetVisibleEnum.Visible
                visible = [sheet.name for sheet in tables if sheet.visible == hidden]
                name = _only_filled(path, visible, book)
            else:
                name = _sheet_called(path, names, sheet_name)
            content = book.get_sheet_by_name(name)
            rows = content.to_python(skip_empty_area=False)
            merged = content.merged_cell_ranges or []
        sheet_marks = marks(path, file, name)
    except calamine.CalamineError as fault:
        if _has_password(path, calamine):
            raise DataError(f"{path} has a password; save it without one") from None
        raise DataError(_unreadable(path, file, str(fault))) from fault
    if sheet_marks and not merged:
        merged = sheet_marks.merged
    unread = [sheet for sheet in names if sheet != name]
    notes = [f"sheet {name} is read, without {listed(unread)}"] if unread else []
    if sheet_marks is None and any("" in row for row in rows):
        notes.append(
            f"cells with an error (#N/A) look like empty cells in {path.suffix}: both are gaps; "
            "save as .xlsx or .ods to distinguish them"
        )
    return Sheet(rows, merged, sheet_marks, tuple(notes))


def _has_password(path: Path, calamine: Any) -> bool:
    """Return whether a file is encrypted, which the library says of files by name alone."""
    try:
        calamine.load_workbook(str(path)).close()
    except calamine.PasswordError:
        return True
    except calamine.CalamineError:
        pass
    return False


def _only_filled(path: Path, names: Sequence[str], book: Any) -> str:
    with_values = [
        name
        for name in names
        if any(filled(cell) for row in book.get_sheet_by_name(name).to_python() for cell in row)
    ]
    if len(with_values) > 1:
        raise DataError(
            f"{path} has {len(with_values)} sheets ({listed(with_values)}); set data.sheet to one"
        )
    if not with_values:
        raise DataError(
            f"{path} has no visible sheet with values; set data.sheet, or save it again"
        )
    return with_values[0]


def _sheet_called(path: Path, names: Sequence[str], sheet_name: str) -> str:
    for name in names:
        if normalize("NFC", name) == normalize("NFC", sheet_name):
            return name
    raise DataError(f"{path} has no sheet {sheet_name!r} (data.sheet); {near(sheet_name, names)}")


def _unreadable(path: Path, file: IO[bytes], reason: str) -> str:
    """Return the message for a file that is not a spreadsheet."""
    file.seek(0)
    start = file.read(512).lstrip(b"\xef\xbb\xbf \r\n\t")
    if start[:1] == b"<":
        return (
            f"{path} is a web page or XML with the suffix {path.suffix}; save it as .xlsx or .csv"
        )
    if start and b"\0" not in start:
        return f"{path} is text with the suffix {path.suffix}; give it the suffix .csv"
    return f"{path}: not a readable spreadsheet ({reason}); check the file, or save it again"

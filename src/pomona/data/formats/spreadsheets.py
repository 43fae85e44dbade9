"""Spreadsheets of Excel and LibreOffice (.xlsx, .xlsm, .xlsb, .xls, .ods), by python-calamine.

All cells become texts, as in CSV: one column may hold numbers, dates and remarks. Which cells are
the table is decided here: the sheet, the row of names, what is merged, empty or hidden.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from importlib import import_module
from pathlib import Path
from typing import IO, Any
from unicodedata import normalize

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pomona.core.bounds import LARGEST
from pomona.core.errors import DataError, listed, refuse, suggestion
from pomona.core.files import opened
from pomona.data.array_file import workbook
from pomona.data.formats.columns import Columns, text_array
from pomona.data.formats.workbook_marks import read_marks, remarks
from pomona.data.table_settings import MARKS, DecimalMark, SpreadsheetForm

EXACT = 2**53  # doubles hold every whole number below it
DIGITS = 1e15  # the first number of more digits than spreadsheets keep
HEADER_ROWS = 5  # in which the names of the columns are looked for
_DURATION = re.compile(r"PT(\d+)H(\d+)M(\d+(?:[.,]\d+)?)S")  # of LibreOffice
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
Cell = Any  # None (empty), str, bool, int, float, date, datetime, time, timedelta
Range = tuple[tuple[int, int], tuple[int, int]]  # row and column of the first and last cell, from 0


@dataclass(frozen=True)
class Sheet:
    """A sheet.

    Attributes:
        name: of the sheet.
        unread: the names of the others.
        cells: (rows, columns) from A1.
        merged: ranges of merged cells; None if the library does not read them.
    """

    name: str
    unread: Sequence[str]
    cells: NDArray[np.object_]
    merged: Sequence[Range] | None


def read(path: Path, settings: object) -> Columns:
    """Read the table of a spreadsheet.

    Raises DataError if it cannot be read, several sheets may be meant, or the row of names is
    unclear; cells are named as the spreadsheet names them.
    """
    options = settings if isinstance(settings, SpreadsheetForm) else SpreadsheetForm()
    decimal = settings.decimal if isinstance(settings, DecimalMark) else None
    book, sheet_name = workbook(path)
    with opened(book) as file:
        sheet = _sheet(path, file, sheet_name or options.sheet)
        top, problems = _header_row(path, sheet, options.header_row)
        names = _header(sheet, top)[0]
        letters = {k + 1: _letters(k) for k, name in enumerate(names) if name}
        marks = read_marks(file, sheet.name, top + 2, letters)
    notes = [f"sheet {sheet.name} is read, without {listed(sheet.unread)}"] * bool(sheet.unread)
    notes += _repeat_merged(sheet, top, problems)
    notes += [*remarks(marks, problems), *([] if "errors" in marks else _lost(path, sheet))]
    refuse(path, problems)
    if unnamed := [_letters(k) for k, name in enumerate(names) if not name]:
        notes.append(
            f"empty columns, and those that only number the rows, are left out: {listed(unnamed)}"
        )
    rows, notes_on_rows = _rows(sheet, top)
    cells, names = rows[:, np.not_equal(names, "")], [*filter(None, names)]
    arrays, times = _arrays(names, cells, MARKS[decimal or "point"])
    notes += _rounding_notes(names, cells)
    if times:
        notes.append(f"times and durations are read in seconds: {listed(times, 8)}")
    return Columns(tuple(names), tuple(arrays), first_row=top + 2, notes=(*notes, *notes_on_rows))


def _rounding_notes(names: Sequence[str], cells: NDArray[np.object_]) -> Iterator[str]:
    """Report columns whose numbers may be rounded identifiers."""
    columns = zip(names, cells.T, strict=True)
    if rounded := [name for name, column in columns if _is_rounded(column)]:
        yield (
            "spreadsheets round numbers of 16 digits and more, so that identifiers may be equal: "
            f"{listed(rounded, 8)}; store identifiers as text"
        )


def _arrays(
    names: Sequence[str], cells: NDArray[np.object_], mark: str
) -> tuple[list[pa.Array], list[str]]:
    """Return each column as texts with a decimal mark, and the names of those that are times, in
    seconds.
    """
    arrays, times = [], []
    for name, column in zip(names, cells.T, strict=True):
        seconds = _in_seconds(column)
        if seconds is not None:
            times.append(name)
        arrays.append(text_array(_text(cell, mark) for cell in seconds or column))
    return arrays, times


def _sheet(path: Path, file: IO[bytes], sheet_name: str | None) -> Sheet:
    """Return the sheet of that name, or the only one that is neither empty nor hidden."""
    calamine = import_module("python_calamine")
    try:
        with calamine.load_workbook(file) as book:
            names = [
                sheet.name
                for sheet in book.sheets_metadata
                if sheet.typ == calamine.SheetTypeEnum.WorkSheet
                and (sheet_name or sheet.visible == calamine.SheetVisibleEnum.Visible)
            ]
            sheets = {name: book.get_sheet_by_name(name) for name in names}
            cells = {name: _cells(sheet) for name, sheet in sheets.items()}
            every = book.sheet_names
    except calamine.CalamineError as fault:
        raise DataError(_unreadable(path, file, fault)) from fault
    filled = [name for name in names if _has_values(cells[name]).any()]
    name = _sheet_called(path, names, sheet_name) if sheet_name else _only_sheet(path, filled)
    unread = [sheet_name for sheet_name in every if sheet_name != name]
    return Sheet(name, unread, cells[name], sheets[name].merged_cell_ranges)


def _sheet_called(path: Path, names: Sequence[str], sheet_name: str) -> str:
    """Return the name of a sheet as the file has it. Raises DataError if there is none."""
    for name in names:
        if normalize("NFC", name) == normalize("NFC", sheet_name):
            return name
    raise DataError(
        f"{path} has no sheet {sheet_name!r} (data.sheet); {suggestion(sheet_name, names)}"
    )


def _only_sheet(path: Path, names: Sequence[str]) -> str:
    """Return the only name. Raises DataError unless there is one."""
    if len(names) == 1:
        return names[0]
    raise DataError(
        f"{path} has {len(names)} visible sheets with values ({listed(names)}); set data.sheet to "
        f"one, or give each client its own (train = '{path.name}#SHEET')"
    )


def _cells(sheet: Any) -> NDArray[np.object_]:
    """Return the cells of a sheet, None for those that are empty or blank."""
    rows = [
        [None if isinstance(cell, str) and not cell.strip() else cell for cell in row]
        for row in sheet.to_python(skip_empty_area=False)
    ]
    return np.array(rows, object).reshape(len(rows), -1 if rows else 0)


def _unreadable(path: Path, file: IO[bytes], fault: Exception) -> str:
    """Return the message for a file that is not a spreadsheet."""
    file.seek(0)
    if _ENCRYPTED in file.read():
        return f"{path} has a password; save it without one"
    return (
        f"{path}: not a readable spreadsheet ({fault}); save it again, or give it the suffix .csv "
        "if it is text (.xls may also be a web page)"
    )


def _header_row(path: Path, sheet: Sheet, header_row: int | None) -> tuple[int, list[str]]:
    """Return the number from 0 of the row of names, and what must be done if it has none.

    Raises DataError for a sheet without values there.
    """
    top = header_row - 1 if header_row else 0
    rows = (top + np.flatnonzero(_has_values(sheet.cells[top:]))).tolist()
    if not rows:
        raise DataError(f"{path} has no cells with values from row {top + 1} on; add some")
    top = top if header_row else rows[0]
    tried: list[str] = []
    for row in [top, *(row for row in rows if top < row <= top + HEADER_ROWS)]:
        if row > top and not _is_text(sheet.cells[row]):
            break  # a row of the table
        problems = _header(sheet, row)[1]
        if not problems:
            remedy = f"row {row + 1} names the columns; set data.header_row = {row + 1}"
            return row, [f"{remedy} ({'; '.join(tried)})"] if tried else []
        tried.append(f"row {row + 1}: {', '.join(problems)}")
    remedy = "write one name for each column into one row, and set data.header_row to it"
    return top, [f"no row names all columns ({'; '.join(tried)}); {remedy}"]


def _header(sheet: Sheet, top: int) -> tuple[list[str], list[str]]:
    """Return the names of the columns that a row has, and what is wrong with it.

    A name above the row counts where both cells are merged.
    """
    cells, problems = _merged_header(sheet, top)
    if not any(isinstance(cell, str) for cell in cells):
        problems.append("numbers in place of names")
    names = [normalize("NFC", (_text(cell) or "").strip()) for cell in cells]
    valued = _has_values(sheet.cells[top + 1 :].T)
    valued[0] &= not _counts_rows(sheet, top)
    unnamed = [_letters(k) for k in np.flatnonzero(valued & np.equal(names, "")).tolist()]
    if unnamed:
        problems.append(f"no name for column {listed(unnamed)}, which has values")
    return names, problems


def _merged_header(sheet: Sheet, top: int) -> tuple[NDArray[np.object_], list[str]]:
    """Return the cells of a row of names, and which of them are merged otherwise."""
    cells, problems = sheet.cells[top].copy(), []
    for (first_row, first), (last_row, last) in sheet.merged or ():
        if first == last and last_row == top:
            cells[first] = sheet.cells[first_row, first]
        elif first_row <= top <= last_row:
            problems.append(f"{_address(first_row, first)}:{_address(last_row, last)} are merged")
    return cells, problems


def _counts_rows(sheet: Sheet, top: int) -> bool:
    """Return whether column A counts 0, 1, 2, ... or 1, 2, 3, ..., as row names of a program, and
    has no name in any row.
    """
    cells = sheet.cells[top + 1 :, 0].tolist()
    count = [*range(len(cells))]
    return cells in (count, [k + 1 for k in count]) and not _has_values(sheet.cells[:top, 0]).any()


def _repeat_merged(sheet: Sheet, top: int, problems: list[str]) -> list[str]:
    """Write the value of cells that are merged downwards into each of their rows; returns notes,
    and adds a problem for cells that are merged across columns.
    """
    repeated = []
    for (first_row, first), (last_row, last) in sheet.merged or ():
        area = f"{_address(first_row, first)}:{_address(last_row, last)}"
        if first_row > top and first != last:
            problems.append(f"{area} are merged across columns; give each cell its own value")
        elif first_row > top:
            repeated.append(area)
            sheet.cells[first_row : last_row + 1, first] = sheet.cells[first_row, first]
    remark = f"the value of merged cells is read for each of their rows: {listed(repeated)}"
    return [remark] if repeated else []


def _rows(sheet: Sheet, top: int) -> tuple[NDArray[np.object_], list[str]]:
    """Return the rows of the table, and notes about empty ones: those at the end are left out."""
    rows = sheet.cells[top + 1 :]
    filled = np.flatnonzero(_has_values(rows))
    count = int(filled[-1]) + 1 if len(filled) else 0
    notes = []
    if count < len(rows):
        notes.append(f"{len(rows) - count} empty rows at the end are left out")
    if empty := [str(top + 2 + k) for k in np.setdiff1d(np.arange(count), filled).tolist()]:
        notes.append(f"{len(empty)} rows are empty, and are read as gaps: rows {listed(empty)}")
    return rows[:count], notes


def _lost(path: Path, sheet: Sheet) -> list[str]:
    """Return a note about what cannot be seen in a format."""
    if all(cell is not None for cell in sheet.cells.flat):
        return []
    content = "cells with an error (#N/A)" + " and merged cells" * (sheet.merged is None)
    return [
        f"{content} look like empty cells in {path.suffix}: all are gaps; save as .xlsx to tell"
    ]


def _has_values(cells: NDArray[np.object_]) -> NDArray[np.bool_]:
    """Return which rows (n,) have a value."""
    filled: NDArray[np.bool_] = np.array(cells != None, bool)  # noqa: E711 - of each cell
    return filled if filled.ndim == 1 else np.any(filled, axis=1)


def _is_text(cells: NDArray[np.object_]) -> bool:
    """Return whether all cells with a value are texts."""
    return all(isinstance(cell, str) for cell in cells if cell is not None)


def _address(row: int, column: int) -> str:
    """Return a cell's address: B3 for row 2 and column 1, both from 0."""
    return f"{_letters(column)}{row + 1}"


def _letters(column: int) -> str:
    """Return the letters of a column from 0: A for 0, AA for 26."""
    letters = ""
    while column >= 0:
        letters = chr(65 + column % 26) + letters
        column = column // 26 - 1
    return letters


def _text(cell: Cell, decimal: str = ".") -> str | None:
    """Return a cell as text: 3 for 3.0, ISO dates, True and False; None if it is empty.

    Numbers get the decimal mark that the texts next to them have.
    """
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < EXACT:
        cell = int(cell)
    if isinstance(cell, date | time):
        return cell.isoformat()
    if isinstance(cell, float):
        return str(cell).replace(".", decimal)
    return None if cell is None else str(cell)


def _is_rounded(cells: NDArray[np.object_]) -> bool:
    """Return whether a column is of whole numbers, some of more digits than a spreadsheet keeps."""
    numbers = [cell for cell in cells if isinstance(cell, float)]
    return any(DIGITS <= abs(number) < LARGEST for number in numbers) and all(
        map(float.is_integer, numbers)
    )


def _in_seconds(cells: NDArray[np.object_]) -> list[float | None] | None:
    """Return cells in seconds; None if they are not times of day or durations."""
    seconds = [_seconds(cell) for cell in cells]
    filled = _has_values(cells)
    are_times = filled.any() and filled.tolist() == [number is not None for number in seconds]
    return seconds if are_times else None


def _seconds(cell: Cell) -> float | None:
    """Return a time of day or a duration in seconds; None for anything else."""
    if isinstance(cell, time):
        cell = datetime.combine(date.min, cell) - datetime.min
    if isinstance(cell, timedelta):
        return cell.total_seconds()
    match = _DURATION.fullmatch(cell) if isinstance(cell, str) else None
    if not match:
        return None
    hours, minutes, seconds = (float(number.replace(",", ".")) for number in match.groups())
    return hours * 3600 + minutes * 60 + seconds

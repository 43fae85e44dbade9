"""Spreadsheets of Excel and LibreOffice (.xlsx, .xlsm, .xlsb, .xls, .ods), by python-calamine.

All cells become texts, as in CSV: one column may hold numbers, dates and remarks. Which cells are
the table is decided here: the sheet, the row of names, what is merged, empty or hidden.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from importlib import import_module
from pathlib import Path
from typing import IO, Any
from unicodedata import normalize

from pomona.core.errors import DataError, listed, near, refuse
from pomona.core.files import opened
from pomona.data.formats.columns import Columns, text_array
from pomona.data.formats.workbook_marks import Marks, read_marks
from pomona.data.settings import MARKS, DecimalMark, SpreadsheetForm

EXACT = 2**53  # doubles hold every whole number below it
HEADER_ROWS = 5  # in which the names of the columns are looked for
_DURATION = re.compile(r"PT(\d+)H(\d+)M(\d+(?:[.,]\d+)?)S")  # of LibreOffice
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
Cell = Any  # "" (empty), str, bool, int, float, date, datetime, time, timedelta
Range = tuple[tuple[int, int], tuple[int, int]]  # row and column of the first and last cell, from 0


@dataclass(frozen=True)
class Sheet:
    """A sheet.

    Attributes:
        name: of the sheet.
        unread: the names of the others.
        rows: cells from A1, as many in each row.
        merged: ranges of merged cells; None if the library does not read them.
    """

    name: str
    unread: Sequence[str]
    rows: list[list[Cell]]
    merged: Sequence[Range] | None


def read(path: Path, settings: object) -> Columns:
    """Read the table of a spreadsheet.

    Raises DataError if it cannot be read, several sheets may be meant, or the row of names is
    unclear; cells are named as the spreadsheet names them.
    """
    options = settings if isinstance(settings, SpreadsheetForm) else SpreadsheetForm()
    decimal = settings.decimal if isinstance(settings, DecimalMark) else None
    with opened(path) as file:
        sheet = _sheet(path, file, options.sheet)
        top, problems = _header_row(path, sheet, options.header_row)
        marks = read_marks(file, sheet.name, top + 2)
    notes, merged_problems = _repeat_merged(sheet, top)
    if marks and marks.uncomputed:
        problems.append(
            f"{len(marks.uncomputed)} formulas have no result ({listed(marks.uncomputed)}), since "
            "the program that wrote them does not compute; open and save it in a spreadsheet"
        )
    refuse(path, problems + merged_problems)
    names, _ = _header(sheet, top)
    body = sheet.rows[top + 1 :]
    columns = [k for k, name in enumerate(names) if name]
    notes += _without_empty_rows(body, top + 2)
    notes += _left_out(path, sheet, names, marks)
    arrays, times = [], []
    for column in columns:
        cells = [row[column] for row in body]
        if seconds := _in_seconds(cells):
            times.append(names[column])
        arrays.append(text_array([_text(c, MARKS[decimal or "point"]) for c in seconds or cells]))
    if times:
        notes.append(f"times and durations are read in seconds: {listed(times, 8)}")
    return Columns(
        tuple(names[column] for column in columns),
        tuple(arrays),
        first_row=top + 2,
        notes=tuple(notes),
    )


def _sheet(path: Path, file: IO[bytes], sheet_name: str | None) -> Sheet:
    """Return the sheet of that name, or the only one that is neither empty nor hidden."""
    calamine = import_module("python_calamine")
    try:
        with calamine.load_workbook(file) as book:
            sheets = {
                sheet.name: book.get_sheet_by_name(sheet.name)
                for sheet in book.sheets_metadata
                if sheet.typ == calamine.SheetTypeEnum.WorkSheet
                and (sheet_name or sheet.visible == calamine.SheetVisibleEnum.Visible)
            }
            rows = {name: sheet.to_python(skip_empty_area=False) for name, sheet in sheets.items()}
            unread = book.sheet_names
    except calamine.CalamineError as fault:
        file.seek(0)
        if _ENCRYPTED in file.read():
            raise DataError(f"{path} has a password; save it without one") from None
        raise DataError(
            f"{path}: not a readable spreadsheet ({fault}); save it again, or give it the suffix "
            ".csv if it is text (.xls may also be a web page)"
        ) from fault
    if sheet_name:
        chosen = [name for name in sheets if normalize("NFC", name) == normalize("NFC", sheet_name)]
    else:
        chosen = [name for name in sheets if any(map(_any_filled, rows[name]))]
    if sheet_name and not chosen:
        raise DataError(
            f"{path} has no sheet {sheet_name!r} (data.sheet); {near(sheet_name, sheets)}"
        )
    if len(chosen) != 1:
        raise DataError(
            f"{path} has {len(chosen)} visible sheets with values ({listed(chosen)}); set "
            "data.sheet to one"
        )
    name = chosen[0]
    unread.remove(name)
    return Sheet(name, unread, rows[name], sheets[name].merged_cell_ranges)


def _header_row(path: Path, sheet: Sheet, header_row: int | None) -> tuple[int, list[str]]:
    """Return the number from 0 of the row of names, and what must be done if it has none.

    Raises DataError for a sheet without it.
    """
    rows = [k for k, row in enumerate(sheet.rows) if _any_filled(row)]
    if not rows or (header_row or 1) > len(sheet.rows):
        at_row = f" in or below row {header_row} (data.header_row)" if header_row else ""
        raise DataError(f"{path} has no cells with values{at_row}; at least one row is needed")
    top = header_row - 1 if header_row else rows[0]
    problems = _header(sheet, top)[1]
    if not problems:
        return top, []
    named = f"row {top + 1}: {', '.join(problems)}"
    for row in (row for row in rows if top < row <= top + HEADER_ROWS):
        if any(not isinstance(cell, str) for cell in sheet.rows[row]):
            break
        problems = _header(sheet, row)[1]
        if not problems:
            return row, [
                f"row {row + 1} names the columns; set data.header_row = {row + 1} ({named})"
            ]
        named += f"; row {row + 1}: {', '.join(problems)}"
    remedy = "write one name for each column into one row, and set data.header_row to it"
    return top, [f"no row names all columns ({named}); {remedy}"]


def _header(sheet: Sheet, top: int) -> tuple[list[str], list[str]]:
    """Return the names of the columns that a row has, and what is wrong with it.

    A name above the row counts where both cells are merged.
    """
    cells, body, problems = list(sheet.rows[top]), sheet.rows[top + 1 :], []
    for (first_row, first), (last_row, last) in sheet.merged or ():
        if first == last and last_row == top:
            cells[first] = sheet.rows[first_row][first]
        elif first_row <= top <= last_row:
            problems.append(f"{_address(first_row, first)}:{_address(last_row, last)} are merged")
    names = [normalize("NFC", (_text(cell) or "").strip()) for cell in cells]
    if not any(isinstance(cell, str) and _filled(cell) for cell in cells):
        problems.append("numbers in place of names")
    unnamed = [
        k for k, name in enumerate(names) if not name and any(_filled(row[k]) for row in body)
    ]
    if unnamed == [0] and not any(_filled(row[0]) for row in sheet.rows[:top]):
        unnamed = [] if _counts([row[0] for row in body]) else unnamed
    if unnamed:
        letters = listed([_letters(k) for k in unnamed])
        problems.append(f"no name for column {letters}, which has values")
    return names, problems


def _counts(cells: Sequence[Cell]) -> bool:
    """Return whether cells count 0, 1, 2, ... or 1, 2, 3, ..., as row names of a program."""
    return cells in ([*range(len(cells))], [*range(1, len(cells) + 1)])


def _repeat_merged(sheet: Sheet, top: int) -> tuple[list[str], list[str]]:
    """Write the value of cells that are merged downwards into each of their rows.

    Returns notes, and problems: cells that are merged across columns.
    """
    repeated, problems = [], []
    for (first_row, first), (last_row, last) in sheet.merged or ():
        area = f"{_address(first_row, first)}:{_address(last_row, last)}"
        if first_row > top and first != last:
            problems.append(f"{area} are merged across columns; give each cell its own value")
        elif first_row > top:
            repeated.append(area)
            for row in sheet.rows[first_row + 1 : last_row + 1]:
                row[first] = sheet.rows[first_row][first]
    remark = f"the value of merged cells is read for each of their rows: {listed(repeated)}"
    return [remark] if repeated else [], problems


def _without_empty_rows(rows: list[list[Cell]], first_row: int) -> list[str]:
    """Remove empty rows at the end; returns notes about them and about empty rows in between."""
    count = len(rows)
    while rows and not _any_filled(rows[-1]):
        rows.pop()
    empty = [str(k + first_row) for k, row in enumerate(rows) if not _any_filled(row)]
    notes = {
        f"{count - len(rows)} empty rows at the end are left out": count > len(rows),
        f"{len(empty)} rows are empty, and are read as gaps: rows {listed(empty)}": bool(empty),
    }
    return [note for note, present in notes.items() if present]


def _left_out(path: Path, sheet: Sheet, names: Sequence[str], marks: Marks | None) -> list[str]:
    """Return notes about what is not read, or is read although it is marked."""
    notes = marks.notes() if marks else []
    if sheet.unread:
        notes.append(f"sheet {sheet.name} is read, without {listed(sheet.unread)}")
    unnamed = [_letters(k) for k, name in enumerate(names) if not name]
    if unnamed:
        notes.append(f"columns that are empty or count the rows are left out: {listed(unnamed)}")
    if marks is None and any("" in row for row in sheet.rows):
        lost = "cells with an error (#N/A)" + " and merged cells" * (sheet.merged is None)
        notes.append(
            f"{lost} look like empty cells in {path.suffix}: all are gaps; save as .xlsx to "
            "distinguish them"
        )
    return notes


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


def _filled(cell: Cell) -> bool:
    """Return whether a cell has a value; blanks alone are none."""
    return not isinstance(cell, str) or bool(cell.strip())


def _any_filled(row: Sequence[Cell]) -> bool:
    """Return whether a row has a value."""
    return any(map(_filled, row))


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
    return str(cell) if _filled(cell) else None


def _in_seconds(cells: Sequence[Cell]) -> list[Cell] | None:
    """Return cells of times of day and durations in seconds; None if any is something else."""
    seconds = [_seconds(cell) if _filled(cell) else "" for cell in cells]
    return None if None in seconds or not _any_filled(seconds) else seconds


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

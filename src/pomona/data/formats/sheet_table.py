"""The table of a sheet: its row of names, and what is merged, empty, hidden or not computed."""

from collections.abc import Sequence
from pathlib import Path
from unicodedata import normalize

from pomona.core.errors import DataError, listed, refuse
from pomona.data.formats.sheet_cells import Cell, filled, text
from pomona.data.formats.workbook_marks import Marks, Position, address, letters

Rows = list[list[Cell]]
Ranges = Sequence[tuple[Position, Position]]


def header_names(path: Path, rows: Rows, top: int, merged: Ranges) -> list[str]:
    """Return the names of the columns; a name above the row of names counts where both are merged.

    Raises DataError for merged cells that leave a column without a name of its own, and for a row
    without any text.
    """
    cells = list(rows[top])
    problems = []
    if not any(isinstance(cell, str) and filled(cell) for cell in cells):
        problems.append(
            f"row {top + 1} has numbers in place of the columns' names; add a row of names, or set "
            "data.header_row"
        )
    for (first_row, first), (last_row, last) in merged:
        if not first_row <= top <= last_row:
            continue
        if first == last and last_row == top:
            cells[first] = rows[first_row][first]
        else:
            area = f"{address(first_row, first)}:{address(last_row, last)}"
            problems.append(
                f"{area} are merged in the row of names; give each column one name, or set "
                f"data.header_row, such as {last_row + 2 if first == last else top + 2}"
            )
    refuse(path, problems)
    return [normalize("NFC", (text(cell) or "").strip()) for cell in cells]


def repeat_merged(path: Path, rows: Rows, top: int, merged: Ranges) -> list[str]:
    """Write the value of cells that are merged downwards into each of their rows.

    Raises DataError for cells that are merged across columns.
    """
    areas, problems = [], []
    for (first_row, first), (last_row, last) in merged:
        if last_row <= top or first_row <= top:
            continue
        area = f"{address(first_row, first)}:{address(last_row, last)}"
        if first != last:
            problems.append(f"{area} are merged across columns; give each cell its own value")
            continue
        areas.append(area)
        for row in range(first_row + 1, min(last_row + 1, len(rows))):
            rows[row][first] = rows[first_row][first]
    refuse(path, problems)
    return [f"the value of merged cells is read for each of their rows: {listed(areas)}"] * bool(
        areas
    )


def trim(rows: Rows, top: int) -> list[str]:
    """Remove empty rows at the end; returns notes about them and about empty rows in between."""
    count = len(rows)
    while len(rows) > top + 1 and not any(map(filled, rows[-1])):
        rows.pop()
    notes = [f"{count - len(rows)} empty rows at the end are left out"] * (count > len(rows))
    empty = [str(k + 1) for k in range(top + 1, len(rows)) if not any(map(filled, rows[k]))]
    if empty:
        notes.append(f"{len(empty)} rows are empty, and are read as gaps: rows {listed(empty)}")
    return notes


def named_columns(
    path: Path, names: Sequence[str], rows: Rows, top: int
) -> tuple[list[int], list[str]]:
    """Return the columns of the table, and notes about those that are left out.

    Raises DataError for columns with values but without a name.
    """
    body = rows[top + 1 :]
    valued = [any(filled(row[k]) for row in body) for k in range(len(names))]
    nameless = [k for k, name in enumerate(names) if valued[k] and not name]
    notes = []
    if nameless == [0] and _counts([row[0] for row in body]):
        notes.append("column A has no name and counts the rows; it is left out")
        nameless = []
        valued[0] = False
    if nameless:
        better = [k for k in range(top + 1, len(rows)) if _is_header(rows[k])][:1]
        hint = f", as row {better[0] + 1} may be" if better else ""
        raise DataError(
            f"{path}: row {top + 1} has no name for column {listed(list(map(letters, nameless)))}, "
            "which has values; name it, or set data.header_row to the row of names" + hint
        )
    blank = [letters(k) for k, name in enumerate(names) if not name and not (k == 0 and notes)]
    if blank:
        notes.append(f"empty columns are left out: {listed(blank)}")
    return [k for k, name in enumerate(names) if name], notes


def _counts(cells: Sequence[Cell]) -> bool:
    """Return whether cells count 0, 1, 2, ... or 1, 2, 3, ..., as row names of a program."""
    return cells in ([*range(len(cells))], [*range(1, len(cells) + 1)])


def _is_header(row: Sequence[Cell]) -> bool:
    return all(isinstance(cell, str) and filled(cell) for cell in row)


def refuse_uncomputed(path: Path, sheet_marks: Marks | None, top: int) -> None:
    """Raise DataError for formulas without a result below the row of names."""
    cells = [c for c in sheet_marks.uncomputed if c[0] > top] if sheet_marks else []
    if cells:
        raise DataError(
            f"{path}: {len(cells)} formulas have no result ({listed(_addresses(cells))}): the "
            "program that wrote them does not compute; open and save the file in a spreadsheet"
        )


def _addresses(cells: Sequence[Position]) -> list[str]:
    return [address(*cell) for cell in cells]


def marked(
    path: Path, sheet_marks: Marks | None, top: int, count: int, columns: Sequence[int]
) -> list[str]:
    """Return notes about marked cells of the table."""
    if sheet_marks is None:
        return []
    read_columns = set(columns)
    inside = range(top + 1, top + 1 + count)
    errors = [
        f"{address(*cell)} ({error})"
        for cell, error in sheet_marks.errors.items()
        if cell[0] in inside and cell[1] in read_columns
    ]
    unsure = [c for c in sheet_marks.unsure if c[0] in inside and c[1] in read_columns]
    rows = [str(row + 1) for row in sorted(sheet_marks.hidden_rows) if row in inside]
    hidden = [letters(column) for column in sorted(sheet_marks.hidden_columns & read_columns)]
    remarks = {
        f"{len(errors)} cells with an error are gaps": errors,
        "results of formulas that no spreadsheet has computed": _addresses(unsure),
        f"{len(rows)} hidden rows are read": rows,
        f"{len(hidden)} hidden columns are read": hidden,
    }
    return [f"{remark}: {listed(cells)}" for remark, cells in remarks.items() if cells]

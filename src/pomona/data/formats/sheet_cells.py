"""Cells of spreadsheets, as python-calamine gives them, as texts."""

import re
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from typing import Any

EXACT = 2**53  # doubles hold every whole number below it
_DURATION = re.compile(r"PT(\d+)H(\d+)M(\d+(?:[.,]\d+)?)S")
Cell = Any  # "" (empty), str, bool, int, float, date, datetime, time, timedelta


def text(cell: Cell, decimal: str = ".") -> str | None:
    """Return a cell as text: 3 for 3.0, ISO dates, True and False; None if it is empty.

    Numbers get the decimal mark that the texts next to them have.
    """
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < EXACT:
        cell = int(cell)
    if isinstance(cell, date | time):
        return cell.isoformat()
    if isinstance(cell, float):
        return str(cell).replace(".", decimal)
    return str(cell) if filled(cell) else None


def filled(cell: Cell) -> bool:
    """Return whether a cell has a value; blanks alone are none."""
    return not isinstance(cell, str) or bool(cell.strip())


def is_clock(cells: Sequence[Cell]) -> bool:
    """Return whether all cells with a value are times of day or durations."""
    cells = [cell for cell in cells if filled(cell)]
    return bool(cells) and all(seconds(cell) is not None for cell in cells)


def seconds(cell: Cell) -> float | None:
    """Return a time of day or a duration in seconds; None for anything else."""
    if isinstance(cell, timedelta):
        return cell.total_seconds()
    if isinstance(cell, time):
        return (datetime.combine(date.min, cell) - datetime.min).total_seconds()
    match = _DURATION.fullmatch(cell) if isinstance(cell, str) else None
    if not match:
        return None
    hours, minutes, remainder = (float(number.replace(",", ".")) for number in match.groups())
    return hours * 3600 + minutes * 60 + remainder

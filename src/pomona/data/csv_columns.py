"""Non-numeric cells in columns of a CSV table, and the remedies offered for them."""

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from pomona.data.problem_report import listed

LARGEST = float(np.finfo(np.float32).max)
GAPS = {"", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "missing", "unknown", "?", "-", "."}
FEW = 20  # different values of a category, at most
_DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}")
_COMMA = re.compile(r"[-+]?\d+,\d+")


def number(cell: str) -> float:
    """The number in a cell as float32 can hold it; NaN for anything else."""
    try:
        value = float(cell)
    except ValueError:
        return math.nan
    return value if abs(value) <= LARGEST else math.nan


def numbers(cells: Sequence[str]) -> list[float]:
    """``number`` of every cell; quick where all are numbers."""
    with suppress(ValueError):
        values = list(map(float, cells))
        if min(values) >= -LARGEST and max(values) <= LARGEST and not math.isnan(sum(values)):
            return values
    return list(map(number, cells))


def is_gap(cell: str) -> bool:
    """Whether a cell marks a missing value."""
    return cell.strip().lower() in GAPS


def short(cell: str) -> str:
    """A cell in quotes for a message, cut where it is long."""
    return repr(cell if len(cell) <= 30 else f"{cell[:27]}...")


@dataclass
class Strays:
    """Cells of one column that are not finite numbers, in the order read.

    Attributes:
        name: the column, for messages.
        gaps, others: how many say nothing, and how many say something else.
        first: where the first of each kind was met, and what it said.
        values: different ones among the others, a few more than a category has.
        dates, commas: how many of the others are dates, or numbers with a decimal comma.
    """

    name: str
    gaps: int = 0
    others: int = 0
    first: dict[str, tuple[str, str]] = field(default_factory=dict)
    values: set[str] = field(default_factory=set)
    dates: int = 0
    commas: int = 0

    def add(self, cell: str, where: str) -> None:
        """Record a cell that is not a number."""
        if is_gap(cell):
            self.gaps += 1
            self.first.setdefault("gap", (where, cell))
            return
        self.others += 1
        self.first.setdefault("other", (where, cell))
        self.dates += bool(_DATE.match(cell.strip()))
        self.commas += bool(_COMMA.fullmatch(cell.strip()))
        if len(self.values) <= FEW:
            self.values.add(cell.strip())

    def kind(self, rows: int) -> str:
        """Kind of the column, judged by its cells: a key of ``REMEDIES``."""
        if not self.others:
            return "gaps"
        if self.commas == self.others:
            return "commas"
        if self.dates == self.others:
            return "dates"
        if 2 * self.others < rows - self.gaps:
            return "strays"
        return "category" if len(self.values) <= FEW and len(self.values) < self.others else "texts"

    def problem(self, rows: int) -> str:
        """One line: how many cells of how many, the first of them, and what they look like."""
        kind = self.kind(rows)
        where, cell = self.first["other" if self.others else "gap"]
        first = f"first {short(cell)} in {where}"
        if kind == "gaps":
            return f"column {self.name}: {self.gaps} of {rows} cells are gaps, {first}"
        also = f"; and {self.gaps} gaps" if self.gaps else ""
        looks = f": {LOOKS[kind]}" if kind in LOOKS else ""
        values = f" ({listed(sorted(self.values), 4)})" if kind == "category" else ""
        return f"column {self.name}: {self.others} of {rows} are no finite numbers, {first}{looks}{values}{also}"


LOOKS = {"commas": "decimal commas", "dates": "dates", "category": "a category?", "texts": "an identifier, or texts?"}
REMEDIES = {
    "gaps": "gaps: fill them before training, for example with the column's median",
    "commas": "decimal commas: write decimal points",
    "dates": "dates: write a number, for example days since a date that all share",
    "strays": "single cells: correct them, or take out their rows",
    "category": "categories: write one column of 0 and 1 for each value",
}


def remedies(found: Sequence[Strays], rows: int) -> list[str]:
    """Remedies for these columns: a line for each kind, and the setting that leaves them out."""
    kinds = {strays.kind(rows) for strays in found}
    if any(strays.gaps for strays in found):
        kinds.add("gaps")
    names = ", ".join(f'"{strays.name}"' for strays in found if strays.kind(rows) != "strays")
    leave = [f"to leave columns out: 'data.drop_columns=[{names}]'"] if names else []
    return [text for kind, text in REMEDIES.items() if kind in kinds] + leave

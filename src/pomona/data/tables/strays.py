"""Cells of a column that are not numbers, and suggested remedies."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pomona.core.bounds import LARGEST
from pomona.core.errors import listed
from pomona.data.cell_values import bound, days, real, short

FEW = 20  # maximum number of distinct values of a category
WANTED = {"number": "finite numbers", "date": "dates such as 2024-03-01", "category": "categories"}
_BLANKS = " \u00a0\u2009\u202f"  # between digits: a space, and those that do not break a line
# gaps: of SAS and Stata (.a, ._), of REDCap and HL7 (UNK), of a spreadsheet (#DIV/0!)
_MARKERS = (
    r"\.[A-Za-z_]|[A-Z]"
    r"|UNK|NASK|ASKU|NAVU?|NI|INV|MSK|NP|QS|QI|TRC|UNC|DER|OTH|PINF|NINF"
    r"|#(DIV/0|VALUE|REF|NUM|NAME|NULL|SPILL|CALC)[!?]"
)


# 01.03.2024, 3/1/24, 01MAR2024, 1-Mar-24
_DATES = (
    r"(\d{1,4}([-/.])\d{1,2}\2\d{1,4}"
    r"|\d{1,2}[-. ]?(?i:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*[-. ]*\d{2,4}).*"
)


def _is_large(cell: str) -> bool:
    """Return whether a cell is a number that cannot be a measurement."""
    try:
        return abs(real(cell)) > LARGEST
    except ValueError:
        return False


def _is_bound(cell: str) -> bool:
    return not math.isnan(bound(cell))


def _is_iso_date(cell: str) -> bool:
    return "-" in cell and not math.isnan(days(cell))


def _matches(pattern: str) -> Callable[[str], bool]:
    """Return a function that says whether a whole cell matches."""
    compiled = re.compile(pattern)
    return lambda cell: compiled.fullmatch(cell) is not None


# what cells look like that are not numbers, in order of precedence
_LOOKS: dict[str, Callable[[str], bool]] = {
    "large": _is_large,
    "commas": _matches(r"[-+]?\d*[\d,]*,\d+(\.\d+)?([eE][-+]?\d+)?"),
    "points": _matches(r"[-+]?\d*\.\d*([eE][-+]?\d+)?"),
    "dates": _is_iso_date,
    "foreign dates": _matches(_DATES),
    "bounds": _is_bound,
    "percents": _matches(r"[-+]?[\d.,]+\s*%"),
    "thousands": _matches(rf"[-+]?\d{{1,3}}(['`\u2019{_BLANKS}]\d{{3}})+([.,]\d+)?"),
    "markers": _matches(_MARKERS),
}


@dataclass
class Strays:
    """Cells of one column that are not finite numbers, in reading order.

    Attributes:
        name: the column, for messages.
        wanted: the expected content.
        fills: whether gaps are filled, and therefore not a problem.
        gaps, others: numbers of empty and of other unusable cells.
        first: number of the row, and content, of the first cell of each type.
        values: distinct values of the others, slightly more than a category may have.
        looks: numbers of other cells by what they look like: dates, bounds such as <5, and so on.
    """

    name: str
    wanted: str = WANTED["number"]
    fills: bool = False
    gaps: int = 0
    others: int = 0
    first: dict[str, tuple[int, str]] = field(default_factory=dict)
    values: set[str] = field(default_factory=set)
    looks: Counter[str] = field(default_factory=Counter)

    @property
    def wrong(self) -> bool:
        """Return whether any cell is a problem."""
        return bool(self.others) or (bool(self.gaps) and not self.fills)

    def add(self, cell: str, row: int, gap: bool, times: int = 1) -> None:
        """Record a cell that is not a number and occurs ``times`` times, first in ``row``; ``gap``
        says whether it is a gap.
        """
        self.first.setdefault("gap" if gap else "other", (row, cell))
        if gap:
            self.gaps += times
            return
        self.others += times
        cell = cell.strip()
        self.looks.update({look: times for look, matches in _LOOKS.items() if matches(cell)})
        if len(self.values) <= FEW:
            self.values.add(cell)

    def kind(self, rows: int) -> str:
        """Classify the column by its cells; returns a key of ``REMEDIES``."""
        if not self.others:
            return "gaps"
        if self.wanted == WANTED["date"] and self.looks["foreign dates"] == self.others:
            return "foreign dates"
        if self.wanted != WANTED["number"]:
            return "strays"
        numbers = rows - self.gaps - self.others
        for look in _LOOKS:
            if self.looks[look] == self.others and (numbers or look != "markers"):
                return look
        if 2 * self.others < rows - self.gaps:
            return "strays"
        return "category" if len(self.values) <= FEW and len(self.values) < self.others else "texts"

    def problem(self, rows: int, where: Callable[[int], str]) -> str:
        """Describe the problem in one line: number of bad cells, the first one, and their apparent
        type; ``where`` gives the location of a row.
        """
        kind = self.kind(rows)
        row, cell = self.first["other" if self.others else "gap"]
        first = f"first {short(cell)} in {where(row)}"
        if kind == "gaps":
            return f"column {self.name}: {self.gaps} of {rows} cells are gaps, {first}"
        also = f"; and {self.gaps} gaps" if self.gaps and not self.fills else ""
        looks = f": {LOOKS[kind]}" if kind in LOOKS else ""
        shown = kind in {"category", "markers"}
        values = f" ({listed(sorted(self.values), 4)})" if shown else ""
        return (
            f"column {self.name}: {self.others} of {rows} are not {self.wanted}, "
            f"{first}{looks}{values}{also}"
        )


LOOKS = {
    "commas": "decimal commas?",
    "points": "points, and data.decimal is comma",
    "dates": "dates",
    "foreign dates": "dates in another form",
    "bounds": "bounds?",
    "large": f"beyond {LARGEST:.3g}",
    "percents": "percent signs",
    "thousands": "marks of thousands?",
    "markers": "markers of gaps?",
    "category": "a category?",
    "texts": "an identifier, or texts?",
}
REMEDIES = {
    "gaps": "gaps: fill them with medians and flag them, data.missing=median",
    "commas": (
        "commas in numbers: if they are decimal marks, data.decimal=comma; if they part "
        "thousands, data.decimal=point, or take them out"
    ),
    "points": (
        "points in numbers: if they are decimal marks, data.decimal=point; a point that parts "
        "thousands has three digits behind it"
    ),
    "dates": "dates: read them as days, 'data.dates=[{names}]'",
    "foreign dates": "dates in another form: write them as 2024-03-01 (year, month, day)",
    "bounds": "bounds such as <5: read them as the number behind the sign, data.censored=limit",
    "large": (
        "numbers that cannot be measurements: correct them, give them in another unit, or, if they "
        "mark gaps, 'data.missing_values={{{markers}}}'"
    ),
    "percents": "percent signs: take them out, so that a cell is a number",
    "thousands": "apostrophes or blanks within numbers: take them out, so that a cell is a number",
    "markers": "markers of gaps: say so, 'data.missing_values={{{markers}}}'",
    "strays": (
        "single cells: correct them, take out their rows, or, if they mark gaps, "
        "'data.missing_values={{{markers}}}'"
    ),
    "category": "categories: one column of 0 and 1 for each value, 'data.categories=[{names}]'",
}


def remedies(columns: Sequence[Strays], rows: int) -> list[str]:
    """Return remedies for these columns: one line for each type, and the setting that drops
    them.
    """
    kinds = {strays.kind(rows) for strays in columns}
    if any(strays.gaps and not strays.fills for strays in columns):
        kinds.add("gaps")

    def names(*which: str) -> str:
        return ", ".join(f'"{strays.name}"' for strays in columns if strays.kind(rows) in which)

    def markers(kind: str) -> str:
        return ", ".join(_marked(strays) for strays in columns if strays.kind(rows) == kind)

    out = names("gaps", *LOOKS)
    leave = [f"to leave columns out: 'data.drop_columns=[{out}]'"] if out else []
    each = [
        text.format(names=names(kind), markers=markers(kind))
        for kind, text in REMEDIES.items()
        if kind in kinds
    ]
    return each + leave


def _marked(strays: Strays) -> str:
    """Return a column's entry of data.missing_values, with its first values."""
    key = strays.name if re.fullmatch(r"[A-Za-z0-9_-]+", strays.name) else json.dumps(strays.name)
    values = sorted(strays.values)[:5]
    return f"{key} = {json.dumps(values, ensure_ascii=False)}"

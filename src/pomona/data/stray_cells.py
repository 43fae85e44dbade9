"""Cells of a column that are not numbers, and suggested remedies."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pomona.core.errors import listed
from pomona.data.cell_values import LARGEST, bound, is_gap, real, short

FEW = 20  # maximum number of distinct values of a category
_DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}")
_COMMA = re.compile(r"[-+]?\d+,\d+")


def _is_large(cell: str) -> bool:
    """Return whether a cell is a number beyond the range of float32."""
    try:
        return abs(real(cell)) > LARGEST
    except ValueError:
        return False


@dataclass
class Strays:
    """Cells of one column that are not finite numbers, in reading order.

    Attributes:
        name: the column, for messages.
        wanted: the expected content.
        fills: whether gaps are filled, and therefore not a problem.
        gaps, others: numbers of empty and of other unusable cells.
        first: location and content of the first cell of each type.
        values: distinct values of the others, slightly more than a category may have.
        dates, commas, bounds, large: numbers of other cells that are dates, numbers with a decimal
            comma, bounds such as <5, or numbers beyond float32.
    """

    name: str
    wanted: str = "finite numbers"
    fills: bool = False
    gaps: int = 0
    others: int = 0
    first: dict[str, tuple[str, str]] = field(default_factory=dict)
    values: set[str] = field(default_factory=set)
    dates: int = 0
    commas: int = 0
    bounds: int = 0
    large: int = 0

    @property
    def wrong(self) -> bool:
        """Return whether any cell is a problem."""
        return bool(self.others) or (bool(self.gaps) and not self.fills)

    def add(
        self, cell: str, where: Callable[[str], str], gap: bool | None = None, times: int = 1
    ) -> None:
        """Record a cell that is not a number and occurs ``times`` times; ``gap`` says whether it is
        a gap, if known.

        ``where`` is the location of its first occurrence.
        """
        gap = is_gap(cell) if gap is None else gap
        kind = "gap" if gap else "other"
        if kind not in self.first:
            self.first[kind] = (where(cell), cell)
        if gap:
            self.gaps += times
            return
        self.others += times
        self.dates += times * bool(_DATE.match(cell.strip()))
        self.commas += times * bool(_COMMA.fullmatch(cell.strip()))
        self.bounds += times * (not math.isnan(bound(cell)))
        self.large += times * _is_large(cell)
        if len(self.values) <= FEW:
            self.values.add(cell.strip())

    def kind(self, rows: int) -> str:
        """Classify the column by its cells; returns a key of ``REMEDIES``."""
        if not self.others:
            return "gaps"
        if self.wanted != "finite numbers":
            return "strays"
        for kind in ("commas", "dates", "bounds", "large"):
            if getattr(self, kind) == self.others:
                return kind
        if 2 * self.others < rows - self.gaps:
            return "strays"
        return "category" if len(self.values) <= FEW and len(self.values) < self.others else "texts"

    def problem(self, rows: int) -> str:
        """Describe the problem in one line: number of bad cells, the first one, and their apparent
        type.
        """
        kind = self.kind(rows)
        where, cell = self.first["other" if self.others else "gap"]
        first = f"first {short(cell)} in {where}"
        if kind == "gaps":
            return f"column {self.name}: {self.gaps} of {rows} cells are gaps, {first}"
        also = f"; and {self.gaps} gaps" if self.gaps and not self.fills else ""
        looks = f": {LOOKS[kind]}" if kind in LOOKS else ""
        values = f" ({listed(sorted(self.values), 4)})" if kind == "category" else ""
        return (
            f"column {self.name}: {self.others} of {rows} are not {self.wanted}, "
            f"{first}{looks}{values}{also}"
        )


LOOKS = {
    "commas": "decimal commas?",
    "dates": "dates",
    "bounds": "bounds?",
    "large": f"beyond {LARGEST:.3g}",
    "category": "a category?",
    "texts": "an identifier, or texts?",
}
REMEDIES = {
    "gaps": "gaps: fill them with medians and flag them, data.missing=median",
    "commas": (
        "commas in numbers: if they are decimal marks, data.decimal=comma; if they part "
        "thousands, take them out"
    ),
    "dates": "dates: read them as days, 'data.dates=[{}]'",
    "bounds": "bounds such as <5: read them as the number behind the sign, data.censored=limit",
    "large": "numbers that float32 does not hold: correct them, or give them in another unit",
    "strays": "single cells: correct them, or take out their rows",
    "category": "categories: one column of 0 and 1 for each value, 'data.categories=[{}]'",
}


def remedies(found: Sequence[Strays], rows: int) -> list[str]:
    """Return remedies for these columns: one line for each type, and the setting that drops
    them.
    """
    kinds = {strays.kind(rows) for strays in found}
    if any(strays.gaps and not strays.fills for strays in found):
        kinds.add("gaps")

    def names(*kinds: str) -> str:
        return ", ".join(f'"{strays.name}"' for strays in found if strays.kind(rows) in kinds)

    out = names("gaps", *LOOKS)
    leave = [f"to leave columns out: 'data.drop_columns=[{out}]'"] if out else []
    return [text.format(names(kind)) for kind, text in REMEDIES.items() if kind in kinds] + leave

"""Cells of a table as numbers, those that are none, and the remedies offered for them."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from unicodedata import normalize

import numpy as np

from pomona.data.problem_report import listed

LARGEST = float(np.finfo(np.float32).max)
GAPS = {"", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "missing", "unknown", "?", "-", "."}
EPOCH = datetime(2000, 1, 1)
FEW = 20  # different values of a category, at most
WORDS = {"none", "unknown", "missing", "-", "."}  # gaps among numbers, but perhaps categories
BOOLEANS = {"true": 1.0, "false": 0.0}
_DECIMAL = re.compile(r"[-+]?\d+\.\d*")
_DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}")
_BOUND = re.compile(r"(?:[<>]=?|[≤≥])\s*([-+\d.].*)")
_COMMA = re.compile(r"[-+]?\d+,\d+")


def number(cell: str) -> float:
    """The number in a cell as float32 can hold it, 1 for true and 0 for false; NaN for anything else."""
    try:
        value = float(cell)
    except ValueError:
        return BOOLEANS.get(cell.strip().lower(), math.nan)
    return value if abs(value) <= LARGEST else math.nan


def bound(cell: str) -> float:
    """The number behind the sign of a bound, such as 5 of ``<5``; NaN for anything else."""
    return number(found[1]) if (found := _BOUND.fullmatch(cell.strip())) else math.nan


def _is_large(cell: str) -> bool:
    """Whether a cell is a number that float32 does not hold."""
    try:
        return abs(float(cell)) > LARGEST
    except ValueError:
        return False


def is_gap(cell: str) -> bool:
    """Whether a cell marks a missing value."""
    return cell.strip().lower() in GAPS


def is_missing(cell: str) -> bool:
    """Whether a cell among names marks a missing value: "none" and "-" may be names."""
    return is_gap(cell) and cell.strip().lower() not in WORDS


def plain(cell: str) -> str:
    """The one form in which labels, categories and names of sites are compared: NFC, and numbers by value.

    3, 3. and 3.0 are one, 0.5 and 0.50 too; 03 is another, as it may be a code.
    """
    cell = normalize("NFC", cell.strip())
    return cell.rstrip("0").rstrip(".") if _DECIMAL.fullmatch(cell) else cell


def alike(names: Iterable[str]) -> list[str]:
    """Those of some names that differ from another in capital letters, blanks or the form of characters only."""
    forms: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        forms.setdefault("".join(normalize("NFKC", name).casefold().split()), []).append(name)
    return sorted(name for same in forms.values() if len(same) > 1 for name in same)


def days(cell: str) -> float:
    """Days from 2000-01-01 to an ISO date, with the fraction of a time (in UTC where it has a zone); NaN for others."""
    try:
        moment = datetime.fromisoformat(cell.strip())
    except ValueError:
        return math.nan
    if moment.tzinfo:
        try:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
        except OverflowError:
            return math.nan
    return (moment - EPOCH) / timedelta(days=1)


def short(cell: str) -> str:
    """A cell in quotes for a message, cut where it is long."""
    return repr(cell if len(cell) <= 30 else f"{cell[:27]}...")


@dataclass
class Strays:
    """Cells of one column that are not finite numbers, in the order read.

    Attributes:
        name: the column, for messages.
        wanted: what its cells should be.
        fills: whether its gaps are filled, and so are no problem.
        gaps, others: how many say nothing, and how many say something else.
        first: where the first of each kind was met, and what it said.
        values: different ones among the others, a few more than a category has.
        dates, commas, bounds, large: how many of the others are dates, numbers with a decimal comma, bounds such as <5,
            or numbers beyond float32.
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
        """Whether some cell is a problem."""
        return bool(self.others) or (bool(self.gaps) and not self.fills)

    def add(self, cell: str, where: Callable[[str], str], gap: bool | None = None, times: int = 1) -> None:
        """Record a cell that is not a number and is there so often, and whether it is a gap where that is known.

        ``where`` names the place at which it is first.
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
        """Kind of the column, judged by its cells: a key of ``REMEDIES``."""
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
        """One line: how many cells of how many, the first of them, and what they look like."""
        kind = self.kind(rows)
        where, cell = self.first["other" if self.others else "gap"]
        first = f"first {short(cell)} in {where}"
        if kind == "gaps":
            return f"column {self.name}: {self.gaps} of {rows} cells are gaps, {first}"
        also = f"; and {self.gaps} gaps" if self.gaps and not self.fills else ""
        looks = f": {LOOKS[kind]}" if kind in LOOKS else ""
        values = f" ({listed(sorted(self.values), 4)})" if kind == "category" else ""
        return f"column {self.name}: {self.others} of {rows} are not {self.wanted}, {first}{looks}{values}{also}"


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
    "commas": "commas in numbers: if they are decimal marks, data.decimal=comma; if they part thousands, take them out",
    "dates": "dates: read them as days, 'data.dates=[{}]'",
    "bounds": "bounds such as <5: read them as the number behind the sign, data.censored=limit",
    "large": "numbers that float32 does not hold: correct them, or give them in another unit",
    "strays": "single cells: correct them, or take out their rows",
    "category": "categories: one column of 0 and 1 for each value, 'data.categories=[{}]'",
}


def remedies(found: Sequence[Strays], rows: int) -> list[str]:
    """Remedies for these columns: a line for each kind, and the setting that leaves them out."""
    kinds = {strays.kind(rows) for strays in found}
    if any(strays.gaps and not strays.fills for strays in found):
        kinds.add("gaps")

    def names(*kinds: str) -> str:
        return ", ".join(f'"{strays.name}"' for strays in found if strays.kind(rows) in kinds)

    out = names("gaps", *LOOKS)
    leave = [f"to leave columns out: 'data.drop_columns=[{out}]'"] if out else []
    return [text.format(names(kind)) for kind, text in REMEDIES.items() if kind in kinds] + leave

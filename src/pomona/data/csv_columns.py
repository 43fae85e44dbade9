"""Table cells as numbers; cells that are not numbers, and suggested remedies."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from unicodedata import normalize

import numpy as np

from pomona.core.errors import listed

LARGEST = float(np.finfo(np.float32).max)
GAPS = {"", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "missing", "unknown", "?", "-", "."}
EPOCH = datetime(2000, 1, 1)
FEW = 20  # maximum number of distinct values of a category
WORDS = {"none", "unknown", "missing", "-", "."}  # gaps in numeric columns, but possibly categories
BOOLEANS = {"true": 1.0, "false": 0.0}
_DECIMAL = re.compile(r"[-+]?\d+\.\d*")
_WHOLE = re.compile(r"^([-+]?\d+)\.0*$")
_DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}")
_BOUND = re.compile(r"(?:[<>]=?|[≤≥])\s*([-+\d.].*)")
_COMMA = re.compile(r"[-+]?\d+,\d+")


def real(cell: str) -> float:
    """Return the number in a cell; ValueError also for the underscores that Python allows in it."""
    return float(cell.replace("_", "!"))


def number(cell: str) -> float:
    """Return the number in a cell, 1 for true and 0 for false; NaN for anything else, and beyond
    the range of float32.
    """
    try:
        value = real(cell)
    except ValueError:
        return BOOLEANS.get(cell.strip().lower(), math.nan)
    return value if abs(value) <= LARGEST else math.nan


def bound(cell: str) -> float:
    """Return the number in a censored value, such as 5 for ``<5``; NaN for anything else."""
    return number(found[1]) if (found := _BOUND.fullmatch(cell.strip())) else math.nan


def _is_large(cell: str) -> bool:
    """Return whether a cell is a number beyond the range of float32."""
    try:
        return abs(real(cell)) > LARGEST
    except ValueError:
        return False


def is_gap(cell: str) -> bool:
    """Return whether a cell marks a missing value."""
    return cell.strip().lower() in GAPS


def is_missing(cell: str) -> bool:
    """Return whether a cell in a column of names marks a missing value: "none" and "-" may be
    names.
    """
    return is_gap(cell) and cell.strip().lower() not in WORDS


def plain(cell: str) -> str:
    """Return the canonical form for comparing labels and categories: NFC, and numbers by value.

    3, 3. and 3.0 are equal, and so are 0.5 and 0.50; 03 is different, since it may be a code.
    """
    cell = normalize("NFC", cell.strip())
    return cell.rstrip("0").rstrip(".") if _DECIMAL.fullmatch(cell) else cell


def name(cell: str) -> str:
    """Return the canonical form of the name of a client, patient or subgroup: NFC, and 3 for 3.0,
    as columns of numbers with gaps are often written; empty if it marks a missing value.
    """
    return "" if is_missing(cell) else given(cell)


def given(name: str) -> str:
    """Return the canonical form of a name that a person gave. No text marks a gap here: NA may be
    Namibia.
    """
    return _WHOLE.sub(r"\1", normalize("NFC", name.strip()))


def alike(names: Iterable[str]) -> list[str]:
    """Return the names that differ from another one only in case, whitespace or Unicode form."""
    forms: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        forms.setdefault("".join(normalize("NFKC", name).casefold().split()), []).append(name)
    return sorted(name for same in forms.values() if len(same) > 1 for name in same)


def days(cell: str) -> float:
    """Return days from 2000-01-01 to an ISO date, with a fraction for the time (UTC if it has a
    zone); else NaN.
    """
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
    """Quote a cell for a message, truncated if long."""
    return repr(cell if len(cell) <= 30 else f"{cell[:27]}...")


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

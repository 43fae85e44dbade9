"""The result of a survey: the silos' disclosures, kept as one file, and figures pooled from
them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor, log10, sqrt

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pomona.core.bounds import PLACES, Line
from pomona.core.settings import Settings
from pomona.data.targets import in_order
from pomona_federation.survey.replies import (
    ColumnForm,
    ColumnsReply,
    FiguresQuestion,
    FiguresReply,
    Names,
    Numbers,
    SafeName,
)
from pomona_federation.survey.settings import SurveySettings


@dataclass(frozen=True)
class Moments:
    """Number of values, their mean, and their standard deviation (divided by n, as in
    preprocessing).
    """

    count: int
    mean: float
    deviation: float


@dataclass(frozen=True)
class Quantile:
    """The value below which a share of all values lies; the exact one is above ``low`` and at most
    ``high``.

    None if no disclosed value is as small, or as large.
    """

    value: float
    low: float | None
    high: float | None


def pooled(columns: Iterable[Numbers]) -> Numbers:
    """All silos' rows as one column, which may have more groups than a single silo discloses."""
    counts: Counter[float] = Counter()
    rest = 0
    for column in columns:
        rest += column.rest
        for value, count in zip(column.values, column.counts, strict=True):
            counts[value] += count
    values = sorted(counts)
    return Numbers.model_construct(
        values=tuple(values), counts=tuple(counts[v] for v in values), rest=rest
    )


def pooled_names(columns: Iterable[Names]) -> Counter[str]:
    """Rows of each category at all silos that disclosed it."""
    return sum((Counter(column.by_name) for column in columns), Counter())


def moments(column: Numbers) -> Moments | None:
    """Moments of a column, or of all silos' rows; None if nothing was disclosed."""
    if not column.counts:
        return None
    x, n = np.array(column.values), np.array(column.counts, np.float64)
    # around one of its own values, so that years do not cancel
    mean = float(x[0] + ((x - x[0]) * n).sum() / n.sum())
    return Moments(int(n.sum()), mean, sqrt(float((n * (x - mean) ** 2).sum() / n.sum())))


def quantile(columns: Sequence[Numbers], share: float, least: int) -> Quantile | None:
    """A quantile of all silos' values together; None if nothing was disclosed.

    Its bounds hold for values of four digits: each group has a known number of rows, half of which
    are at most its middle; and each silo may count fewer than ``least`` rows without a value among
    the rows.
    """
    told = [column for column in columns if column.counts]
    if not told:
        return None
    every = np.unique(np.concatenate([column.values for column in told]))
    rows = [sum(counts) for counts in zip(*(_below(column, every) for column in told), strict=True)]
    all_, extra = sum(sum(column.counts) for column in told), (least - 1) * len(told)
    value = every[np.searchsorted(rows[1], max(1, ceil(share * all_)))]
    under = every[rows[2] < share * (all_ - extra)]
    over = every[rows[0] - extra >= share * all_]
    return Quantile(
        float(value),
        float(under[-1]) if len(under) else None,
        float(over[0]) if len(over) else None,
    )


def _below(column: Numbers, at: NDArray[np.float64]) -> NDArray[np.int64]:
    """(3, n): number of rows up to each value: at least, estimated by the middles, and at most."""
    counts = np.array([0, *column.counts, 0])
    k = np.searchsorted(column.values, at, side="right")
    told = np.cumsum(counts)[k]
    return np.stack([told - counts[k] // 2, told, told + counts[k + 1] // 2])


def histogram(column: Numbers, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows between consecutive edges, including the last edge."""
    rows, _ = np.histogram(
        np.array(column.values), edges, weights=np.array(column.counts, np.float64)
    )
    return np.asarray(rows, np.float64)


def nice_edges(columns: Sequence[Numbers], bins: int) -> NDArray[np.float64]:
    """Edges of at most ``bins`` bins of round width (1, 2 or 5 times a power of ten) over all
    disclosed values.
    """
    low = min(min(c.values) for c in columns if c.values)
    high = max(max(c.values) for c in columns if c.values)
    if low == high:
        return np.array([low - 0.5, low + 0.5])
    power = 10.0 ** floor(log10((high - low) / bins))
    width = next(
        w
        for w in (power * step for step in (1, 2, 5, 10, 20, 50))
        if floor(high / w) - floor(low / w) < bins
    )
    return np.array([width * k for k in range(floor(low / width), floor(high / width) + 2)])


def distance(one: Numbers, all_: Numbers) -> float | None:
    """Distance of a silo's numbers from all silos': the largest difference of their distribution
    functions, 0 to 1.
    """
    if not (one.counts and all_.counts):
        return None
    at = np.array(all_.values)
    mine, theirs = (_below(column, at)[1] / sum(column.counts) for column in (one, all_))
    return float(np.abs(mine - theirs).max())


def name_distance(one: Names, all_: Counter[str]) -> float | None:
    """Distance for categories: half the sum of the differences of their shares, 0 to 1."""
    if not one.counts:
        return None
    mine, theirs = one.by_name, all_.total()
    return (
        sum(abs(mine.get(name, 0) / sum(one.counts) - n / theirs) for name, n in all_.items()) / 2
    )


class SiloDisclosure(Settings):
    """Everything that one silo disclosed."""

    columns: ColumnsReply
    figures: FiguresReply


class SurveyResult(Settings):
    """A finished survey.

    Attributes:
        survey: its settings.
        question: how the columns were read.
        silos: the disclosures of each, by name, in order.
        absent: silos that disclosed nothing, and why.
        notes: remarks, one line each.
    """

    survey: SurveySettings
    question: FiguresQuestion
    silos: dict[SafeName, SiloDisclosure] = Field(min_length=1, max_length=PLACES)
    absent: dict[SafeName, Line] = Field({}, max_length=PLACES)
    notes: tuple[Line, ...] = Field((), max_length=10**4)

    @property
    def one(self) -> ColumnsReply:
        """The common form of samples and targets at all silos."""
        return next(iter(self.silos.values())).columns

    @property
    def rows(self) -> int:
        """Training rows of all silos."""
        return sum(told.figures.rows for told in self.silos.values())

    @property
    def forms(self) -> Sequence[ColumnForm]:
        """The surveyed columns."""
        return self.question.columns

    def numbers(self, column: str) -> dict[str, Numbers]:
        """A column of numbers by silo, for the silos that disclosed it."""
        found = {name: told.figures.numbers.get(column) for name, told in self.silos.items()}
        return {name: own for name, own in found.items() if own}

    def names(self, column: str) -> dict[str, Names]:
        """A column of categories by silo, for the silos that disclosed it."""
        found = {name: told.figures.names.get(column) for name, told in self.silos.items()}
        return {name: own for name, own in found.items() if own}

    def targets(self) -> dict[str, dict[str, Numbers]]:
        """Targets other than classes, by target and silo."""
        keys = dict.fromkeys(key for told in self.silos.values() for key in told.figures.targets)
        by_silo = {name: told.figures.targets for name, told in self.silos.items()}
        return {
            key: {name: own[key] for name, own in by_silo.items() if key in own} for key in keys
        }

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes: from the silos' settings, else those disclosed, in order."""
        given = {told.columns.classes for told in self.silos.values()}
        if len(given) == 1 and (known := next(iter(given))):
            return known
        if self.one.targets == "segmentation":
            return in_order(self.targets())
        return in_order(
            name for told in self.silos.values() for name in (told.figures.classes or Names()).names
        )

    def words(self) -> Mapping[str, int]:
        """Words, and the number of texts of all silos with each."""
        counts: Counter[str] = Counter()
        for told in self.silos.values():
            counts.update(told.figures.words)
        return counts

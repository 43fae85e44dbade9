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

from pomona.core.bounds import MAX_CLIENTS, Line
from pomona.core.settings import Settings
from pomona.data.targets import in_order
from pomona_federation.survey.settings import (
    ColumnSpec,
    ColumnsReply,
    FiguresQuestion,
    FiguresReply,
    Names,
    Numbers,
    SafeName,
    SurveySettings,
)


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
    undisclosed = 0
    for column in columns:
        undisclosed += column.rest
        for value, count in zip(column.values, column.counts, strict=True):
            counts[value] += count
    values = sorted(counts)
    return Numbers.model_construct(
        values=tuple(values), counts=tuple(counts[v] for v in values), rest=undisclosed
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


def quantile(columns: Sequence[Numbers], share: float, min_count: int) -> Quantile | None:
    """A quantile of all silos' values together; None if nothing was disclosed.

    Its bounds hold for values of four digits: each group has a known number of rows, half of which
    are at most its middle; and each silo may count fewer than ``min_count`` rows without a value
    among the rows.
    """
    nonempty = [column for column in columns if column.counts]
    if not nonempty:
        return None
    grid = np.unique(np.concatenate([column.values for column in nonempty]))
    rows = [
        sum(counts) for counts in zip(*(_below(column, grid) for column in nonempty), strict=True)
    ]
    total, slack = sum(sum(column.counts) for column in nonempty), (min_count - 1) * len(nonempty)
    value = grid[np.searchsorted(rows[1], max(1, ceil(share * total)))]
    lower = grid[rows[2] < share * (total - slack)]
    upper = grid[rows[0] - slack >= share * total]
    return Quantile(
        float(value),
        float(lower[-1]) if len(lower) else None,
        float(upper[0]) if len(upper) else None,
    )


def _below(column: Numbers, grid: NDArray[np.float64]) -> NDArray[np.int64]:
    """(3, n): number of rows up to each value: at least, estimated by the middles, and at most."""
    counts = np.array([0, *column.counts, 0])
    k = np.searchsorted(column.values, grid, side="right")
    cumulative = np.cumsum(counts)[k]
    return np.stack([cumulative - counts[k] // 2, cumulative, cumulative + counts[k + 1] // 2])


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


def distance(silo: Numbers, overall: Numbers) -> float | None:
    """Distance of a silo's numbers from all silos': the largest difference of their distribution
    functions, 0 to 1.
    """
    if not (silo.counts and overall.counts):
        return None
    grid = np.array(overall.values)
    silo_cdf, overall_cdf = (
        _below(column, grid)[1] / sum(column.counts) for column in (silo, overall)
    )
    return float(np.abs(silo_cdf - overall_cdf).max())


def name_distance(silo: Names, overall: Counter[str]) -> float | None:
    """Distance for categories: half the sum of the differences of their shares, 0 to 1."""
    if not silo.counts:
        return None
    silo_counts, total = silo.by_name, overall.total()
    return (
        sum(
            abs(silo_counts.get(name, 0) / sum(silo.counts) - n / total)
            for name, n in overall.items()
        )
        / 2
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
    silos: dict[SafeName, SiloDisclosure] = Field(min_length=1, max_length=MAX_CLIENTS)
    absent: dict[SafeName, Line] = Field({}, max_length=MAX_CLIENTS)
    notes: tuple[Line, ...] = Field((), max_length=10**4)

    @property
    def data_schema(self) -> ColumnsReply:
        """The common form of samples and targets at all silos."""
        return next(iter(self.silos.values())).columns

    @property
    def rows(self) -> int:
        """Training rows of all silos."""
        return sum(disclosure.figures.rows for disclosure in self.silos.values())

    @property
    def columns(self) -> Sequence[ColumnSpec]:
        """The surveyed columns."""
        return self.question.columns

    def numbers(self, column: str) -> dict[str, Numbers]:
        """A column of numbers by silo, for the silos that disclosed it."""
        columns = {
            name: disclosure.figures.numbers.get(column) for name, disclosure in self.silos.items()
        }
        return {name: numbers for name, numbers in columns.items() if numbers}

    def names(self, column: str) -> dict[str, Names]:
        """A column of categories by silo, for the silos that disclosed it."""
        columns = {
            name: disclosure.figures.names.get(column) for name, disclosure in self.silos.items()
        }
        return {name: names for name, names in columns.items() if names}

    def targets(self) -> dict[str, dict[str, Numbers]]:
        """Targets other than classes, by target and silo."""
        keys = dict.fromkeys(
            key for disclosure in self.silos.values() for key in disclosure.figures.targets
        )
        by_silo = {name: disclosure.figures.targets for name, disclosure in self.silos.items()}
        return {
            key: {name: targets[key] for name, targets in by_silo.items() if key in targets}
            for key in keys
        }

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes: from the silos' settings, else those disclosed, in order."""
        configured = {disclosure.columns.classes for disclosure in self.silos.values()}
        if len(configured) == 1 and (names := next(iter(configured))):
            return names
        if self.data_schema.targets == "segmentation":
            return in_order(self.targets())
        return in_order(
            name
            for disclosure in self.silos.values()
            for name in (disclosure.figures.classes or Names()).names
        )

    def word_counts(self) -> Mapping[str, int]:
        """Words, and the number of texts of all silos with each."""
        counts: Counter[str] = Counter()
        for disclosure in self.silos.values():
            counts.update(disclosure.figures.words)
        return counts

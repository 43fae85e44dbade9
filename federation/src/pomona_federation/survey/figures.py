"""Figures of columns that silos have told: moments, quantiles with their bounds, histograms, and distances."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10, sqrt

import numpy as np
from numpy.typing import NDArray

from pomona_federation.survey.replies import Names, Numbers


@dataclass(frozen=True)
class Moments:
    """Number of values, their mean, and their deviation around it (with n below, as networks are given it)."""

    count: int
    mean: float
    deviation: float


@dataclass(frozen=True)
class Quantile:
    """The value below which a share of all values lies; the exact one is above ``low`` and at most ``high``.

    None where nothing was told that is as small, or as large.
    """

    value: float
    low: float | None
    high: float | None


def pooled(columns: Iterable[Numbers]) -> Numbers:
    """All silos' rows as one column; it may have more groups than one silo tells."""
    counts: Counter[float] = Counter()
    rest = 0
    for column in columns:
        rest += column.rest
        for value, count in zip(column.values, column.counts, strict=True):
            counts[value] += count
    values = sorted(counts)
    return Numbers.model_construct(values=tuple(values), counts=tuple(counts[v] for v in values), rest=rest)


def pooled_names(columns: Iterable[Names]) -> Counter[str]:
    """Rows of each category at all silos that told of it."""
    return sum((Counter(column.by_name) for column in columns), Counter())


def moments(column: Numbers) -> Moments | None:
    """Moments of a column, or of all silos' rows; None if nothing was told."""
    if not column.counts:
        return None
    x, n = np.array(column.values), np.array(column.counts, np.float64)
    mean = float(x[0] + ((x - x[0]) * n).sum() / n.sum())  # around a value of its own: years do not cancel
    return Moments(int(n.sum()), mean, sqrt(float((n * (x - mean) ** 2).sum() / n.sum())))


def quantile(columns: Sequence[Numbers], share: float, least: int) -> Quantile | None:
    """A quantile of all silos' values together; None if nothing was told.

    Its bounds hold for values of four digits: of each group it is known how many rows it has, and that half of them are
    at most its middle; and of each silo, that less than ``least`` rows without a value may be counted in.
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
    return Quantile(float(value), float(under[-1]) if len(under) else None, float(over[0]) if len(over) else None)


def _below(column: Numbers, at: NDArray[np.float64]) -> NDArray[np.int64]:
    """(3, n): rows that are not above each value: at least, by the middles, and at most."""
    counts = np.array([0, *column.counts, 0])
    k = np.searchsorted(column.values, at, side="right")
    told = np.cumsum(counts)[k]
    return np.stack([told - counts[k] // 2, told, told + counts[k + 1] // 2])


def histogram(column: Numbers, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows between each two edges, the last one included."""
    rows, _ = np.histogram(np.array(column.values), edges, weights=np.array(column.counts, np.float64))
    return np.asarray(rows, np.float64)


def nice_edges(columns: Sequence[Numbers], bins: int) -> NDArray[np.float64]:
    """Edges of at most so many bins of round width (1, 2 or 5 times a power of ten) that hold all that was told."""
    low = min(min(c.values) for c in columns if c.values)
    high = max(max(c.values) for c in columns if c.values)
    if low == high:
        return np.array([low - 0.5, low + 0.5])
    power = 10.0 ** floor(log10((high - low) / bins))
    width = next(w for w in (power * step for step in (1, 2, 5, 10, 20, 50)) if floor(high / w) - floor(low / w) < bins)
    return np.array([width * k for k in range(floor(low / width), floor(high / width) + 2)])


def distance(one: Numbers, all_: Numbers) -> float | None:
    """How far a silo's numbers are from all silos': the largest difference of their shares below any value, 0 to 1."""
    if not (one.counts and all_.counts):
        return None
    at = np.array(all_.values)
    mine, theirs = (_below(column, at)[1] / sum(column.counts) for column in (one, all_))
    return float(np.abs(mine - theirs).max())


def name_distance(one: Names, all_: Counter[str]) -> float | None:
    """The same of categories: half the sum of the differences of their shares, 0 to 1."""
    if not one.counts:
        return None
    mine, theirs = one.by_name, all_.total()
    return sum(abs(mine.get(name, 0) / sum(one.counts) - n / theirs) for name, n in all_.items()) / 2

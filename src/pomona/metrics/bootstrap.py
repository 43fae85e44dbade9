"""Confidence intervals at 95 %: the percentile bootstrap of statistics that are functions of sample weights.

A resample is a row of counts, how often each sample was drawn, so that a statistic of all resamples is a matrix
product with the samples' contributions, and its point value is the same function at weights of one.

Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13 (percentile interval), section 8.3 (strata).
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from pomona.metrics.nan_safe import Array

CONFIDENCE = 0.95
SAME = 1e-12  # values of resamples that differ by no more differ by rounding
_CELLS = 1 << 21  # weights held at a time: 16 MB

Statistics = Callable[[Array], Mapping[str, Array]]
Interval = list[float] | None


def stratified(strata: NDArray[np.integer], resamples: int, generator: np.random.Generator) -> Array:
    """Draw with replacement within each stratum, as many as it has: (n,) stratum numbers -> counts (resamples, n)."""
    n = len(strata)
    order = np.argsort(strata, kind="stable")
    _, start, size = np.unique(strata[order], return_index=True, return_counts=True)
    first = np.repeat(start, size)
    drawn = order[generator.integers(first, first + np.repeat(size, size), size=(resamples, n))]
    cells = drawn + n * np.arange(resamples)[:, np.newaxis]
    return np.bincount(cells.ravel(), minlength=resamples * n).reshape(resamples, n).astype(float)


def blocks(n: int, resamples: int) -> list[int]:
    """Block sizes of resamples of n samples that fit in memory, summing to the number wanted."""
    block = max(1, _CELLS // max(1, n))
    return [min(block, resamples - done) for done in range(0, resamples, block)]


def intervals(
    statistics: Statistics, strata: NDArray[np.integer], resamples: int, generator: np.random.Generator | None
) -> dict[str, Interval]:
    """The percentile interval of each statistic, None where it is undefined; empty if nothing is drawn.

    It is undefined, too, where all resamples give the same value, as those of samples that are all answered right: an
    interval without width would claim to know other samples.

    Args:
        statistics: weights (R, n) -> named values (R,), NaN where undefined.
        strata: (n,) the stratum of each sample, whose sizes are the same in every resample.
        resamples: number of resamples; 0 for no intervals.
        generator: what they are drawn from; None for no intervals.
    """
    if generator is None or resamples < 1:
        return {}
    sizes = blocks(len(strata), resamples)
    parts = [statistics(stratified(strata, size, generator)) for size in sizes]
    return {name: _percentiles(np.concatenate([part[name] for part in parts])) for name in parts[0]}


def _percentiles(values: Array) -> Interval:
    if np.isnan(values).any():
        return None
    if np.ptp(values) <= SAME:
        return None
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return [float(low), float(high)]

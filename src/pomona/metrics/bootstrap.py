"""Confidence intervals at 95 %: the percentile bootstrap for statistics that are functions of
sample weights.

A resample is a row of counts, one per sample, so that a statistic of all resamples is a matrix
product with the samples' contributions, and its point estimate is the same function at weights of
one.

Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13 (percentile interval),
section 8.3 (strata).
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from pomona.metrics.nan_safe import Array

CONFIDENCE = 0.95
SAME = 1e-12  # tolerance for rounding differences between resamples
_CELLS = 1 << 21  # weights held at a time: 16 MB

Statistics = Callable[[Array], Mapping[str, Array]]
Interval = list[float] | None


def stratified(
    strata: NDArray[np.integer], resamples: int, generator: np.random.Generator
) -> Array:
    """Resample with replacement within each stratum: (n,) stratum numbers -> counts (resamples,
    n).
    """
    n = len(strata)
    order = np.argsort(strata, kind="stable")
    _, start, size = np.unique(strata[order], return_index=True, return_counts=True)
    first = np.repeat(start, size)
    drawn = order[generator.integers(first, first + np.repeat(size, size), size=(resamples, n))]
    cells = drawn + n * np.arange(resamples)[:, np.newaxis]
    return np.bincount(cells.ravel(), minlength=resamples * n).reshape(resamples, n).astype(float)


def blocks(n: int, resamples: int) -> list[int]:
    """Split the resamples of n samples into block sizes that fit in memory."""
    block = max(1, _CELLS // max(1, n))
    return [min(block, resamples - done) for done in range(0, resamples, block)]


def intervals(
    statistics: Statistics,
    strata: NDArray[np.integer],
    resamples: int,
    generator: np.random.Generator | None,
) -> dict[str, Interval]:
    """Return the percentile interval of each statistic, None if undefined; empty without resamples
    or generator.

    It is also undefined if all resamples give the same value, e.g. if all samples are correct: an
    interval of zero width would claim certainty about other samples.

    Args:
        statistics: weights (R, n) -> named values (R,), NaN where undefined.
        strata: (n,) the stratum of each sample; resampling keeps their sizes.
        resamples: number of resamples; 0 for no intervals.
        generator: random generator; None for no intervals.
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

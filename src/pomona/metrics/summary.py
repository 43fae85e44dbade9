"""One number from many clients, from many rounds, or from two methods: always with its name.

A client's value may be None (NaN inside arrays): it has no samples, and counts nowhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pomona.metrics.bootstrap import CONFIDENCE, Interval
from pomona.metrics.undefined import Array, defined, divide, row_means

Values = Sequence[float | None] | Array


def summarize(values: Values, samples: Sequence[int], reference: Values | None = None) -> dict[str, Any]:
    """Summarise one value a client; None for what the clients do not define.

    The keys:

    - ``clients``: how many have a value.
    - ``mean``: over clients, each counting once; ``interval``: its 95 % confidence interval by Student's t.
    - ``pooled``: over samples, each counting once.
    - ``std``: over clients, with one degree of freedom removed (ddof = 1).
    - ``worst``: the lowest value; ``percentile_10``: with linear interpolation.
    - ``hurt``: share of the clients whose value is below their own in ``reference``.

    Args:
        values: (n,) one a client, higher is better.
        samples: (n,) how many samples each value is a mean of.
        reference: (n,) what the same clients have without the method, such as training alone.
    """
    every = np.array(values, dtype=float)
    some = every[~np.isnan(every)]
    other = np.full(len(every), np.nan) if reference is None else np.array(reference, dtype=float)
    return {
        "clients": len(some),
        "mean": defined(row_means(every[np.newaxis])[0]),
        "interval": _interval(some),
        "pooled": defined(row_means(every[np.newaxis], samples)[0]),
        "std": float(some.std(ddof=1)) if len(some) > 1 else None,
        "worst": float(some.min()) if len(some) else None,
        "percentile_10": float(np.percentile(some, 10)) if len(some) else None,
        "hurt": defined(divide((every < other).sum(), (~np.isnan(every - other)).sum()).item()),
    }


def _interval(values: Array) -> Interval:
    if len(values) < 2:
        return None
    from scipy import stats  # late: half a second, in each process of a silo

    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * stats.sem(values)
    return [float(values.mean() - half), float(values.mean() + half)]


class Signed(NamedTuple):
    """Wilcoxon's test: the smaller sum of signed ranks, the two-sided p-value, the pairs that differ."""

    statistic: float
    p: float
    pairs: int


def wilcoxon(first: Values, second: Values) -> Signed | None:
    """Test whether two methods' values on the same clients differ, by Wilcoxon's signed-rank test, two-sided.

    Pairs that are equal are dropped (Wilcoxon 1945); so are clients without a value. Differences are rounded to 12
    decimals, so that equal ones tie whatever their last bits. SciPy chooses between the exact distribution and the
    normal one with tie correction. None if no pair differs.
    """
    difference = np.round(np.array(first, dtype=float) - np.array(second, dtype=float), 12)
    difference = difference[~np.isnan(difference) & (difference != 0)]
    if not len(difference):
        return None
    from scipy import stats  # late: half a second, in each process of a silo

    test = stats.wilcoxon(difference, zero_method="wilcox", alternative="two-sided")
    return Signed(float(test.statistic), float(test.pvalue), len(difference))


class At(NamedTuple):
    """An accuracy, and the round it was reached in."""

    value: float
    round: int


@dataclass(frozen=True)
class BestRounds:
    """The test accuracies a run can be summed up by; None where no round defines one.

    Attributes:
        last: client mean in the last round.
        best_validation: client mean in the round of the best client mean on validation, chosen without test data.
        best_test: the papers' BMCTA: the highest client mean over rounds. Selected on test data, so optimistic.
        best_test_pooled: the APPLE code's BTA: the highest accuracy over all samples. Optimistic likewise.
    """

    last: At | None
    best_validation: At | None
    best_test: At | None
    best_test_pooled: At | None


def best_rounds(
    rounds: Sequence[int], test: Sequence[Values], samples: Sequence[int], validation: Sequence[Values] | None = None
) -> BestRounds:
    """Find the last and the best rounds; of equally good ones the first.

    Args:
        rounds: (R,) numbers of the rounds that were evaluated.
        test: (R, n) accuracy of each client after each of them.
        samples: (n,) test samples of each client.
        validation: (R, n) accuracy on the clients' validation samples, where there are any.
    """
    grid = (len(rounds), len(samples))
    accuracies = np.array(test, dtype=float).reshape(grid)
    chosen = np.full(grid, np.nan) if validation is None else np.array(validation, dtype=float).reshape(grid)
    means, pooled = row_means(accuracies), row_means(accuracies, samples)
    return BestRounds(
        last=_highest(rounds, rounds, means),
        best_validation=_highest(rounds, row_means(chosen), means),
        best_test=_highest(rounds, means, means),
        best_test_pooled=_highest(rounds, pooled, pooled),
    )


def _highest(rounds: Sequence[int], scores: ArrayLike, values: Array) -> At | None:
    """The value in the round of the highest score, among the rounds that have both."""
    score = np.where(np.isnan(values), np.nan, np.asarray(scores, dtype=float))
    if np.isnan(score).all():
        return None
    best = int(np.nanargmax(score))
    return At(float(values[best]), int(rounds[best]))

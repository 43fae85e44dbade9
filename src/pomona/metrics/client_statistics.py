"""Summaries over clients, over rounds, and of two methods.

A client's value may be None (NaN inside arrays): it has no samples, and counts nowhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pomona.metrics.best_round import Point, best
from pomona.metrics.bootstrap import CONFIDENCE, Interval
from pomona.metrics.metric import ACCURACY, Metric
from pomona.metrics.nan_safe import Array, defined, divide, mean_of_known, row_means

LEAST = 5
"""Clients that an interval over clients takes: over two that happen to agree, it would have no width."""
Values = Sequence[float | None] | Array


def summarize(
    values: Values, samples: Sequence[int], reference: Values | None = None, metric: Metric = ACCURACY
) -> dict[str, Any]:
    """Summarise one value a client; None for what the clients do not define.

    The keys:

    - ``clients``: how many have a value.
    - ``mean``: over clients, each counting once; ``interval``: its 95 % confidence interval by Student's t, for other
      clients like these, cut to the values that the metric can take; None below ``LEAST`` clients.
    - ``pooled``: over samples, each counting once; None for a metric that is no mean over samples.
    - ``std``: over clients, with one degree of freedom removed (ddof = 1).
    - ``worst``: the value of the client that fares worst; ``percentile_10``: that of the client that a tenth fare worse
      than, with linear interpolation.
    - ``hurt``: share of the clients whose value is worse than their own in ``reference``.

    Args:
        values: (n,) one a client.
        samples: (n,) how many samples each value is of.
        reference: (n,) what the same clients have without the method, such as training alone.
        metric: what the values are.
    """
    every = np.array(values, dtype=float)
    some = every[~np.isnan(every)]
    other = np.full(len(every), np.nan) if reference is None else np.array(reference, dtype=float)
    worse = every < other if metric.higher else every > other
    return {
        "clients": len(some),
        "mean": defined(row_means(every[np.newaxis])[0]),
        "interval": _interval(some, metric),
        "pooled": defined(row_means(every[np.newaxis], samples)[0]) if metric.pools else None,
        "std": float(some.std(ddof=1)) if len(some) > 1 else None,
        "worst": metric.worst(some.tolist()),
        "percentile_10": float(np.percentile(some, 10 if metric.higher else 90)) if len(some) else None,
        "hurt": defined(divide(worse.sum(), (~np.isnan(every - other)).sum()).item()),
    }


def _interval(values: Array, metric: Metric) -> Interval:
    if len(values) < LEAST:
        return None
    from scipy.special import stdtrit  # late: in each process of a silo; scipy.stats takes a second to import

    n = len(values)
    half = stdtrit(n - 1, (1 + CONFIDENCE) / 2) * values.std(ddof=1) / n**0.5
    ends = np.clip([values.mean() - half, values.mean() + half], metric.low, metric.high)
    return [float(ends[0]), float(ends[1])]


class Spread(NamedTuple):
    """Mean, standard deviation (ddof = 1; None for one value), number of values."""

    mean: float
    std: float | None
    n: int


def spread(values: Sequence[float | None]) -> Spread | None:
    """Mean and standard deviation of the values that are not None; None if there are none."""
    known = [v for v in values if v is not None]
    if not known:
        return None
    std = float(np.std(known, ddof=1)) if len(known) > 1 else None
    return Spread(float(np.mean(known)), std, len(known))


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


def holm(p: Sequence[float]) -> list[float]:
    """p-values adjusted for their number, step-down (Holm 1979): compare each with the level itself."""
    order = np.argsort(p, kind="stable")
    steps = np.asarray(p)[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return [float(value) for value in adjusted]


class At(NamedTuple):
    """Client means of the metric after one round.

    Attributes:
        test: on the test split.
        round: its number.
        validation: on the validation split, after the same round; None where nothing defines it.
    """

    test: float
    round: int
    validation: float | None = None


@dataclass(frozen=True)
class BestRounds:
    """The rounds that a run can be summed up by; None where no test samples define the metric.

    Attributes:
        last: client mean in the last round.
        best_validation: client mean in the round of the best client mean on validation, chosen without test data. Round
            0 is the model before any training, so it is chosen only where no later round can be.
        best_test: the papers' BMCTA: the best client mean over rounds. Selected on test data, so optimistic.
        best_test_pooled: the APPLE code's BTA: the best value over all samples. Optimistic likewise; None for a metric
            that is no mean over samples.
        chosen_by: what the round of ``best_validation`` was chosen by: the metric, or the loss where no client's
            validation samples define the metric in any round that could be chosen.
    """

    last: At | None
    best_validation: At | None
    best_test: At | None
    best_test_pooled: At | None
    chosen_by: str | None = None


def best_rounds(
    rounds: Sequence[int],
    test: Sequence[Values],
    samples: Sequence[int],
    validation: Sequence[Values] | None = None,
    metric: Metric = ACCURACY,
    validation_loss: Sequence[Values] | None = None,
) -> BestRounds:
    """Find the last and the best rounds; of equally good ones the first.

    Args:
        rounds: (R,) numbers of the rounds that were evaluated.
        test: (R, n) the metric of each client after each of them.
        samples: (n,) test samples of each client.
        validation: (R, n) the metric on the clients' validation samples, where there are any.
        metric: what the values are.
        validation_loss: (R, n) the loss there, which chooses where the metric is undefined throughout.
    """
    grid = (len(rounds), len(samples))

    def table(values: Sequence[Values] | None) -> Array:
        return np.full(grid, np.nan) if values is None else np.array(values, dtype=float).reshape(grid)

    values = table(test)
    sign, means, pooled = 1 if metric.higher else -1, row_means(values), row_means(values, samples)
    held_out, losses = table(validation), table(validation_loss)
    tested = [
        At(float(mean), int(number), _mean(own)) for number, mean, own in zip(rounds, means, held_out, strict=True)
    ]
    points = [
        Point(at.round, at.validation, _mean(loss))
        for at, loss in zip(tested, losses, strict=True)
        if not np.isnan(at.test)
    ]
    found = best(points, metric) or best(points, metric, least=0)
    return BestRounds(
        last=_highest(tested, rounds),
        best_validation=next((at for at in tested if found and at.round == found.round), None),
        best_test=_highest(tested, sign * means),
        best_test_pooled=_highest([At(float(p), at.round) for p, at in zip(pooled, tested, strict=True)], sign * pooled)
        if metric.pools
        else None,
        chosen_by=found.metric.name if found else None,
    )


def _mean(values: Array) -> float | None:
    """The mean of what is defined, to the bit as the rounds of a run take it."""
    return mean_of_known(values[~np.isnan(values)])


def _highest(tested: Sequence[At], scores: ArrayLike) -> At | None:
    """That of the highest score, of equal ones the first, among those that have a test value."""
    score = np.where([np.isnan(at.test) for at in tested], np.nan, np.asarray(scores, dtype=float))
    return None if np.isnan(score).all() else tested[int(np.nanargmax(score))]

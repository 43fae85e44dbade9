"""Summaries over clients and rounds, and comparisons of two methods.

A client without samples has the value None (NaN inside arrays) and is ignored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pomona.metrics.best_round import Point, best
from pomona.metrics.intervals import CONFIDENCE, Interval
from pomona.metrics.metric import ACCURACY, Metric
from pomona.metrics.nan_safe import Array, defined, mean_of_known, row_means

MIN_CLIENTS = 5
"""Minimum number of clients for an interval over clients: two that happen to agree would give it no
width.
"""
Values = Sequence[float | None] | Array


def summarize(values: Values, samples: Sequence[int], metric: Metric = ACCURACY) -> dict[str, Any]:
    """Summarise one value per client; None for undefined statistics.

    The keys:

    - ``clients``: number of clients with a value.
    - ``mean``: unweighted mean over clients; ``interval``: its 95 % confidence interval by
      Student's t, for other clients like these, limited to the metric's range; None below
      ``MIN_CLIENTS`` clients.
    - ``pooled``: mean over samples; None for a metric that is not a mean over samples.
    - ``std``: over clients, with ddof = 1.
    - ``worst``: the worst client's value; ``percentile_10``: the 10th percentile from the worst
      client, with linear interpolation.

    Args:
        values: (n,) one per client.
        samples: (n,) number of samples of each value.
        metric: of the values.
    """
    array = np.array(values, dtype=float)
    present = array[~np.isnan(array)]
    return {
        "clients": len(present),
        "mean": defined(row_means(array[np.newaxis])[0]),
        "interval": _interval(present, metric),
        "pooled": defined(row_means(array[np.newaxis], samples)[0]) if metric.pools else None,
        "std": float(present.std(ddof=1)) if len(present) > 1 else None,
        "worst": metric.worst(present.tolist()),
        "percentile_10": float(np.percentile(present, 10 if metric.higher else 90))
        if len(present)
        else None,
    }


def _interval(values: Array, metric: Metric) -> Interval:
    if len(values) < MIN_CLIENTS:
        return None
    # late, for silo processes: scipy.stats takes a second to import
    from scipy.special import stdtrit

    n = len(values)
    margin = stdtrit(n - 1, (1 + CONFIDENCE) / 2) * values.std(ddof=1) / n**0.5
    limits = np.clip([values.mean() - margin, values.mean() + margin], metric.low, metric.high)
    return [float(limits[0]), float(limits[1])]


class Spread(NamedTuple):
    """Mean, standard deviation (ddof = 1; None for one value), number of values."""

    mean: float
    std: float | None
    n: int


def spread(values: Sequence[float | None]) -> Spread | None:
    """Return mean and standard deviation of the values that are not None; None if there are
    none.
    """
    present = [v for v in values if v is not None]
    if not present:
        return None
    std = float(np.std(present, ddof=1)) if len(present) > 1 else None
    return Spread(float(np.mean(present)), std, len(present))


class Signed(NamedTuple):
    """Wilcoxon's test: the smaller sum of signed ranks, the two-sided p-value, the number of
    different pairs.
    """

    statistic: float
    p: float
    pairs: int


def wilcoxon(first: Values, second: Values) -> Signed | None:
    """Compare two methods on the same clients with Wilcoxon's two-sided signed-rank test.

    Equal pairs (Wilcoxon 1945) and clients without a value are dropped. Differences are rounded to
    12 decimals, so that ties do not depend on the last bits. SciPy chooses between the exact
    distribution and the normal approximation with tie correction. None if all pairs are equal.
    """
    difference = np.round(np.array(first, dtype=float) - np.array(second, dtype=float), 12)
    difference = difference[~np.isnan(difference) & (difference != 0)]
    if not len(difference):
        return None
    from scipy import stats  # imported late: half a second in every silo process

    test = stats.wilcoxon(difference, zero_method="wilcox", alternative="two-sided")
    return Signed(float(test.statistic), float(test.pvalue), len(difference))


def holm(p: Sequence[float]) -> list[float]:
    """Adjust p-values for multiple tests, step-down (Holm 1979); compare each with the significance
    level itself.
    """
    order = np.argsort(p, kind="stable")
    steps = np.asarray(p)[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return [float(value) for value in adjusted]


class RoundScore(NamedTuple):
    """Client means of the metric after one round.

    Attributes:
        test: on the test split.
        round: its number.
        validation: on the validation split, after the same round; None if undefined.
    """

    test: float
    round: int
    validation: float | None = None


@dataclass(frozen=True)
class BestRounds:
    """Rounds that summarise a run; None if no test samples define the metric.

    Round 0, the untrained model, is the best only if no later round can be: on validation and on
    test data, as in the choice of the models that a run keeps.

    Attributes:
        last: client mean in the last round.
        best_validation: client mean in the best validation round, chosen without test data.
        best_test: the papers' BMCTA: the best client mean over rounds. Selected on test data, so
            optimistic.
        best_test_pooled: the APPLE code's BTA: the best value over all samples. Also optimistic;
            None for a metric that is not a mean over samples.
        chosen_by: criterion for the round of ``best_validation``: the metric, or the loss if no
            client's validation samples define the metric in any eligible round.
    """

    last: RoundScore | None
    best_validation: RoundScore | None
    best_test: RoundScore | None
    best_test_pooled: RoundScore | None
    chosen_by: str | None = None


def best_rounds(
    rounds: Sequence[int],
    test: Sequence[Values],
    samples: Sequence[int],
    validation: Sequence[Values] | None,
    metric: Metric = ACCURACY,
    validation_loss: Sequence[Values] | None = None,
) -> BestRounds:
    """Find the last and the best rounds, the first in case of ties.

    Args:
        rounds: (R,) numbers of the evaluated rounds.
        test: (R, n) the metric of each client after each of them.
        samples: (n,) test samples of each client.
        validation: (R, n) the metric on the clients' validation samples, if any.
        metric: of the values.
        validation_loss: (R, n) the validation loss, used if the metric is undefined throughout.
    """
    grid = (len(rounds), len(samples))

    def table(values: Sequence[Values] | None) -> Array:
        return (
            np.full(grid, np.nan) if values is None else np.array(values, dtype=float).reshape(grid)
        )

    values = table(test)
    sign, means, pooled = 1 if metric.higher else -1, row_means(values), row_means(values, samples)
    validation_values, losses = table(validation), table(validation_loss)
    # the mean of the defined values, to the bit that of a run's rounds
    tested = [
        RoundScore(float(mean), int(number), mean_of_known(scores[~np.isnan(scores)]))
        for number, mean, scores in zip(rounds, means, validation_values, strict=True)
    ]
    points = [
        Point.of(entry.round, _by_client(scores), _by_client(loss))
        for entry, scores, loss in zip(tested, validation_values, losses, strict=True)
        if not np.isnan(entry.test)
    ]
    best_round = best(points, metric) or best(points, metric, first_round=0)
    by_round = {entry.round: entry for entry in tested}
    chosen, chosen_by = (
        (by_round[best_round.round], best_round.metric.name) if best_round else (None, None)
    )
    return BestRounds(
        last=_highest(tested, rounds),
        best_validation=chosen,
        best_test=_highest(tested, sign * means),
        best_test_pooled=_highest(
            [RoundScore(float(p), entry.round) for p, entry in zip(pooled, tested, strict=True)],
            sign * pooled,
        )
        if metric.pools
        else None,
        chosen_by=chosen_by,
    )


def _by_client(values: Array) -> dict[int, float | None]:
    """Return each client's number; None where it is undefined."""
    return dict(enumerate(map(defined, values)))


def _highest(tested: Sequence[RoundScore], scores: ArrayLike) -> RoundScore | None:
    """Return the first with the highest score among those with a test value, after round 0 if there
    are any.
    """
    score = np.where(
        [np.isnan(entry.test) for entry in tested], np.nan, np.asarray(scores, dtype=float)
    )
    later = np.array([entry.round > 0 for entry in tested], dtype=bool)
    if not np.isnan(score[later]).all():
        score = np.where(later, score, np.nan)
    return None if np.isnan(score).all() else tested[int(np.nanargmax(score))]

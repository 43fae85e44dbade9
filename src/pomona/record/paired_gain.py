"""Gain of a run over another on the same test samples, with paired intervals and a verdict.

Both runs answer the same samples, so every resample holds the answers of both: what makes a sample hard for both
cancels out. Clients are the members that there are, not a draw from others: an interval over clients says how certain
their mean gain is given other test samples, not what another federation would gain.

Rescaled bootstrap: in each stratum of m samples m - 1 are drawn, each counting m / (m - 1), which makes the variance of
a mean unbiased however few there are (Rao and Wu, "Resampling inference with complex survey data", JASA 1988).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pomona.core.rng import stream
from pomona.metrics.bootstrap import CONFIDENCE, blocks, rescaled
from pomona.metrics.metric import LOSS, Metric
from pomona.metrics.nan_safe import Array
from pomona.record.result import Result
from pomona.tasks import Task, task_of
from pomona.tasks.scores import measured

RESAMPLES = 1000
LEAST = 6
"""Fewer pairs that differ decide nothing at 5 %: five that all agree do so by chance in 2 of 32 cases (a sign test)."""

Verdict = Literal["better", "worse", "no difference that this data can show"]


@dataclass(frozen=True)
class Gain:
    """A difference in a metric, its sign turned where less is better: more than 0 is better.

    Attributes:
        value: of all samples, in the unit of the metric; of accuracies, 0.01 is a percentage point.
        low, high: 95 % interval; it reaches 0 where fewer than ``LEAST`` pairs bear on the difference.
        pairs: test samples that both answered.
    """

    value: float
    low: float
    high: float
    pairs: int

    @property
    def verdict(self) -> Verdict:
        """Only what the interval supports."""
        if self.low <= 0 <= self.high:
            return "no difference that this data can show"
        return "better" if self.low > 0 else "worse"


@dataclass(frozen=True)
class Resampled:
    """Gain of one client: of all its samples, and of resamples of them.

    Attributes:
        value: of all samples.
        resamples: (R,) float64, NaN where a resample does not define the metric.
        pairs: test samples that both answered.
        informative: how many of the pairs bear on the difference.
    """

    value: float
    resamples: Array
    pairs: int
    informative: int


def gains(run: Result, base: Result, resamples: int = RESAMPLES) -> tuple[list[Gain | None], Gain | None]:
    """Gains of a run over another in its metric: one a client in id order, and their mean.

    >>> import pomona
    >>> shared = {"clients": 3, "rounds": 1, "lr": 0.1}
    >>> run, alone = (pomona.run(pomona.Config(method=method, **shared)) for method in ("fedavg-ft", "separate"))
    >>> clients, mean = pomona.gains(run, alone)
    >>> len(clients), mean.low <= mean.value <= mean.high, mean.verdict
    (3, True, '...')

    None for a client where it is undefined: no test samples, no predictions on record, other samples in the other run,
    or a metric that they do not define; the mean is over the clients that define it. What a network minimised cannot be
    told from predictions where the loss is a user's own or the targets are numbers (ask for ``mse``): all None.

    Raises:
        DataError: a file of predictions is damaged.
    """
    metric, task, n = run.metric, _task(run), len(run.about.get("clients") or ())
    minimised = _standard(run) and _standard(base) and not task.standardised
    if metric.name not in task.measures or (metric == LOSS and not minimised):
        return [None] * n, None
    each = [_of_client(metric, task, run, base, client, resamples) for client in range(n)]
    known = [draws for draws in each if draws]
    return [mean_gain([draws]) if draws else None for draws in each], mean_gain(known) if known else None


def _task(run: Result) -> Task:
    return task_of(run.about.get("targets", "classes"), run.about.get("edges") or ())


def _standard(run: Result) -> bool:
    return bool((run.config.get("model") or {}).get("loss", "auto") == "auto")


def _of_client(metric: Metric, task: Task, run: Result, base: Result, client: int, resamples: int) -> Resampled | None:
    a, b = run.predictions(client), base.predictions(client)
    if a is None or b is None or a[0].shape != b[0].shape or not np.array_equal(a[1], b[1]):
        return None
    return paired_gain(metric, task, a[0], b[0], a[1], stream(0, "gain", client), resamples)


def paired_gain(
    metric: Metric,
    task: Task,
    outputs_a: NDArray[Any],
    outputs_b: NDArray[Any],
    targets: NDArray[Any],
    generator: np.random.Generator,
    resamples: int = RESAMPLES,
) -> Resampled | None:
    """Gain of a over b on one client's samples; None if they do not define the metric.

    Args:
        metric: what both are judged by.
        task: what the targets are.
        outputs_a: (n, K) as a network gives them.
        outputs_b: (n, K) of the other.
        targets: (n,) or (n, K).
        generator: what the bootstrap draws from.
        resamples: their number; within classes for a metric that is no mean over samples.
    """
    a, b = task.natural(outputs_a), task.natural(outputs_b)
    sign = 1 if metric.higher else -1
    strata = np.zeros(len(targets), np.int64) if metric.pools else task.strata(targets)

    def difference(weights: Array) -> Array:
        return sign * (measured(metric, task, a, targets, weights) - measured(metric, task, b, targets, weights))

    value = float(difference(np.ones((1, len(targets))))[0])
    if isnan(value):
        return None
    drawn = [difference(rescaled(strata, size, generator)) for size in blocks(len(targets), resamples)]
    return Resampled(value, np.concatenate(drawn), len(targets), _informative(metric, task, a, b, targets))


def _informative(metric: Metric, task: Task, a: Array, b: Array, targets: NDArray[Any]) -> int:
    """Number of informative pairs: those that differ in a mean over samples, else what the task says."""
    if metric.pools:
        each: Any = task.measures[metric.name]
        return int((each(a, targets) != each(b, targets)).sum())
    if task.informative is None or np.array_equal(a, b):
        return int((a != b).reshape(len(a), -1).any(axis=1).sum())
    return task.informative(targets)


def mean_gain(known: Sequence[Resampled]) -> Gain:
    """The mean of some clients' gains, each client counting once."""
    value = float(np.mean([draws.value for draws in known]))
    means = np.mean([draws.resamples for draws in known], axis=0)
    defined = means[~np.isnan(means)]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(defined, [tail, 1 - tail]) if len(defined) else (value, value)
    if sum(draws.informative for draws in known) < LEAST:
        low, high = min(low, 0.0), max(high, 0.0)
    return Gain(value, float(low), float(high), sum(draws.pairs for draws in known))

"""Early stopping: the round that is best on validation so far, and how many evaluations have not been better since."""

from collections.abc import Sequence
from typing import NamedTuple

from pomona.metrics.metric import LOSS, Metric


class Point(NamedTuple):
    """An evaluation on validation after a round: means over clients; None where nothing defines them."""

    round: int
    value: float | None
    loss: float | None


class Best(NamedTuple):
    """The best round so far, its mean in ``metric``, and the number of evaluations after it."""

    round: int
    value: float
    metric: Metric
    since: int


def best(curve: Sequence[Point], metric: Metric, min_gain: float = 0.0) -> Best | None:
    """Find the best round of a curve; of equally good ones the first. None before there is any.

    As in a run's summary, round 0 (no training) does not count, and the loss decides where the metric is undefined in
    all rounds.

    Args:
        curve: by round.
        metric: what the values are.
        min_gain: a later round is better if it exceeds the best by more than this.
    """
    by = metric if any(point.value is not None for point in curve) else LOSS
    found: Best | None = None
    for point in curve:
        mean = point.value if by == metric else point.loss
        if point.round < 1:
            continue
        gain = None if mean is None or found is None else (mean - found.value) * (1 if by.higher else -1)
        if mean is not None and (gain is None or gain > min_gain):
            found = Best(point.round, mean, by, 0)
        elif found:
            found = found._replace(since=found.since + 1)
    return found


def reason(found: Best, last: int) -> str:
    """A line that says why a run ended after round ``last``, before all were done."""
    what = f"the clients' mean {found.metric.title} on validation was best after round {found.round}"
    return f"stopped after round {last}: {what}, {found.metric.text(found.value)}"

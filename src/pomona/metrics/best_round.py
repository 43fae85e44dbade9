"""The best validation round, by one rule for early stopping, summaries, benches and saved
models.
"""

from collections.abc import Iterable
from typing import NamedTuple

from pomona.metrics.metric import LOSS, Metric


class Point(NamedTuple):
    """Validation results after a round: one client's, or means over clients; None if undefined."""

    round: int
    value: float | None
    loss: float | None


class Best(NamedTuple):
    """The best round so far, its value of ``metric``, and the number of later evaluations."""

    round: int
    value: float
    metric: Metric
    since: int


def best(
    curve: Iterable[Point],
    metric: Metric,
    min_gain: float = 0.0,
    *,
    own: bool = False,
    least: int = 1,
) -> Best | None:
    """Find the best round of a curve, the first in case of ties; None if there is none yet.

    The metric or the loss is chosen once for the whole curve, and only rounds with that number are
    compared. For means over clients the metric is used unless it is undefined in all rounds; with
    few participants, a round may have no samples that define it. A client's ``own`` samples are the
    same in all rounds, and the metric is used unless it is undefined in any round: for masks
    without foreground, Dice is undefined where the model is right and 0 where it is wrong, so that
    rounds without it are better, and the loss orders them.

    The best round of a longer curve follows from the best of its beginning and the points after it.

    Args:
        curve: by round.
        metric: of the values.
        min_gain: a later round is better if it exceeds the best by more than this.
        own: whether the points are one client's, not means over clients.
        least: the first round to consider; round 0 is the untrained model.
    """
    points = [point for point in curve if point.round >= least]
    by, numbers = _compared(points, metric, own)
    found: Best | None = None
    for point, number in zip(points, numbers, strict=True):
        if number is not None and (
            found is None or by.goodness(number) - by.goodness(found.value) > min_gain
        ):
            found = Best(point.round, number, by, 0)
        elif found:
            found = found._replace(since=found.since + 1)
    return found


def _compared(points: list[Point], metric: Metric, own: bool) -> tuple[Metric, list[float | None]]:
    """Return what the points are compared by, and each point's number of it; None for points that
    do not count.
    """
    lacking = any(point.value is None and point.loss is not None for point in points)
    if lacking and (own or all(point.value is None for point in points)):
        return LOSS, [point.loss if point.value is None else None for point in points]
    return metric, [point.value for point in points]


def reason(found: Best, last: int) -> str:
    """Explain in one line why a run ended early, after round ``last``."""
    what = (
        f"the clients' mean {found.metric.title} on validation was best after round {found.round}"
    )
    return f"stopped after round {last}: {what}, {found.metric.text(found.value)}"

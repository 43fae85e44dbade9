"""The best round on validation, by one rule for early stopping, summaries, benches and the models that are kept."""

from collections.abc import Iterable
from typing import NamedTuple

from pomona.metrics.metric import LOSS, Metric


class Point(NamedTuple):
    """An evaluation on validation after a round: a client's, or means over clients; None where nothing defines them."""

    round: int
    value: float | None
    loss: float | None


class Best(NamedTuple):
    """The best round so far, its value in ``metric``, and the number of evaluations after it."""

    round: int
    value: float
    metric: Metric
    since: int


def best(
    curve: Iterable[Point], metric: Metric, min_gain: float = 0.0, *, own: bool = False, least: int = 1
) -> Best | None:
    """Find the best round of a curve; of equally good ones the first. None before there is any.

    Whether the metric or the loss decides is one choice for the whole curve, and only rounds that have a number of that
    kind are compared. Of means over clients the metric decides, unless it is undefined in all rounds: where few clients
    take part, a round's may have no samples that define it. A client's ``own`` samples are the same in all rounds, and
    the metric decides unless it is undefined in some: masks without foreground have no Dice where the model is right,
    and a Dice of 0 wherever it is not, so that the rounds without one are the better ones, and the loss orders them.

    The best round of a longer curve follows from that of its beginning and the points after it.

    Args:
        curve: by round.
        metric: what the values are.
        min_gain: a later round is better if it exceeds the best by more than this.
        own: the points are one client's, not means over clients.
        least: the first round that counts; round 0 is the model without training.
    """
    points = [point for point in curve if point.round >= least]
    valued = any(point.value is not None for point in points)
    lacking = any(point.value is None and point.loss is not None for point in points)
    by_loss = lacking and (own or not valued)
    by = LOSS if by_loss else metric
    found: Best | None = None
    for point in points:
        mean = (point.loss if point.value is None else None) if by_loss else point.value
        gain = None if mean is None or found is None else by.goodness(mean) - by.goodness(found.value)
        if mean is not None and (gain is None or gain > min_gain):
            found = Best(point.round, mean, by, 0)
        elif found:
            found = found._replace(since=found.since + 1)
    return found


def reason(found: Best, last: int) -> str:
    """A line that says why a run ended after round ``last``, before all were done."""
    what = f"the clients' mean {found.metric.title} on validation was best after round {found.round}"
    return f"stopped after round {last}: {what}, {found.metric.text(found.value)}"

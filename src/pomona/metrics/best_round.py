"""The best validation round, by one rule for early stopping, summaries, benches and saved
models.

A round is compared with the best before it, by the means over clients, unless one client alone
turns them against the others.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from types import MappingProxyType
from typing import NamedTuple, Self

from pomona.metrics.metric import LOSS, Metric
from pomona.metrics.nan_safe import mean_of_known

Scores = Mapping[int, float | None]
NOBODY: Scores = MappingProxyType({})
FEWEST = 3
"""Clients of which one can be outvoted."""
FAR = 2.0
"""In rounds of honest clients, whose scores on few samples jump, 1 would outvote some of them."""


@dataclass(frozen=True)
class Outvoted:
    """A client whose scores do not decide as reported.

    Attributes:
        gain: as reported, positive if better; None for a client without a score in one of both
            rounds.
        low, high: the range of the others' gains, to which its own is limited.
    """

    gain: float | None
    low: float
    high: float


def outvoted(
    earlier: Mapping[int, float | None],
    later: Mapping[int, float | None],
    min_gain: float,
    reported: bool,
) -> dict[int, Outvoted]:
    """Return the clients that turn a comparison of two rounds against the others; none if the means
    stand.

    Clients report their scores themselves, and one false score can turn a mean. Each gain, from one
    round to the other, is limited to the range of the others'; if the mean then decides otherwise
    and two thirds of the others agree, the one that turned it is outvoted. So is one far below the
    others, whose mean is a gain: in doubt, training goes on. A client with a score in one round
    only does not count, as long as more than half of the clients have both.

    Args:
        earlier: each client's score in the earlier round, more is better; None for none.
        later: the same in the later one.
        min_gain: the later round is better if the mean gain exceeds this.
        reported: whether it is by the means over all clients.
    """
    old, new = _defined(earlier), _defined(later)
    gains = {client: score - old[client] for client, score in new.items() if client in old}
    clients = old.keys() | new.keys()
    missing = sorted(clients - gains.keys())
    if len(clients) < FEWEST or 2 * len(gains) <= len(clients):
        return {}
    low, *peers = sorted(gains, key=lambda client: -gains[client] if reported else gains[client])
    voters = [gains[client] for client in ([low, *peers] if missing else peers)]
    if not (
        _turned(list(gains.values()), voters, min_gain, reported)
        or (not reported and not missing and _far(gains[low], voters, min_gain))
    ):
        return {}
    span = min(voters), max(voters)
    absent = {client: Outvoted(None, *span) for client in missing}
    return absent or {low: Outvoted(gains[low], *span)}


def _turned(gains: list[float], voters: list[float], min_gain: float, reported: bool) -> bool:
    """Return whether limited gains decide otherwise, and most voters agree."""
    better = fmean(_limited(gains)) > min_gain
    agreeing = sum(gain >= 0 if better else gain < 0 for gain in voters)
    return better != reported and 3 * agreeing >= 2 * len(voters)


def _far(gain: float, voters: list[float], min_gain: float) -> bool:
    """Return whether a gain is far below those of others, whose mean is a gain."""
    usual = max(map(abs, voters)) + max(voters) - min(voters)
    return fmean(voters) > min_gain and min(voters) - gain > FAR * usual


def _limited(gains: list[float]) -> list[float]:
    """Return each gain, limited to the range of the others; of two, both as they are."""
    order = sorted(gains)
    low, high = sorted((order[1], order[-2]))
    return [min(max(gain, low), high) for gain in gains]


def _defined(scores: Mapping[int, float | None]) -> dict[int, float]:
    return {client: score for client, score in scores.items() if score is not None}


class Point(NamedTuple):
    """Validation results after a round: one client's, or means over clients; None if undefined.

    ``values`` and ``losses`` are those of each client, empty if they are not known.
    """

    round: int
    value: float | None
    loss: float | None
    values: Scores = NOBODY
    losses: Scores = NOBODY

    @classmethod
    def of(cls, number: int, values: Scores, losses: Scores) -> Self:
        """Return the means over clients of a round, with each client's."""
        means = mean_of_known(values.values()), mean_of_known(losses.values())
        return cls(number, *means, values, losses)


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
    single_client: bool = False,
    first_round: int = 1,
) -> Best | None:
    """Find the best round of a curve, the first in case of ties; None if there is none yet.

    The metric or the loss is chosen once for the whole curve, and only rounds with that number are
    compared. For means over clients the metric is used unless it is undefined in all rounds; with
    few participants, a round may have no samples that define it. The samples of a
    ``single_client`` are the same in all rounds, and the metric is used unless it is undefined in
    any round: for masks without foreground, Dice is undefined where the model is right and 0 where
    it is wrong, so that rounds without it are better, and the loss orders them.

    The best round of a longer curve follows from the best of its beginning and the points after it.

    Args:
        curve: by round.
        metric: of the values.
        min_gain: a later round is better if it exceeds the best by more than this.
        single_client: whether the points are one client's, not means over clients.
        first_round: the first round to consider; round 0 is the untrained model.
    """
    rounds = [
        *_rounds(curve, metric, min_gain, single_client=single_client, first_round=first_round)
    ]
    return rounds[-1][0] if rounds else None


def overruled(curve: Iterable[Point], metric: Metric, min_gain: float = 0.0) -> dict[int, Outvoted]:
    """Return the clients that turn the means over clients against the others in the comparison of
    the last round with the best before.
    """
    rounds = [*_rounds(curve, metric, min_gain)]
    return dict(rounds[-1][1]) if rounds else {}


def _rounds(
    curve: Iterable[Point],
    metric: Metric,
    min_gain: float,
    *,
    single_client: bool = False,
    first_round: int = 1,
) -> Iterator[tuple[Best | None, Mapping[int, Outvoted]]]:
    """Yield for each round of a curve the best so far, and the clients that are outvoted in its
    comparison.
    """
    points = [point for point in curve if point.round >= first_round]
    criterion, numbers = _compared(points, metric, single_client)
    best_so_far: Best | None = None
    top: Point | None = None
    for point, number in zip(points, numbers, strict=True):
        minority: Mapping[int, Outvoted] = {}
        if best_so_far:
            best_so_far = best_so_far._replace(since=best_so_far.since + 1)
        if number is not None:
            better, minority = _better(top, point, criterion, min_gain)
            if better:
                best_so_far, top = Best(point.round, number, criterion, 0), point
        yield best_so_far, minority


def _better(
    top: Point | None, point: Point, criterion: Metric, min_gain: float
) -> tuple[bool, Mapping[int, Outvoted]]:
    """Return whether a round is better than the best before, and the clients that are outvoted."""
    if top is None:
        return True, {}
    reported = criterion.goodness(_number(point)) - criterion.goodness(_number(top)) > min_gain
    minority = outvoted(_scores(top, criterion), _scores(point, criterion), min_gain, reported)
    return reported != bool(minority), minority


def _number(point: Point) -> float:
    """Return the mean by which a point is compared; the loss where the metric is undefined."""
    number = point.loss if point.value is None else point.value
    assert number is not None  # such points are not compared
    return number


def _scores(point: Point, criterion: Metric) -> Scores:
    """Return how good each client's number of the kind is that ``_number`` returns."""
    scores = point.losses if point.value is None else point.values
    return {i: None if score is None else criterion.goodness(score) for i, score in scores.items()}


def _compared(
    points: list[Point], metric: Metric, single_client: bool
) -> tuple[Metric, list[float | None]]:
    """Return what the points are compared by, and each point's number of it; None for points that
    do not count.
    """
    incomplete = any(point.value is None and point.loss is not None for point in points)
    if incomplete and (single_client or all(point.value is None for point in points)):
        return LOSS, [point.loss if point.value is None else None for point in points]
    return metric, [point.value for point in points]


def reason(best_round: Best, last: int) -> str:
    """Explain in one line why a run ended early, after round ``last``."""
    metric = best_round.metric
    return (
        f"stopped after round {last}: the clients' mean {metric.title} on validation was "
        f"{metric.text(best_round.value)} after round {best_round.round} and has not improved by "
        "more than stop.min_gain since"
    )

"""Rows of a record (rounds, evaluations), and of its views ``rounds.csv`` and ``clients.csv``.

Creating a row checks nothing; ``record.events`` checks one from a file by the types of its fields.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import PlainValidator

from pomona.core.bounds import HUGE, ClientId, Count, Label, Line, Measured, Number, Seconds
from pomona.metrics.best_round import Point
from pomona.metrics.metric import METRICS, Metric, Score, is_own, metric_named
from pomona.metrics.nan_safe import mean_of_known


def _array(value: Any) -> NDArray[np.float64]:
    """Convert nested lists of equal lengths to an array."""
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        raise ValueError("must be lists of equal lengths") from None
    if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
        raise ValueError("must be finite numbers")
    if array.size and not max(abs(array.max()), abs(array.min())) <= HUGE:
        raise ValueError(f"must be numbers of at most {HUGE:g}")
    return array.astype(np.float64)


Array = Annotated[NDArray[np.float64], PlainValidator(_array)]
Values = tuple[Measured | None, ...]


@dataclass(frozen=True)
class Evaluation:
    """The scores of clients for one named model on one split in a round.

    There is a column for each field of a ``Score``. The round of a received model is that of the
    uploads it was built from; round 0 is the initial model. ``value`` is the run's ``metric``; the
    accuracy, else the loss, if no metric is named. ``interval`` is empty if none were computed.

    >>> two = {"clients": (0, 1), "samples": (10, 30), "loss": (0.9, 0.1), "accuracy": (0.5, 1.0)}
    >>> evaluation = Evaluation(round=3, model="personal", when="trained", split="test", **two)
    >>> evaluation.mean, evaluation.pooled, evaluation.worst
    (0.75, 0.875, 0.5)
    """

    round: Number
    model: Label
    when: Label
    split: Label
    clients: tuple[ClientId, ...]
    samples: tuple[Count, ...]
    loss: Values
    accuracy: Values
    value: Values = ()
    metric: Line = ""
    interval: tuple[tuple[Measured, Measured] | None, ...] = ()

    def __post_init__(self) -> None:
        if self.metric not in METRICS and not is_own(self.metric):
            has_accuracy = any(a is not None for a in self.accuracy)
            object.__setattr__(self, "metric", "accuracy" if has_accuracy else "loss")
            object.__setattr__(self, "value", self.accuracy if has_accuracy else self.loss)

    @classmethod
    def from_scores(cls, number: int, scores: Mapping[int, Score], metric: Metric) -> "Evaluation":
        """Return the evaluation of a round from scores, by client, for one model on one split."""
        values = list(scores.values())
        intervals = tuple(score.interval for score in values)
        return cls(
            number,
            *values[0].key,
            tuple(scores),
            tuple(score.samples for score in values),
            tuple(score.loss for score in values),
            tuple(score.accuracy for score in values),
            tuple(score.value for score in values),
            metric.name,
            intervals if any(intervals) else (),
        )

    @property
    def value_metric(self) -> Metric:
        """Metric of ``value``."""
        return metric_named(self.metric)

    @property
    def key(self) -> tuple[str, str, str]:
        """Key (model, stage, split) of a curve over rounds."""
        return (self.model, self.when, self.split)

    def by_client(self, values: Sequence[Any], clients: Iterable[int]) -> list[Any]:
        """Return values of ``clients`` from those of ``self.clients``; None for one that was not
        evaluated.
        """
        values_by_client = dict(zip(self.clients, values, strict=True))
        return [values_by_client.get(client) for client in clients]

    @property
    def mean(self) -> float | None:
        """Unweighted mean of the metric over clients."""
        return mean_of_known(self.value)

    @property
    def point(self) -> Point:
        """The round's point of a curve, for the choice of the best round."""
        values, losses = (
            dict(zip(self.clients, column, strict=True)) for column in (self.value, self.loss)
        )
        return Point.of(self.round, values, losses)

    @property
    def pooled(self) -> float | None:
        """Mean of the metric over all samples; None if it is not a mean over samples."""
        pairs = [(v, s) for v, s in zip(self.value, self.samples, strict=True) if v is not None]
        total = sum(s for _, s in pairs)
        return sum(v * s for v, s in pairs) / total if total and self.value_metric.pools else None

    @property
    def worst(self) -> float | None:
        """Metric of the worst client."""
        return self.value_metric.worst(self.value)

    @property
    def accuracy_mean(self) -> float | None:
        """Unweighted mean accuracy over clients, as in most papers, whatever the metric."""
        return mean_of_known(self.accuracy)


@dataclass(frozen=True)
class RoundRow:
    """One round. Per cohort client: mean training loss, bytes received and sent.

    ``refused``: one line with the reason for each client whose round was not used; ``limited``: for
    each that counted for less.
    """

    round: Number
    seconds: Seconds
    cohort: tuple[ClientId, ...]
    loss: Values
    bytes_down: tuple[Count, ...]
    bytes_up: tuple[Count, ...]
    info: Mapping[Label, Array] = field(default_factory=dict)
    refused: tuple[Line, ...] = ()
    limited: tuple[Line, ...] = ()

    def placed(self, name: str, clients: int) -> NDArray[np.float64]:
        """Return a quantity in ``info`` by client, (clients, ...); NaN for those that took no
        part.
        """
        values = self.info[name]
        rows = np.full((clients, *values.shape[1:]), np.nan)
        rows[list(self.cohort)] = values
        return rows


def round_rows(
    rounds: Sequence[RoundRow], evaluations: Sequence[Evaluation]
) -> Iterator[dict[str, Any]]:
    """Yield a row for each evaluation, with the training loss and the traffic of its round."""
    traffic = {r.round: r for r in rounds}
    for e in evaluations:
        row = traffic.get(e.round)
        yield {
            "round": e.round,
            "model": e.model,
            "when": e.when,
            "split": e.split,
            "metric": e.metric,
            "value_mean_over_clients": e.mean,
            "value_over_samples": e.pooled,
            "value_worst_client": e.worst,
            "accuracy_mean_over_clients": e.accuracy_mean,
            "clients": len(e.clients),
            "train_loss_mean_over_clients": mean_of_known(row.loss) if row else None,
            "bytes_down": sum(row.bytes_down) if row else None,
            "bytes_up": sum(row.bytes_up) if row else None,
            "seconds": row.seconds if row else None,
        }


def client_rows(
    names: Sequence[str],
    rounds: Sequence[RoundRow],
    evaluations: Sequence[Evaluation],
    unseen: Sequence[Evaluation],
) -> Iterator[dict[str, Any]]:
    """Yield a row for each client in each evaluation, unseen clients last; ``names`` of all
    clients.
    """
    never_trained = {c for e in unseen for c in e.clients}
    traffic = {
        (r.round, c): (down_bytes, up_bytes)
        for r in rounds
        for c, down_bytes, up_bytes in zip(r.cohort, r.bytes_down, r.bytes_up, strict=True)
    }
    for e in (*evaluations, *unseen):
        for client, samples, loss, accuracy, value in zip(
            e.clients, e.samples, e.loss, e.accuracy, e.value, strict=True
        ):
            down_bytes, up_bytes = traffic.get((e.round, client), (None, None))
            yield {
                "round": e.round,
                "client": client,
                "name": names[client],
                "unseen": client in never_trained,
                "model": e.model,
                "when": e.when,
                "split": e.split,
                "samples": samples,
                "loss": loss,
                "accuracy": accuracy,
                "metric": e.metric,
                "value": value,
                "bytes_down": down_bytes,
                "bytes_up": up_bytes,
            }

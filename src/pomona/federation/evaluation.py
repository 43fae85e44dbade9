"""Evaluations of named models: the last scores of each client, and the validation curve."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pomona.core.stop import Stop
from pomona.federation.exchange import Reply
from pomona.metrics.best_round import Best, Point, best
from pomona.metrics.metric import Metric
from pomona.metrics.nan_safe import mean_of_known
from pomona.record.rows import Evaluation


@dataclass
class ValidationCurve:
    """Means over clients on validation, by round, for early stopping.

    ``headline``: (model, when) of the method's headline model.
    """

    headline: tuple[str, str]
    metric: Metric
    stop: Stop
    _points: list[Point] = field(default_factory=list)

    def note(self, evaluation: Evaluation) -> None:
        """Add an evaluation, if it is one of that model on validation."""
        if evaluation.key == (*self.headline, "validation"):
            self._add(evaluation.round, evaluation.value, evaluation.loss)

    def restore(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Add the evaluations of a record."""
        for event in events:
            kind, key = event["event"], (event.get("model"), event.get("when"), event.get("split"))
            if kind == "evaluation" and key == (*self.headline, "validation"):
                self._add(event["round"], event["value"], event["loss"])

    def _add(self, number: int, value: Iterable[float | None], loss: Iterable[float | None]) -> None:
        self._points.append(Point(number, mean_of_known(value), mean_of_known(loss)))

    @property
    def best(self) -> Best | None:
        """The best round so far, as defined by ``stop``."""
        return best(self._points, self.metric, self.stop.min_gain)

    @property
    def best_round(self) -> int:
        """The best round so far, however small its gain; -1 if there is none."""
        found = best(self._points, self.metric)
        return found.round if found else -1

    @property
    def spent(self) -> bool:
        """Return whether early stopping's patience is exhausted."""
        patience, found = self.stop.patience, self.best
        return patience is not None and found is not None and found.since >= patience


class Known(NamedTuple):
    """A client's last scores of a named model on a split; None if its samples do not define them."""

    samples: int
    loss: float | None
    accuracy: float | None
    value: float | None
    interval: tuple[float, float] | None = None


@dataclass
class Scoreboard:
    """The last scores of each client, by (model, when, split); ``metric``: of the values."""

    metric: Metric
    _known: dict[tuple[str, str, str], dict[int, Known]] = field(default_factory=dict)

    def note(self, asked: Collection[int], replies: Sequence[Reply]) -> None:
        """Add the scores in replies; a score of a received model counts only while that model is current."""
        absent = set(asked) - {r.client for r in replies}
        for (_, when, _), per_client in self._known.items():
            if when == "received":
                for client in absent & per_client.keys():
                    del per_client[client]
        for reply in replies:
            for s in reply.scores:
                per_client = self._known.setdefault((s.model, s.when, s.split), {})
                per_client[reply.client] = Known(s.samples, s.loss, s.accuracy, s.value, s.interval)

    def evaluations(self, number: int, when: str, members: Sequence[int]) -> list[Evaluation]:
        """Return the known evaluations after round ``number`` of each named model, received or trained.

        For an absent client, the trained model is its last one; a client that never took part has none yet, and former
        members do not count.
        """
        found = []
        for (model, moment, split), per_client in self._known.items():
            clients = tuple(i for i in members if i in per_client)
            if moment == when and any(per_client[i].samples for i in clients):
                samples, loss, accuracy, value, sure = zip(*(per_client[c] for c in clients), strict=True)
                values = (samples, loss, accuracy, value, self.metric.name, sure if any(sure) else ())
                found.append(Evaluation(number, model, when, split, clients, *values))
        return found

    def unseen(self, number: int, reply: Reply) -> list[Evaluation]:
        """Return the evaluations of a client that did not train, without storing them."""
        return [
            Evaluation(number, s.model, s.when, s.split, (reply.client,), (s.samples,), *values, self.metric.name)
            for s in reply.scores
            if s.samples
            for values in [((s.loss,), (s.accuracy,), (s.value,))]
        ]

    def as_json(self) -> list[list[Any]]:
        """Return the scores as JSON for a checkpoint."""
        return [[*key, client, *values] for key, own in self._known.items() for client, values in own.items()]

    def restore(self, body: Iterable[Sequence[Any]]) -> None:
        """Restore the result of ``as_json``."""
        for model, when, split, client, *values in body:
            self._known.setdefault((model, when, split), {})[client] = Known(*values)

"""Evaluations of named models: the last scores of each client, and the evaluations that they make up."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pomona.federation.exchange import Reply
from pomona.metrics.metric import Metric
from pomona.record.rows import Evaluation


class Known(NamedTuple):
    """A client's last scores of a named model on a split; None where its samples do not define them."""

    samples: int
    loss: float | None
    accuracy: float | None
    value: float | None
    interval: tuple[float, float] | None = None


@dataclass
class Scoreboard:
    """The last scores of each client, by (model, when, split); ``metric``: what their values are."""

    metric: Metric
    _known: dict[tuple[str, str, str], dict[int, Known]] = field(default_factory=dict)

    def note(self, asked: Collection[int], replies: Sequence[Reply]) -> None:
        """Remember the scores in replies; a score of a received model counts only while that model is current."""
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
        """Return what is known after round ``number`` of each named model, received or trained.

        An absent client's trained model is the one it last had; a client that never took part has none yet, and one
        that is no member any more does not count.
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
        """Return the evaluations of a client that was never trained with; nothing is remembered."""
        return [
            Evaluation(number, s.model, s.when, s.split, (reply.client,), (s.samples,), *values, self.metric.name)
            for s in reply.scores
            if s.samples
            for values in [((s.loss,), (s.accuracy,), (s.value,))]
        ]

    def as_json(self) -> list[list[Any]]:
        """Return what a checkpoint notes."""
        return [[*key, client, *values] for key, own in self._known.items() for client, values in own.items()]

    def restore(self, body: Iterable[Sequence[Any]]) -> None:
        """Add what ``as_json`` returned."""
        for model, when, split, client, *values in body:
            self._known.setdefault((model, when, split), {})[client] = Known(*values)

"""Evaluations of named models: the last scores of each client, and the validation curve."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pomona.core.stop import Stop
from pomona.federation.exchange import Reply
from pomona.metrics.best_round import Best, Point, best
from pomona.metrics.metric import Metric
from pomona.metrics.nan_safe import mean_of_known
from pomona.metrics.score import Score
from pomona.record.rows import Evaluation


@dataclass
class ValidationCurve:
    """Means over clients on validation, by round, for early stopping.

    ``headline``: (model, when) of the method's headline model.
    """

    headline: tuple[str, str]
    metric: Metric
    stop: Stop | None
    _points: list[Point] = field(default_factory=list)

    def note(self, evaluation: Evaluation) -> None:
        """Add an evaluation, if it is one of that model on validation."""
        if evaluation.key == (*self.headline, "validation"):
            means = mean_of_known(evaluation.value), mean_of_known(evaluation.loss)
            self._points.append(Point(evaluation.round, *means))

    def restore(self, events: Iterable[tuple[str, Any]]) -> None:
        """Add the evaluations among the events of a record."""
        for kind, body in events:
            if kind == "evaluation":
                self.note(body)

    @property
    def best(self) -> Best | None:
        """The best round so far, as defined by ``stop``."""
        return best(self._points, self.metric, self.stop.min_gain if self.stop else 0.0)

    @property
    def best_round(self) -> int:
        """The best round so far, however small its gain; -1 if there is none."""
        found = best(self._points, self.metric)
        return found.round if found else -1

    @property
    def spent(self) -> bool:
        """Return whether early stopping's patience is exhausted."""
        found = self.best
        return self.stop is not None and found is not None and found.since >= self.stop.patience


@dataclass
class Scoreboard:
    """The last scores of each client, by (model, when, split); ``metric``: of the values."""

    metric: Metric
    _known: dict[tuple[str, str, str], dict[int, Score]] = field(default_factory=dict)

    def note(self, asked: Collection[int], replies: Sequence[Reply]) -> None:
        """Add the scores in replies; a score of a received model counts only while that model is
        current.
        """
        absent = set(asked) - {r.client for r in replies}
        for (_, when, _), per_client in self._known.items():
            if when == "received":
                for client in absent & per_client.keys():
                    del per_client[client]
        for reply in replies:
            for score in reply.scores:
                self._known.setdefault(score.key, {})[reply.client] = score

    def evaluations(self, number: int, when: str, members: Sequence[int]) -> list[Evaluation]:
        """Return the known evaluations after round ``number`` of each named model, received or
        trained.

        For an absent client, the trained model is its last one; a client that never took part has
        none yet, and former members do not count.
        """
        found = []
        for (_, moment, _), per_client in self._known.items():
            scores = {i: per_client[i] for i in members if i in per_client}
            if moment == when and any(score.samples for score in scores.values()):
                found.append(Evaluation.of(number, scores, self.metric))
        return found

    def unseen(self, number: int, reply: Reply) -> list[Evaluation]:
        """Return the evaluations of a client that did not train, without intervals and without
        storing them.
        """
        measured = (replace(score, interval=None) for score in reply.scores if score.samples)
        return [Evaluation.of(number, {reply.client: score}, self.metric) for score in measured]

    def as_json(self) -> list[list[Any]]:
        """Return the scores as JSON for a checkpoint."""
        return [
            [*key, client, s.samples, s.loss, s.accuracy, s.value, s.interval]
            for key, own in self._known.items()
            for client, s in own.items()
        ]

    def restore(self, body: Iterable[Sequence[Any]]) -> None:
        """Restore the result of ``as_json``."""
        for model, when, split, client, *values in body:
            self._known.setdefault((model, when, split), {})[client] = Score(
                model, when, split, *values
            )

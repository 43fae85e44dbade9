"""The last scores of each client, from which evaluations of a round are made."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pomona.federation.exchange import Reply
from pomona.metrics.metric import Metric, Score
from pomona.record.rows import Evaluation


@dataclass
class Scoreboard:
    """The last scores of each client, by (model, when, split); ``metric``: of the values."""

    metric: Metric
    _scores: dict[tuple[str, str, str], dict[int, Score]] = field(default_factory=dict)

    def note(
        self, cohort: Collection[int], replies: Sequence[Reply]
    ) -> dict[tuple[str, str, str], list[int]]:
        """Add the scores in replies; a score of a received model counts only while that model is
        current.

        Returns the clients whose loss is newly not finite, by (model, when, split).
        """
        absent = set(cohort) - {r.client for r in replies}
        for (_, stage, _), per_client in self._scores.items():
            if stage == "received":
                for client in absent & per_client.keys():
                    del per_client[client]
        broken: dict[tuple[str, str, str], list[int]] = {}
        for reply in replies:
            for score in reply.scores:
                scores = self._scores.setdefault(score.key, {})
                previous, scores[reply.client] = scores.get(reply.client), score
                if score.broken and not (previous and previous.broken):
                    broken.setdefault(score.key, []).append(reply.client)
        return broken

    def evaluations(self, number: int, stage: str, members: Sequence[int]) -> list[Evaluation]:
        """Return the known evaluations after round ``number`` of each named model, received or
        trained.

        For an absent client, the trained model is its last one; a client that never took part has
        none yet, and former members do not count.
        """
        evaluations = []
        for (_, score_stage, _), per_client in self._scores.items():
            scores = {i: per_client[i] for i in members if i in per_client}
            if score_stage == stage and any(score.samples for score in scores.values()):
                evaluations.append(Evaluation.from_scores(number, scores, self.metric))
        return evaluations

    def unseen(self, number: int, reply: Reply) -> list[Evaluation]:
        """Return the evaluations of a client that did not train, without intervals and without
        storing them.
        """
        measured = (replace(score, interval=None) for score in reply.scores if score.samples)
        return [
            Evaluation.from_scores(number, {reply.client: score}, self.metric) for score in measured
        ]

    def as_json(self) -> list[list[Any]]:
        """Return the scores as JSON for a checkpoint."""
        return [
            [*key, client, s.samples, s.loss, s.accuracy, s.value, s.interval]
            for key, per_client in self._scores.items()
            for client, s in per_client.items()
        ]

    def restore(self, body: Iterable[Sequence[Any]]) -> None:
        """Restore the result of ``as_json``."""
        for model, stage, split, client, *values in body:
            self._scores.setdefault((model, stage, split), {})[client] = Score(
                model, stage, split, *values
            )

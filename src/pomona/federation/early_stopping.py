"""The validation curve of a run, its best round, and early stopping."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pomona.core.training_settings import Stop
from pomona.federation.exchange import Reply
from pomona.metrics.best_round import Best, Outvoted, Point, best, overruled
from pomona.metrics.metric import Metric, Score
from pomona.record.rows import Evaluation


@dataclass
class ValidationCurve:
    """Scores of the clients on validation, by round, for early stopping and the best round.

    ``headline``: (model, when) of the method's headline model. ``chooses``: whether the best round
    decides on anything.
    """

    headline: tuple[str, str]
    metric: Metric
    stop: Stop | None
    chooses: bool = True
    _points: list[Point] = field(default_factory=list)

    def note(self, evaluation: Evaluation) -> bool:
        """Add an evaluation if it is one of that model on validation; return whether it is."""
        fits = evaluation.key == (*self.headline, "validation")
        if fits:
            self._points.append(evaluation.point)
        return fits

    def restore(self, events: Iterable[tuple[str, Any]]) -> None:
        """Add the evaluations among the events of a record."""
        for event, body in events:
            if event == "evaluation":
                self.note(body)

    @property
    def best(self) -> Best | None:
        """The best round so far, as defined by ``stop``."""
        return best(self._points, self.metric, self._min_gain)

    @property
    def overruled(self) -> dict[int, str]:
        """The clients whose scores in the last evaluation would have decided against the others',
        each with a phrase on what counts instead.
        """
        if not self.chooses or not self._points:
            return {}
        clients = overruled(self._points, self.metric, self._min_gain)
        return {client: self._phrase(outvoted) for client, outvoted in clients.items()}

    def _phrase(self, outvoted: Outvoted) -> str:
        score = f"its {self.metric.title} on validation"
        gains = f"the other clients' gains are {outvoted.low:+.3g} to {outvoted.high:+.3g}"
        if outvoted.gain is None:
            return (
                f"{score} is missing in this round or in the best before, and would decide which "
                f"is better; {gains}, and decide"
            )
        return (
            f"{score} alone would decide whether this round is the best: its gain over the best "
            f"before is {outvoted.gain:+.3g}, {gains}, and decide"
        )

    @property
    def _min_gain(self) -> float:
        return self.stop.min_gain if self.stop else 0.0

    @property
    def best_round(self) -> int:
        """The best round so far, however small its gain; -1 if there is none."""
        best_so_far = best(self._points, self.metric)
        return best_so_far.round if best_so_far else -1

    @property
    def should_stop(self) -> bool:
        """Return whether early stopping ends the run now."""
        if self.stop is None:
            return False
        best_so_far = self.best
        return best_so_far is not None and self.stop.should_stop(
            best_so_far.since, self._points[-1].round
        )


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

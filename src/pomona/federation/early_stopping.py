"""The validation curve of a run, its best round, and early stopping."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pomona.core.training_settings import Stop
from pomona.metrics.best_round import Best, Point, best, overruled
from pomona.metrics.metric import Metric
from pomona.metrics.outvoted import Outvoted
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

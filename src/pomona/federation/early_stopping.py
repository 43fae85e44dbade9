"""The validation curve of a run, its best round, and early stopping."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pomona.core.training_settings import Stop
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
        """Return whether early stopping ends the run now."""
        if self.stop is None:
            return False
        best_so_far = self.best
        return best_so_far is not None and self.stop.is_due(
            best_so_far.since, self._points[-1].round
        )

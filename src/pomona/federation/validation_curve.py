"""What the clients' validation samples say, round by round, of the model that a method is judged by."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pomona.core.stop import Stop
from pomona.metrics.best_round import Best, Point, best
from pomona.metrics.metric import Metric
from pomona.metrics.nan_safe import mean_of_known
from pomona.record.rows import Evaluation


@dataclass
class ValidationCurve:
    """Means over clients, by round: all that early stopping looks at.

    ``headline``: (model, when) of the method's headline model.
    """

    headline: tuple[str, str]
    metric: Metric
    stop: Stop
    _points: list[Point] = field(default_factory=list)

    def note(self, evaluation: Evaluation) -> None:
        """Remember an evaluation, if it is one of that model on validation."""
        if evaluation.key == (*self.headline, "validation"):
            self._add(evaluation.round, evaluation.value, evaluation.loss)

    def restore(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Remember the evaluations of a record."""
        for event in events:
            kind, key = event["event"], (event.get("model"), event.get("when"), event.get("split"))
            if kind == "evaluation" and key == (*self.headline, "validation"):
                self._add(event["round"], event["value"], event["loss"])

    def _add(self, number: int, value: Iterable[float | None], loss: Iterable[float | None]) -> None:
        self._points.append(Point(number, mean_of_known(value), mean_of_known(loss)))

    @property
    def best(self) -> Best | None:
        """The best round so far, as ``stop`` counts."""
        return best(self._points, self.metric, self.stop.min_gain)

    @property
    def best_round(self) -> int:
        """The best round so far, however small its gain; -1 before there is one."""
        found = best(self._points, self.metric)
        return found.round if found else -1

    @property
    def spent(self) -> bool:
        """Whether patience is at an end."""
        patience, found = self.stop.patience, self.best
        return patience is not None and found is not None and found.since >= patience

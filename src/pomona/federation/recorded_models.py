"""Models that clients keep for the record: the last ones, and of the headline model the one that is
written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Literal

import torch
from torch import Tensor

from pomona.core.bounds import Stage
from pomona.core.errors import CheckpointError
from pomona.federation.exchange import ClientRequest
from pomona.federation.scoring import Model
from pomona.metrics.best_round import Point, best
from pomona.metrics.metric import ACCURACY, Metric, Score

KeepRule = Literal["last", "best", "own_best"]
CHECKPOINTED = 4  # the round of the last model, that of the best, and the best's metric and loss


@dataclass
class ModelChoice:
    """Models to write for some clients, one row each; besides the last, only the best so far is
    stored.

    The round of each model is stored with it: that of its training, or for a received model that of
    its uplinks. Round 0, the untrained model, is never the best.

    Attributes:
        rule: ``keep`` of the settings.
        headline: (model, when) of the headline model.
        metric: of its scores.
    """

    rule: KeepRule = "last"
    headline: Model = ("", "received")
    metric: Metric = ACCURACY
    _rows: dict[int, Tensor] = field(default_factory=dict)
    _round: dict[int, int] = field(default_factory=dict)  # of the last model
    _best: dict[int, Point] = field(default_factory=dict)  # a client's own, of the stored model

    def keep_previous(self, client: int, last: Tensor | None, best_round: int) -> None:
        """Store a client's last model (d,) before it is replaced, if its round is at most
        ``best_round``, the best common round.
        """
        reaches_best = 0 < self._round.get(client, 0) <= best_round
        if self.rule == "best" and last is not None and reaches_best:
            self._rows[client] = last

    def update(self, client: int, number: int, row: Tensor, scores: Sequence[Score]) -> None:
        """Update with a client's model (d,) from a visit in round ``number``, and the scores of all
        its models.
        """
        self._round[client] = number if self.headline[1] == "trained" else number - 1
        headline_scores = [
            s
            for s in scores
            if (s.model, s.when, s.split) == (*self.headline, "validation") and s.samples
        ]
        if self.rule != "own_best" or not headline_scores or self._round[client] < 1:
            return
        point = Point(self._round[client], headline_scores[0].value, headline_scores[0].loss)
        previous = [self._best[client]] if client in self._best else []
        # the best of all rounds follows from the previous best
        best_point = best([*previous, point], self.metric, single_client=True)
        if best_point and best_point.round == point.round:
            self._best[client], self._rows[client] = point, row

    def choose(self, client: int, last: Tensor, best_round: int) -> Tensor:
        """Return the model (d,) to write for a client, given its last one; ``best_round``: the best
        common round.
        """
        if self.rule == "best" and self._round.get(client, 0) <= best_round:
            return last
        return self._rows.get(client, last)

    def forget(self, client: int) -> None:
        """Drop a client's stored model."""
        self._rows.pop(client, None)

    def stored(self, client: int) -> dict[str, Tensor]:
        """Return all that a checkpoint needs, by dotted path."""
        if self.rule == "last" or client not in self._round:
            return {}
        numbers = (self._round[client], *self._best.get(client, Point(0, None, None))[:3])
        values = [nan if v is None else float(v) for v in numbers]
        rows = {f"chosen.{client}.row": self._rows[client]} if client in self._rows else {}
        return {f"chosen.{client}.noted": torch.tensor(values, dtype=torch.float64), **rows}

    def restore(self, client: int, entry: str, tensor: Tensor) -> None:
        """Restore one of the ``stored`` tensors, by the end of its path. Raises CheckpointError."""
        if entry == "row":
            self._rows[client] = tensor
        else:
            if len(tensor) != CHECKPOINTED:
                raise CheckpointError(
                    "the checkpoint records another kind of best round; resume with the version "
                    "of Pomona that wrote it"
                )
            number, best_round, *figures = tensor.tolist()
            self._round[client] = int(number)
            if best_round:
                value, loss = (None if isnan(figure) else figure for figure in figures)
                self._best[client] = Point(int(best_round), value, loss)


@dataclass(frozen=True)
class Observed:
    """A client's models observed in a visit, and their scores."""

    visit: ClientRequest
    rows: Mapping[Model, Tensor]
    scores: Sequence[Score]


@dataclass
class RecordedModels:
    """The kept models of some clients, rows (d,) by (model, when); ``choice``: which headline model
    is written.
    """

    choice: ModelChoice
    _models: dict[int, dict[Model, Tensor]] = field(default_factory=dict)

    def update(self, client: int, observed: Observed) -> None:
        """Keep a client's observed models in place of earlier ones."""
        models, headline = self._models.setdefault(client, {}), self.choice.headline
        if headline in observed.rows:
            self.choice.keep_previous(client, models.get(headline), observed.visit.best)
            self.choice.update(
                client, observed.visit.round.number, observed.rows[headline], observed.scores
            )
        models.update(observed.rows)

    def last(self, client: int) -> dict[Model, Tensor]:
        """Return a client's last models."""
        return dict(self._models.get(client, {}))

    def chosen(self, client: int, best: int) -> dict[Model, Tensor]:
        """Return a client's models; for the headline model, the one that is written.

        ``best``: the best common validation round.
        """
        models, headline = self.last(client), self.choice.headline
        if headline in models:
            return models | {headline: self.choice.choose(client, models[headline], best)}
        return models

    def examined(self, client: int, best: int) -> dict[Model, Tensor]:
        """Return the models whose full metrics are recorded: own best rounds differ by client, and
        are not examined.
        """
        return self.chosen(client, best) if self.choice.rule == "best" else self.last(client)

    def drop(self, client: int) -> None:
        """Drop a client's models."""
        self._models.pop(client, None)
        self.choice.forget(client)

    def stored(self, client: int) -> dict[str, Tensor]:
        """Return all that a checkpoint needs of a client's models, by dotted path."""
        tensors = {
            f"kept.{client}.{model}.{stage}": w for (model, stage), w in self.last(client).items()
        }
        return tensors | self.choice.stored(client)

    def restore(self, path: str, tensor: Tensor) -> None:
        """Restore one of the ``stored`` tensors; others are ignored."""
        section, client, *entry = path.split(".")
        if section == "kept":
            model, stage = entry
            when: Stage = "received" if stage == "received" else "trained"
            self._models.setdefault(int(client), {})[model, when] = tensor
        elif section == "chosen":
            self.choice.restore(int(client), entry[0], tensor)

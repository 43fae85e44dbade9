"""Models that clients keep for the record: the last ones, and of the headline model the one that is
written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Literal

import torch
from torch import Tensor

from pomona.core.errors import CheckpointError
from pomona.federation.exchange import ClientRequest
from pomona.federation.scoring import Model
from pomona.metrics.best_round import Point, best
from pomona.metrics.metric import ACCURACY, Metric, Score

Keep = Literal["last", "best", "own_best"]
NOTED = 4  # the round of the last model, that of the best, and the best's metric and loss


@dataclass
class ModelChoice:
    """Models to write for some clients, one row each; besides the last, only the best so far is
    stored.

    The round of each model is stored with it: that of its training, or for a received model that of
    its uplinks. Round 0, the untrained model, is never the best.

    Attributes:
        keep: as in the settings.
        headline: (model, when) of the headline model.
        metric: of its scores.
    """

    keep: Keep = "last"
    headline: tuple[str, str] = ("", "")
    metric: Metric = ACCURACY
    _rows: dict[int, Tensor] = field(default_factory=dict)
    _round: dict[int, int] = field(default_factory=dict)  # of the last model
    _best: dict[int, Point] = field(default_factory=dict)  # a client's own, of the stored model

    def before(self, client: int, last: Tensor | None, best: int) -> None:
        """Store a client's last model (d,) before it is replaced, if its round is ``best``, the
        best common round.
        """
        if self.keep == "best" and last is not None and 0 < self._round.get(client, 0) <= best:
            self._rows[client] = last

    def after(self, client: int, number: int, row: Tensor, scores: Sequence[Score]) -> None:
        """Update with a client's model (d,) from a visit in round ``number``, and the scores of all
        its models.
        """
        self._round[client] = number if self.headline[1] == "trained" else number - 1
        own = [
            s
            for s in scores
            if (s.model, s.when, s.split) == (*self.headline, "validation") and s.samples
        ]
        if self.keep != "own_best" or not own or self._round[client] < 1:
            return
        point = Point(self._round[client], own[0].value, own[0].loss)
        held = [self._best[client]] if client in self._best else []
        # the best of all rounds follows from the previous best
        found = best([*held, point], self.metric, own=True)
        if found and found.round == point.round:
            self._best[client], self._rows[client] = point, row

    def of(self, client: int, last: Tensor, best: int) -> Tensor:
        """Return the model (d,) to write for a client, given its last one; ``best``: the best
        common round.
        """
        if self.keep == "best" and self._round.get(client, 0) <= best:
            return last
        return self._rows.get(client, last)

    def forget(self, client: int) -> None:
        """Drop a client's stored model."""
        self._rows.pop(client, None)

    def stored(self, client: int) -> dict[str, Tensor]:
        """Return all that a checkpoint needs, by dotted path."""
        if self.keep == "last" or client not in self._round:
            return {}
        numbers = (self._round[client], *self._best.get(client, Point(0, None, None))[:3])
        noted = [nan if v is None else float(v) for v in numbers]
        held = {f"chosen.{client}.row": self._rows[client]} if client in self._rows else {}
        return {f"chosen.{client}.noted": torch.tensor(noted, dtype=torch.float64), **held}

    def restore(self, client: int, what: str, tensor: Tensor) -> None:
        """Restore one of the ``stored`` tensors, by the end of its path. Raises CheckpointError."""
        if what == "row":
            self._rows[client] = tensor
        else:
            if len(tensor) != NOTED:
                raise CheckpointError(
                    "the checkpoint notes another kind of best round; resume with the version of "
                    "Pomona that wrote it"
                )
            number, best, *figures = tensor.tolist()
            self._round[client] = int(number)
            if best:
                value, loss = (None if isnan(figure) else figure for figure in figures)
                self._best[client] = Point(int(best), value, loss)


@dataclass(frozen=True)
class Observed:
    """A client's models observed in a visit, and their scores."""

    visit: ClientRequest
    rows: Mapping[Model, Tensor]
    scores: Sequence[Score]


@dataclass
class KeptModels:
    """The kept models of some clients, rows (d,) by (model, when); ``choice``: which headline model
    is written.
    """

    choice: ModelChoice
    _models: dict[int, dict[Model, Tensor]] = field(default_factory=dict)

    def keep(self, client: int, observed: Observed) -> None:
        """Keep a client's observed models in place of earlier ones."""
        held, headline = self._models.setdefault(client, {}), self.choice.headline
        if headline in observed.rows:
            self.choice.before(client, held.get(headline), observed.visit.best)
            self.choice.after(
                client, observed.visit.round.number, observed.rows[headline], observed.scores
            )
        held.update(observed.rows)

    def last(self, client: int) -> dict[Model, Tensor]:
        """Return a client's last models."""
        return dict(self._models.get(client, {}))

    def chosen(self, client: int, best: int) -> dict[Model, Tensor]:
        """Return a client's models; for the headline model, the one that is written.

        ``best``: the best common validation round.
        """
        kept, headline = self.last(client), self.choice.headline
        return (
            kept | {headline: self.choice.of(client, kept[headline], best)}
            if headline in kept
            else kept
        )

    def examined(self, client: int, best: int) -> dict[Model, Tensor]:
        """Return the models whose full metrics are recorded: own best rounds differ by client, and
        are not examined.
        """
        return self.chosen(client, best) if self.choice.keep == "best" else self.last(client)

    def drop(self, client: int) -> None:
        """Drop a client's models."""
        self._models.pop(client, None)
        self.choice.forget(client)

    def stored(self, client: int) -> dict[str, Tensor]:
        """Return all that a checkpoint needs of a client's models, by dotted path."""
        kept = {
            f"kept.{client}.{model}.{when}": w for (model, when), w in self.last(client).items()
        }
        return kept | self.choice.stored(client)

    def restore(self, path: str, tensor: Tensor) -> None:
        """Restore one of the ``stored`` tensors; others are ignored."""
        kind, client, *rest = path.split(".")
        if kind == "kept":
            model, when = rest
            self._models.setdefault(int(client), {})[model, when] = tensor
        elif kind == "chosen":
            self.choice.restore(int(client), rest[0], tensor)

"""Some clients in a round, as seen by a method: batches, gradients, losses, and models to evaluate."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from typing import Any, Literal

import torch
from torch import Tensor

from pomona.core.errors import DivergedError
from pomona.core.round import Roster, Round
from pomona.objective.batches import Batch, Pass, in_step, ordinary
from pomona.objective.constant_features import ConstantFeatures
from pomona.objective.interface import Guarded, Mixing, Objective, Reusing, Stepping
from pomona.objective.mixture import Mixture
from pomona.objective.pull import Pull
from pomona.objective.row_gradients import Criterion, RowCriterion
from pomona.objective.training_view import View

When = Literal["received", "trained"]
TRAINING = "training"
STATISTICS = "statistics"  # key in a downlink and in an uplink
GLOBAL = "global"  # the model that all clients receive


@dataclass
class LocalTraining:
    """The clients of one call, longest pass first; all of a method's tensors have a leading axis in this order.

    Attributes:
        clients: ids.
        roster: all members of the federation.
        round: the round's settings.
        trains: False for a call that only evaluates: training passes are empty, and results are discarded.
        watched: the moments evaluated in this call ("received", "trained"); a method may skip work that only serves an
            evaluation when ``watches`` returns False.
        statistics: BatchNorm statistics (n, b) as received with the global model; None if none are sent.
        measured: those statistics (n, b) after the training passes so far.
        observed: (model, when) -> rows (n, d), filled by ``observe``.
    """

    objective: Objective
    clients: tuple[int, ...]
    roster: Roster
    round: Round
    trains: bool = True
    watched: frozenset[str] = frozenset()
    statistics: Tensor | None = None
    measured: Tensor | None = field(init=False)
    observed: dict[tuple[str, When], Tensor] = field(default_factory=dict)
    _losses: list[float] = field(init=False)
    _samples: list[int] = field(init=False)
    _unmeasured: int | None = None  # the step of the round's first training pass whose batch has not been measured yet
    _passed: bool = False

    def __post_init__(self) -> None:
        self.measured = None if self.statistics is None else self.statistics.clone()
        self._losses, self._samples = [0.0] * len(self.clients), [0] * len(self.clients)

    # Optional capabilities of the objective, looked up once per call: a protocol check takes 0.1 ms.
    @cached_property
    def _guarded(self) -> Guarded | None:
        return self.objective if isinstance(self.objective, Guarded) else None

    @cached_property
    def _reusing(self) -> Reusing | None:
        return self.objective if isinstance(self.objective, Reusing) else None

    @cached_property
    def _stepping(self) -> Stepping | None:
        return self.objective if isinstance(self.objective, Stepping) else None

    @cached_property
    def _mixing(self) -> Mixing | None:
        return self.objective if isinstance(self.objective, Mixing) else None

    @property
    def ids(self) -> Tensor:
        """Ids as an index tensor (n,)."""
        return torch.tensor(self.clients)

    @property
    def layers(self) -> tuple[slice, ...]:
        """Slices of a row, one per layer from input to output."""
        return self.objective.layers

    @property
    def norms(self) -> tuple[slice, ...]:
        """Slices of a row, one per tensor of a normalisation layer, in the order of the row."""
        return self.objective.norms

    def steps(
        self, epochs: int, *rows: Tensor, purpose: str = TRAINING, share: float = 1.0
    ) -> Iterator[tuple[Any, ...]]:
        """Yield each step's batch, with views of the given tensors cut to the clients that still have one.

        Clients have different numbers of steps; the views are prefixes, so in-place operations change the rows.
        ``purpose`` names the random stream: two passes with the same purpose in a round have the same order. With a
        ``share`` below 1 the passes use a random part of each client's samples, of that share.
        """
        r, least = self.round, self.objective.least_batch
        if purpose == TRAINING and not self.trains:
            return
        batches = self._guarded.batches if self._guarded else ordinary
        streams = [
            batches(
                self.objective.data.rows["train"][c],
                Pass(r.seed, purpose, r.number, c, epochs, r.batch_size, share, least),
            )
            for c in self.clients
        ]
        training, first = purpose == TRAINING, not self._passed
        self._passed |= training
        for batch in in_step(streams, purpose):
            if training:
                self._unmeasured = batch.step if first else None
            active = len(batch.indices)
            yield batch, *(t[:active] for t in rows)

    def gradient(
        self,
        W: Tensor,
        batch: Batch,
        criterion: Criterion | list[RowCriterion] | None = None,
        above: int = 0,
        kept: ConstantFeatures | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return mean losses (n,) of rows W on the batch, and gradients G (n, d). Raises DivergedError.

        A method that needs G only from a coordinate on passes it as ``above``: G may be 0 before it. If W below this
        coordinate is also the same whenever the batch occurs, it passes ``kept``.
        """
        if self.measured is not None and (batch.purpose, batch.step) == (TRAINING, self._unmeasured):
            losses, G = self._measuring(self.measured[: len(W)], W, batch, criterion, above)
        elif kept is not None and criterion is None and self._reusing:
            losses, G = self._reusing.gradient_above(W, batch.indices, above, kept, self._views(batch))
        else:
            losses, G = self.objective.gradient(W, batch.indices, criterion, above, self._views(batch))
        self._count(losses, batch)
        return losses, G

    def stepped(
        self,
        W: Tensor,
        batch: Batch,
        moments: Tensor,
        round_: Round,
        pull: Pull | None = None,
        part: slice | None = None,
    ) -> bool:
        """Let the objective take a step of the round's optimizer on rows W (n, d), in place; return whether it did.

        If not, nothing has changed: get the gradient, and take the step with ``descend``. ``pull`` is added to the
        gradient. If ``part`` is given, which must end at a layer boundary, only this part of W moves; ``moments`` are
        those of it. Raises DivergedError.
        """
        if self.measured is not None or self._stepping is None:
            return False
        losses = self._stepping.step(W, batch.indices, moments, round_, self._views(batch), pull, part)
        if losses is None:
            return False
        self._count(losses, batch)
        return True

    @property
    def mixes(self) -> bool:
        """Whether the objective mixes rows itself; equal rows in several positions are then read once."""
        return self._mixing is not None and self._mixing.mixes

    def mixtures(self, mixture: Mixture) -> Tensor:
        """Return the mixtures (n, d)."""
        return self._mixing.mixtures(mixture) if self._mixing else mixture.rows()

    def products(self, mixture: Mixture, G: Tensor) -> Tensor:
        """Return the products (n, N) of rows G (n, d) with the mixed rows."""
        return self._mixing.products(mixture, G) if self._mixing else mixture.products(G)

    def mixed_step(self, mixture: Mixture, batch: Batch, moments: Tensor, round_: Round) -> Tensor | None:
        """Take a step on each client's own row of its mixture, in place; return the weights' slopes (n, N).

        The own row moves by its weight times the gradient at the mixture; slopes are the gradient's products with all
        rows as they were mixed. Returns None, and changes nothing, if the objective does not support this. Raises
        DivergedError.
        """
        if self.measured is not None or self._mixing is None:
            return None
        found = self._mixing.mixed_step(mixture, batch.indices, moments, round_, self._views(batch))
        if found is None:
            return None
        losses, slopes = found
        self._count(losses, batch)
        return slopes

    def _count(self, losses: Tensor, batch: Batch) -> None:
        """Accumulate the training losses. Raises DivergedError for a loss that is not finite."""
        for k, (loss, index) in enumerate(zip(losses.tolist(), batch.indices, strict=True)):
            if not isfinite(loss):
                raise DivergedError(
                    f"client {self.clients[k]}, round {self.round.number}, step {batch.step}: "
                    f"the loss is {loss}; lower lr"
                )
            if batch.purpose == TRAINING:
                self._losses[k] += loss * len(index)
                self._samples[k] += len(index)

    def hessian(self, W: Tensor, batch: Batch, Z: Tensor) -> Tensor:
        """Return products (n, d) of the mean losses' Hessians at rows W (n, d) on the batch with vectors Z (n, d)."""
        return self.objective.hessian(W, batch.indices, Z, self._views(batch))

    def _views(self, batch: Batch) -> list[View]:
        """Return the training views of a batch, one per row."""
        r, active = self.round, self.clients[: len(batch.indices)]
        return [View(c, r.seed, r.number, batch.purpose, batch.step) for c in active]

    def _measuring(
        self,
        statistics: Tensor,
        W: Tensor,
        batch: Batch,
        criterion: Criterion | list[RowCriterion] | None,
        above: int,
    ) -> tuple[Tensor, Tensor]:
        """Return ``gradient``, and update ``statistics`` (n, b) in place with the batch as seen by rows W.

        A batch counts once, for the first model that uses it: in the first training pass of a round this is the
        received model, or close to it.
        """
        rows = torch.cat([W, statistics], 1)
        losses, G = self.objective.gradient(rows, batch.indices, criterion, above, self._views(batch))
        statistics.copy_(rows[:, W.shape[1] :])
        self._unmeasured = None
        return losses, G[:, : W.shape[1]]

    def loss(self, W: Tensor, split: str) -> Tensor:
        """Return mean losses (n,) of rows W on each client's whole split; NaN if a client has no such samples."""
        each = (self.objective.losses(row, c, split).mean() for row, c in zip(W, self.clients, strict=True))
        return torch.stack(list(each))

    def class_counts(self, client: int) -> Tensor | None:
        """Return a client's number of training samples (pixels, of masks) in each class; None for other targets.

        Counts (k,) end with the client's last class. They are not covered by privacy: using them is a release on the
        method's card.
        """
        return self.objective.data.class_counts(client)

    def watches(self, when: When) -> bool:
        """Return whether models observed at this moment will be evaluated."""
        return when in self.watched

    def observe(self, model: str, W: Tensor, when: When) -> None:
        """Set the rows W (n, d) to evaluate under a name; this determines which models are evaluated for a method.

        The global model is evaluated with the statistics that it was sent with, any other with the client's own.
        """
        if self.watches(when):
            beside = [self.statistics] if model == GLOBAL and self.statistics is not None else []
            self.observed[model, when] = torch.cat([W, *beside], 1)

    def training_losses(self) -> list[float | None]:
        """Return each client's mean training loss over the steps so far; None before the first, or if hidden."""
        if self._guarded and not self._guarded.shows_losses:
            return [None] * len(self.clients)
        return [s / n if n else None for s, n in zip(self._losses, self._samples, strict=True)]

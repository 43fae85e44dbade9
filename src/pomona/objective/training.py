"""Some clients in a round, as seen by a method: batches, gradients, losses, and models to
evaluate.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from pomona.core.bounds import Stage
from pomona.core.errors import DivergedError
from pomona.core.lazy_torch import Tensor, torch
from pomona.core.round import Roster, Round
from pomona.core.training_settings import Passes
from pomona.models.parameter_space import Head, ParameterSlice
from pomona.objective.batches import Batch, Pass, View, Views, in_step
from pomona.objective.objective import (
    ConstantFeatures,
    Criterion,
    GradientSource,
    Mixture,
    Objective,
    Pull,
    RowCriterion,
)

TRAINING = "training"
STATISTICS = "statistics"  # key in a downlink and in an uplink
GLOBAL = "global"  # the model that all clients receive


@dataclass
class LocalTraining:
    """The clients of one call, longest pass first; all of a method's tensors have a leading axis in
    this order.

    Attributes:
        clients: ids.
        roster: all members of the federation.
        round: the round's settings.
        trains: False for a call that only evaluates: training passes are empty, and results are
            discarded.
        watched: the stages evaluated in this call ("received", "trained"); a method may skip work
            that only serves an evaluation when ``watches`` returns False.
        statistics: BatchNorm statistics (n, b) as received with the global model; None if none are
            sent.
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
    observed: dict[tuple[str, Stage], Tensor] = field(default_factory=dict)
    _losses: list[float] = field(init=False)
    _samples: list[int] = field(init=False)
    # the step of the round's first training pass whose batch has not been measured yet
    _unmeasured: int | None = None
    _passed: bool = False

    def __post_init__(self) -> None:
        self.measured = None if self.statistics is None else self.statistics.clone()
        self._losses, self._samples = [0.0] * len(self.clients), [0] * len(self.clients)

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

    @property
    def head(self) -> Head | None:
        """The last layer in a row, if it is linear, with a bias, and trained."""
        return self.objective.head

    @property
    def parameters(self) -> tuple[ParameterSlice, ...]:
        """The places of all tensors in a row, with their names."""
        return self.objective.parameters

    def steps(
        self, passes: Passes | int, *rows: Tensor, purpose: str = TRAINING, share: float = 1.0
    ) -> Iterator[tuple[Any, ...]]:
        """Yield each step's batch, with views of the given tensors cut to the clients that still
        have one.

        ``passes``: ``round_.passes``, or a number of epochs. Clients have different numbers of
        steps; the views are prefixes, so in-place operations change the rows. ``purpose`` names the
        random stream: two passes with the same purpose in a round have the same order. With a
        ``share`` below 1 the passes use a random part of each client's samples, of that share.
        """
        r, min_batch = self.round, self.objective.least_batch
        if purpose == TRAINING and not self.trains:
            return
        passes = Passes(passes) if isinstance(passes, int) else passes
        streams = [
            self.objective.batches(
                self.objective.data.rows["train"][c],
                Pass(r.seed, purpose, r.number, c, passes, r.batch_size, share, min_batch),
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
        cache: ConstantFeatures | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return mean losses (n,) of rows W on the batch, and gradients G (n, d).

        Raises DivergedError.

        A method that needs G only from a coordinate on passes it as ``above``: G may be 0 before
        it. If W below this coordinate is also the same whenever the batch occurs, it passes
        ``cache``.
        """
        views = self._views(batch)
        losses, G = self._gradients(batch).gradient(
            W, batch.indices, criterion, above, views, cache
        )
        self._count(losses, batch)
        return losses, G

    def step(
        self,
        W: Tensor,
        batch: Batch,
        moments: Tensor,
        round_: Round,
        pull: Pull | None = None,
        block: slice | None = None,
    ) -> None:
        """Take one step of the round's optimizer on rows W (n, d), in place. Raises DivergedError.

        ``pull`` is added to the gradient. If ``block`` is given, which must end at a layer
        boundary, only this block of W moves; ``moments`` are those of it.
        """
        views = self._views(batch)
        losses = self._gradients(batch).step(W, batch.indices, moments, round_, views, pull, block)
        self._count(losses, batch)

    def mixed_step(self, mixture: Mixture, batch: Batch, moments: Tensor, round_: Round) -> Tensor:
        """Take a step on each client's own row of its mixture, in place; return the weights' slopes
        (n, N).

        The own row moves by its weight times the gradient at the mixture; slopes are the gradient's
        products with all rows as they were mixed. Raises DivergedError.
        """
        views = self._views(batch)
        losses, slopes = self._gradients(batch).mixed_step(
            mixture, batch.indices, moments, round_, views
        )
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
                samples = len(index)
                self._losses[k] += loss * samples
                self._samples[k] += samples

    def hessian(self, W: Tensor, batch: Batch, Z: Tensor) -> Tensor:
        """Return products (n, d) of the mean losses' Hessians at rows W (n, d) on the batch with
        vectors Z (n, d).
        """
        return self.objective.hessian(W, batch.indices, Z, self._views(batch))

    def _views(self, batch: Batch) -> list[View]:
        """Return the training views of a batch, one per row."""
        r, active = self.round, self.clients[: len(batch.indices)]
        return [View(c, r.seed, r.number, batch.purpose, batch.step) for c in active]

    def _gradients(self, batch: Batch) -> GradientSource:
        """Return what computes a batch's gradients: the objective, which may measure BatchNorm
        statistics beside them.

        A batch counts once, for the first model that uses it: in the first training pass of a round
        this is the received model, or close to it.
        """
        if self.measured is None or (batch.purpose, batch.step) != (TRAINING, self._unmeasured):
            return self.objective
        self._unmeasured = None
        return _Measuring(self.objective, self.measured)

    def loss(self, W: Tensor, split: str) -> Tensor:
        """Return mean losses (n,) of rows W on each client's whole split; NaN if a client has no
        such samples.
        """
        losses = (
            self.objective.losses(row, c, split).mean()
            for row, c in zip(W, self.clients, strict=True)
        )
        return torch.stack(list(losses))

    def class_counts(self, client: int) -> Tensor | None:
        """Return a client's number of training samples (pixels, of masks) in each class; None for
        other targets.

        Counts (k,) end with the client's last class. They are not covered by privacy: using them is
        a release on the method's card.
        """
        return self.objective.data.class_counts(client)

    def targets(self, index: Tensor) -> Tensor:
        """Return the targets of samples ``index`` (b,) as the network learns them: of classes their
        numbers, int64 (b,).
        """
        return self.objective.data.target(index)

    def features(self, W: Tensor, split: str = "train") -> list[tuple[Tensor, Tensor]]:
        """Return the last layer's inputs (b, f) under each row of W (n, d), on all of its client's
        split, and the targets.

        They are computed as in an evaluation: without augmentation and in evaluation mode. Privacy
        does not cover them: using them is the release "output-criterion" on the method's card.
        """
        return [
            (
                self.objective.features(row, c, split),
                self.targets(self.objective.data.rows[split][c]),
            )
            for row, c in zip(W, self.clients, strict=True)
        ]

    def watches(self, stage: Stage) -> bool:
        """Return whether models observed at this stage will be evaluated: never those after
        training where only sums of them may be seen.
        """
        return stage in self.watched and (stage == "received" or self.objective.shows_trained)

    def observe(self, model: str, W: Tensor, stage: Stage) -> None:
        """Copy the rows W (n, d), to evaluate them under a name; this determines which models are
        evaluated for a method.

        The global model is evaluated with the statistics that it was sent with, any other with the
        client's own.
        """
        if self.watches(stage):
            statistics = (
                [self.statistics] if model == GLOBAL and self.statistics is not None else []
            )
            self.observed[model, stage] = torch.cat([W, *statistics], 1)

    def training_losses(self) -> list[float | None]:
        """Return each client's mean training loss over the steps so far; None before the first, or
        if hidden.
        """
        if not self.objective.shows_losses:
            return [None] * len(self.clients)
        return [s / n if n else None for s, n in zip(self._losses, self._samples, strict=True)]


@dataclass(frozen=True)
class _Measuring(GradientSource):
    """An objective that also updates BatchNorm statistics (n, b), in place, with each batch as seen
    by the rows.
    """

    objective: Objective
    statistics: Tensor

    def gradient(
        self,
        W: Tensor,
        indices: list[Tensor],
        criterion: Criterion | list[RowCriterion] | None = None,
        above: int = 0,
        views: Views = None,
        cache: ConstantFeatures | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the objective's gradients, without those of the statistics."""
        statistics, d = self.statistics[: len(W)], W.shape[1]
        rows = torch.cat([W, statistics], 1)
        losses, G = self.objective.gradient(rows, indices, criterion, above, views, cache)
        statistics.copy_(rows[:, d:])
        return losses, G[:, :d]

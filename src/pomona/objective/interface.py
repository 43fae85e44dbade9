"""Interface of the objective: all access that a method has to private data."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from pomona.core.round import Round
from pomona.objective.batches import Pass
from pomona.objective.constant_features import ConstantFeatures
from pomona.objective.device_dataset import DeviceDataset
from pomona.objective.mixture import Mixture
from pomona.objective.pull import Pull
from pomona.objective.row_gradients import Criterion, RowCriterion
from pomona.objective.training_view import View, Views
from pomona.privacy.ledger import Position


class Objective(Protocol):
    """Losses and gradients of model rows; the only way for a method to read samples.

    A row (d,) has a model's parameters. If BatchNorm statistics are sent with a model, they may follow the parameters:
    training then updates them in place, and evaluation uses them. A row without them is evaluated with statistics
    estimated on the client's own training data.
    """

    data: DeviceDataset
    least_batch: int  # minimum number of samples in a training step
    layers: tuple[slice, ...]  # of a row, one per layer from input to output
    norms: tuple[slice, ...]  # of a row, the parameters of normalisation layers

    def gradient(
        self,
        W: Tensor,
        indices: list[Tensor],
        criterion: Criterion | list[RowCriterion] | None = None,
        above: int = 0,
        views: Views = None,
    ) -> tuple[Tensor, Tensor]:
        """Return mean losses (n,) of rows W (n, d), row k on the samples ``indices[k]``, and their gradients G (n, d).

        Entries of G below index ``above`` are not used and may be zero. ``views``: the training views of the batches,
        one per row; without them the samples are used unchanged.
        """

    def hessian(self, W: Tensor, indices: list[Tensor], Z: Tensor, views: Views = None) -> Tensor:
        """Return products (n, d) of the mean losses' Hessians at rows W (n, d) on the samples with vectors Z."""

    def outputs(self, row: Tensor, client: int, split: str) -> tuple[Tensor, Tensor]:
        """Return outputs (b, K) of one row (d,) on all of a client's split, and the targets."""

    def batchwise(
        self, row: Tensor, client: int, split: str, of: Callable[[Tensor, Tensor], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """Apply a function to each batch's outputs and targets, samples first, on all of a client's split.

        Returns () for no samples. Only the function's results are kept in memory.
        """

    def features(self, row: Tensor, client: int, split: str) -> Tensor:
        """Return inputs (b, f) of the last layer under one row (d,), on all of a client's split."""

    def tensors(self, row: Tensor, client: int) -> dict[str, Tensor]:
        """Return one row (d,) as named tensors, with the buffers used for its evaluation at a client."""

    def losses(self, row: Tensor, client: int, split: str) -> Tensor:
        """Return per-sample losses (b,) of one row on all of a client's split."""

    def criterion(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the run's own per-sample losses (b,)."""


@runtime_checkable
class Reusing(Protocol):
    """An objective that can reuse the outputs of layers below a coordinate for a batch."""

    def gradient_above(
        self, W: Tensor, indices: list[Tensor], above: int, kept: ConstantFeatures, views: Sequence[View]
    ) -> tuple[Tensor, Tensor]:
        """Return ``gradient`` for rows that below ``above`` are the same whenever they occur with a batch."""


@runtime_checkable
class Stepping(Protocol):
    """An objective that may take whole steps of plain SGD itself."""

    def step(
        self,
        W: Tensor,
        indices: list[Tensor],
        moments: Tensor,
        round_: Round,
        views: Views = None,
        pull: Pull | None = None,
        part: slice | None = None,
    ) -> Tensor | None:
        """Take one step on rows W (n, d), in place, and return mean losses (n,) before it; None if not supported.

        Nothing is changed if None is returned. ``pull`` is added to the gradient; if ``part`` is given, only it moves,
        and ``moments`` are those of it.
        """


@runtime_checkable
class Mixing(Protocol):
    """An objective that may mix rows itself, and take whole steps of plain SGD on mixtures.

    ``mixes``: whether it does; a client's results then do not depend on the other clients in the call, and equal rows
    in several positions are read once.
    """

    mixes: bool

    def mixtures(self, mixture: Mixture) -> Tensor:
        """Return the mixtures (n, d)."""

    def products(self, mixture: Mixture, G: Tensor) -> Tensor:
        """Return the products (n, N) of rows G (n, d) with the mixed rows."""

    def mixed_step(
        self, mixture: Mixture, indices: list[Tensor], moments: Tensor, round_: Round, views: Views = None
    ) -> tuple[Tensor, Tensor] | None:
        """Take a step on the clients' own rows, in place; return mean losses (n,) and slopes (n, N) of the weights.

        Losses and slopes are those at the mixtures. Returns None, and changes nothing, if not supported.
        """


@runtime_checkable
class Guarded(Protocol):
    """An objective that protects its samples: it draws the batches itself, and may hide losses.

    ``shows_losses``: whether ``gradient`` returns real losses; otherwise it returns zeros.
    """

    shows_losses: bool

    def batches(self, rows: Tensor, pass_: Pass) -> Iterator[Tensor]:
        """Yield batches of a pass over a client's rows (m,), each an index tensor; ``gradient`` accepts no others."""

    def position(self, client: int) -> Position:
        """Return the position of a client's ledger, for a checkpoint."""

    def require(self, client: int, position: Position) -> None:
        """Raise PrivacyError unless a client's ledger continues from a checkpoint's position."""

    def spent(self, client: int) -> float:
        """Return a client's epsilon so far."""

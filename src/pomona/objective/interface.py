"""Interface of the objective: all that a method may ask of private data."""

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
    """Losses and gradients of model rows. A method reads samples in no other way.

    A row (d,) holds a model's parameters. Where statistics of BatchNorm travel with a model, they may stand behind
    them: training then moves them in place, and evaluation uses them. A row without is evaluated with statistics
    estimated on the client's own training data.
    """

    data: DeviceDataset
    least_batch: int  # samples that a training step needs
    layers: tuple[slice, ...]  # of a row, one a layer from input to output
    norms: tuple[slice, ...]  # of a row, the parameters of normalisation layers

    def gradient(
        self,
        W: Tensor,
        indices: list[Tensor],
        criterion: Criterion | list[RowCriterion] | None = None,
        above: int = 0,
        views: Views = None,
    ) -> tuple[Tensor, Tensor]:
        """Mean losses (n,) of rows W (n, d), row k on the samples ``indices[k]``, and their gradients G (n, d).

        Entries of G below index ``above`` are not used and may be zero. ``views``: how training sees the batches, one a
        row; without them the samples are taken as they are.
        """

    def hessian(self, W: Tensor, indices: list[Tensor], Z: Tensor, views: Views = None) -> Tensor:
        """Products (n, d) of the mean losses' Hessians at rows W (n, d), on the samples, with vectors Z (n, d)."""

    def outputs(self, row: Tensor, client: int, split: str) -> tuple[Tensor, Tensor]:
        """Outputs (b, K) of one row (d,) on all of a client's split, and the targets."""

    def batchwise(
        self, row: Tensor, client: int, split: str, of: Callable[[Tensor, Tensor], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """What a function makes of a batch's outputs and targets, samples first, on all of a client's split.

        () for no samples. No more than what the function returns is held.
        """

    def features(self, row: Tensor, client: int, split: str) -> Tensor:
        """Inputs (b, f) of the last layer under one row (d,), on all of a client's split."""

    def tensors(self, row: Tensor, client: int) -> dict[str, Tensor]:
        """One row (d,) as named tensors, with the buffers it is evaluated with at a client."""

    def losses(self, row: Tensor, client: int, split: str) -> Tensor:
        """Per-sample losses (b,) of one row on all of a client's split."""

    def criterion(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The run's own per-sample losses (b,)."""


@runtime_checkable
class Reusing(Protocol):
    """An objective that can use again what layers below a coordinate made of a batch."""

    def gradient_above(
        self, W: Tensor, indices: list[Tensor], above: int, kept: ConstantFeatures, views: Sequence[View]
    ) -> tuple[Tensor, Tensor]:
        """As ``Objective.gradient``, for rows that below ``above`` are the same whenever they come with a batch."""


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
        """Mean losses (n,) before one step on rows W (n, d), in place; None, with nothing done, if it takes none.

        ``pull`` is added to the gradient; where ``part`` is given, it alone moves, and ``moments`` are those of it.
        """


@runtime_checkable
class Mixing(Protocol):
    """An objective that may mix rows itself, and take whole steps of plain SGD on mixtures.

    ``mixes``: whether it does; the numbers of a client then do not depend on who else is in the call, and rows that
    stand in several places are read as one.
    """

    mixes: bool

    def mixtures(self, mixture: Mixture) -> Tensor:
        """The mixtures (n, d)."""

    def products(self, mixture: Mixture, G: Tensor) -> Tensor:
        """The products (n, N) of rows G (n, d) with the rows that are mixed."""

    def mixed_step(
        self, mixture: Mixture, indices: list[Tensor], moments: Tensor, round_: Round, views: Views = None
    ) -> tuple[Tensor, Tensor] | None:
        """Mean losses (n,) at the mixtures, and the slopes (n, N) of their weights.

        The clients' own rows move, in place. None, with nothing done, if it takes no such steps.
        """


@runtime_checkable
class Guarded(Protocol):
    """An objective that guards its samples: it draws the batches itself, and may keep losses to itself.

    ``shows_losses``: whether the losses that ``gradient`` returns are losses; zeros, which say nothing, if not.
    """

    shows_losses: bool

    def batches(self, rows: Tensor, pass_: Pass) -> Iterator[Tensor]:
        """The batches of a pass over a client's rows (m,), each an index tensor; ``gradient`` takes no others."""

    def position(self, client: int) -> Position:
        """Position of a client's ledger, for a checkpoint."""

    def require(self, client: int, position: Position) -> None:
        """Raise PrivacyError unless a client's ledger goes on from a checkpoint's position."""

    def spent(self, client: int) -> float:
        """A client's epsilon so far."""

"""What a method may ask of private data: the interface that every backend of the objective keeps."""

from typing import Protocol

from torch import Tensor

from pomona.objective.loop import Criterion
from pomona.objective.resident import Resident


class Objective(Protocol):
    """Losses and gradients of model rows. Nothing else in the product reads samples."""

    data: Resident
    least_batch: int  # samples that a training step needs
    layers: tuple[slice, ...]  # of a row, one a layer from input to output

    def gradient(self, W: Tensor, indices: list[Tensor], criterion: Criterion | None = None) -> tuple[Tensor, Tensor]:
        """Mean losses (n,) of rows W (n, d), row k on the samples ``indices[k]``, and their gradients G (n, d)."""

    def outputs(self, row: Tensor, client: int, split: str) -> tuple[Tensor, Tensor]:
        """Outputs (b, K) of one row (d,) on all of a client's split, and the targets."""

    def losses(self, row: Tensor, client: int, split: str) -> Tensor:
        """Per-sample losses (b,) of one row on all of a client's split."""

    def criterion(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The run's own per-sample losses (b,)."""

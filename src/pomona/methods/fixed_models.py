"""Outputs or features of a fixed model on a client's training samples, computed once per round for all batches."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pomona.objective.objective import Objective


@dataclass(frozen=True)
class Cached:
    """A model's outputs or features on a client's training samples.

    ``rows`` (m,) are the samples, ascending; ``values`` (m, ...) the model's outputs or features on each, computed as
    in an
    evaluation: without augmentation and in evaluation mode.
    """

    rows: Tensor
    values: Tensor

    @classmethod
    def outputs(cls, objective: Objective, row: Tensor, client: int) -> "Cached":
        """Return the outputs (m, K) under one row (d,)."""
        return cls._ordered(objective, client, objective.outputs(row, client, "train")[0])

    @classmethod
    def features(cls, objective: Objective, row: Tensor, client: int) -> "Cached":
        """Return the last layer's inputs (m, f) under one row (d,). Raises ConfigError if training uses patches."""
        return cls._ordered(objective, client, objective.features(row, client, "train"))

    @classmethod
    def _ordered(cls, objective: Objective, client: int, values: Tensor) -> "Cached":
        rows, order = objective.data.rows["train"][client].sort()
        return cls(rows, values[order])

    def of(self, index: Tensor) -> Tensor:
        """Return the values (b, ...) of the samples ``index`` (b,) of the client."""
        return self.values[torch.searchsorted(self.rows, index)]

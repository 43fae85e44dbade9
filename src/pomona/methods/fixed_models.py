"""Outputs or features of a fixed model on a client's training samples, computed once a round for all batches."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pomona.objective.interface import Objective


@dataclass(frozen=True)
class Cached:
    """A model's outputs or features of a client's training samples.

    ``rows`` (m,) are the samples, ascending; ``values`` (m, ...) the model's outputs or features on each, as in an
    evaluation: of samples as they are, without changes that training makes, in evaluation mode.
    """

    rows: Tensor
    values: Tensor

    @classmethod
    def outputs(cls, objective: Objective, row: Tensor, client: int) -> "Cached":
        """The outputs (m, K) under one row (d,)."""
        return cls._ordered(objective, client, objective.outputs(row, client, "train")[0])

    @classmethod
    def features(cls, objective: Objective, row: Tensor, client: int) -> "Cached":
        """What the last layer receives (m, f) under one row (d,). Raises ConfigError where training sees patches."""
        return cls._ordered(objective, client, objective.features(row, client, "train"))

    @classmethod
    def _ordered(cls, objective: Objective, client: int, values: Tensor) -> "Cached":
        rows, order = objective.data.rows["train"][client].sort()
        return cls(rows, values[order])

    def of(self, index: Tensor) -> Tensor:
        """The values (b, ...) of the samples ``index`` (b,) of the client."""
        return self.values[torch.searchsorted(self.rows, index)]

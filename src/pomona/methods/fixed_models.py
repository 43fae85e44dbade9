"""What a model that does not change says of a client's training samples, asked once a round for all batches."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pomona.objective.interface import Objective


@dataclass(frozen=True)
class Said:
    """A model's outputs or features of a client's training samples.

    ``rows`` (m,) are the samples, ascending; ``says`` (m, ...) what the model says of each. The samples are seen as in
    an evaluation: as they are, without changes that training makes, in evaluation mode.
    """

    rows: Tensor
    says: Tensor

    @classmethod
    def outputs(cls, objective: Objective, row: Tensor, client: int) -> "Said":
        """The outputs (m, K) under one row (d,)."""
        return cls._ordered(objective, client, objective.outputs(row, client, "train")[0])

    @classmethod
    def features(cls, objective: Objective, row: Tensor, client: int) -> "Said":
        """What the last layer receives (m, f) under one row (d,). Raises ConfigError where training sees patches."""
        return cls._ordered(objective, client, objective.features(row, client, "train"))

    @classmethod
    def _ordered(cls, objective: Objective, client: int, says: Tensor) -> "Said":
        rows, order = objective.data.rows["train"][client].sort()
        return cls(rows, says[order])

    def of(self, index: Tensor) -> Tensor:
        """What it says of the samples ``index`` (b,) of the client."""
        return self.says[torch.searchsorted(self.rows, index)]

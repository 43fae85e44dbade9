"""A scenario's data, resident as tensors and gathered by index: no loader, no collating, no copies per client."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pomona.data.dataset import Dataset
from pomona.models import Targets
from pomona.partition.partition import Partition

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Resident:
    """Inputs and targets of all clients, and who holds which rows.

    Attributes:
        x: as in ``Dataset``: (N, H, W, C) uint8, (N, F) float32 or (N, T) int32.
        y: (N,) int64 or (N, K) float32.
        shift, scale: float32, broadcast over the last axis; None for text.
        rows: split -> one int64 index tensor a client, in id order.
        targets: what y is.
    """

    x: Tensor
    y: Tensor
    shift: Tensor | None
    scale: Tensor | None
    rows: dict[str, list[Tensor]]
    targets: Targets

    @classmethod
    def of(cls, dataset: Dataset, partition: Partition, targets: Targets, device: str = "cpu") -> "Resident":
        """Put a data set and its partition on a device; on a CPU a memory-mapped array stays on disk."""
        text = dataset.kind == "text"
        shift, scale = (
            None if text else torch.tensor(v, dtype=torch.float32).to(device) for v in (dataset.shift, dataset.scale)
        )
        rows = {s: [torch.from_numpy(getattr(c, s)) for c in partition.clients] for s in SPLITS}
        x, y = (torch.from_numpy(np.asarray(a)).to(device) for a in (dataset.x, dataset.y))
        return cls(
            x, y, shift, scale, {s: [r.to(device) for r in per_client] for s, per_client in rows.items()}, targets
        )

    def gather(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """What the model takes for rows ``index`` (b,), and targets.

        Inputs are (b, C, H, W) channels-last, (b, F) or (b, T).
        """
        x, y = self.x.index_select(0, index), self.y.index_select(0, index)  # on a CPU, a fraction of x[index]'s time
        if self.shift is None or self.scale is None:
            return x, y
        x = torch.sub(x, self.shift).div_(self.scale)  # from uint8 to float32 in the same pass
        return (x.movedim(-1, 1) if x.dim() == 4 else x), y

    def sizes(self, split: str) -> list[int]:
        """Number of samples per client."""
        return [len(r) for r in self.rows[split]]

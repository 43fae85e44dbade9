"""Who takes part and where training stands: the two frozen records that every method's functions receive."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Roster:
    """All members of the federation, in id order, whether or not they take part in a round.

    ``sizes``: number of training samples per client; it leaves the client, once, when it registers.
    """

    sizes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def shares(self) -> Tensor:
        """n_i / n for all clients, (N,) float64."""
        sizes = torch.tensor(self.sizes, dtype=torch.float64)
        return sizes / sizes.sum()

    def weights(self, ids: tuple[int, ...]) -> Tensor:
        """n_i over the sum of those in ``ids``: weights (len(ids),) float64 of a mean over samples."""
        sizes = torch.tensor([self.sizes[i] for i in ids], dtype=torch.float64)
        return sizes / sizes.sum()


@dataclass(frozen=True)
class Round:
    """One round's settings; everything scheduled is a pure function of the round's number (1 to total).

    ``lr`` is already decayed; ``decay`` is the factor itself, for a method's other rates.
    """

    number: int
    total: int
    lr: float
    decay: float
    epochs: int
    batch_size: int
    momentum: float
    weight_decay: float
    seed: int

"""``Roster`` (members and sample counts) and ``Round`` (number and step settings), passed to every method."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from pomona.core.optimizer import Optimizer
from pomona.core.weight_limit import limited


@dataclass(frozen=True)
class Roster:
    """All clients of the federation, in id order, whether or not they take part in a round.

    ``sizes``: number of training samples per client; it leaves the client, once, when it registers. 0 for a client
    that is no member now. Methods weigh clients by ``shares`` and ``weights``, in which nobody counts for more than
    ``largest`` of those that are averaged, see ``federation.share``.
    """

    sizes: tuple[int, ...]
    largest: float = 1.0

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def members(self) -> tuple[int, ...]:
        """The ids of those who are members now, ascending."""
        return tuple(i for i, size in enumerate(self.sizes) if size)

    @cached_property
    def known(self) -> Tensor:
        """Mask (N,) bool of the current members."""
        return torch.tensor(self.sizes) > 0

    def only(self, ids: tuple[int, ...]) -> "Roster":
        """The roster with these clients for members."""
        return replace(self, sizes=tuple(size if i in ids else 0 for i, size in enumerate(self.sizes)))

    def plus(self, client: int, everybody: "Roster") -> "Roster":
        """The roster with one client more, whose size stands on another."""
        return everybody.only((*self.members, client))

    @cached_property
    def shares(self) -> Tensor:
        """n_i / n for all clients, (N,) float64, each at most ``largest``."""
        return _normed(limited(self.sizes, self.largest))

    def weights(self, ids: tuple[int, ...]) -> Tensor:
        """n_i over the sum of those in ``ids``: weights (len(ids),) float64 of a mean, each at most ``largest``."""
        return _normed(limited([self.sizes[i] for i in ids], self.largest))


def _normed(counted: Sequence[float]) -> Tensor:
    sizes = torch.tensor(counted, dtype=torch.float64)
    return sizes / sizes.sum()


@dataclass(frozen=True)
class Round:
    """One round's settings; everything scheduled is a pure function of the round's number (1 to total).

    ``base_lr`` is the rate as configured, ``lr`` that of this round; ``decay``, the factor between them, is for a
    method's other rates.
    """

    number: int
    total: int
    lr: float
    base_lr: float
    decay: float
    epochs: int
    batch_size: int
    momentum: float
    weight_decay: float
    seed: int
    optimizer: Optimizer

    @property
    def unscheduled(self) -> "Round":
        """The same at the rates as configured: for training that only serves an evaluation, whatever the round."""
        return replace(self, lr=self.base_lr, decay=1.0)

"""A round's members and settings: ``Roster`` (members and sample counts) and ``Round`` (number and
step settings).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from pomona.core.training_settings import Optimizer, Passes
from pomona.core.weight_limit import limited


@dataclass(frozen=True)
class Roster:
    """All clients of the federation, in id order, whether or not they take part in a round.

    ``sizes``: number of training samples per client, which the client reports once, when it
    registers; 0 for a client that is currently not a member. Methods weight clients by ``shares``
    and ``weights``, which limit each client's share of an average to ``largest``; see
    ``core.weight_limit``.
    """

    sizes: tuple[int, ...]
    largest: float = 1.0

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def members(self) -> tuple[int, ...]:
        """The ids of the current members, in ascending order."""
        return tuple(i for i, size in enumerate(self.sizes) if size)

    @cached_property
    def known(self) -> Tensor:
        """The mask (N,) bool of the current members."""
        return torch.tensor(self.sizes) > 0

    def only(self, ids: tuple[int, ...]) -> "Roster":
        """Return the roster with only these clients as members."""
        members = set(ids)
        return replace(
            self, sizes=tuple(size if i in members else 0 for i, size in enumerate(self.sizes))
        )

    def plus(self, client: int, all_clients: "Roster") -> "Roster":
        """Return the roster with one client added, whose size comes from another roster."""
        return all_clients.only((*self.members, client))

    @cached_property
    def shares(self) -> Tensor:
        """Return n_i / n of all clients, (N,) float64, each at most ``largest``."""
        return _normed(limited(self.sizes, self.largest))

    def weights(self, ids: tuple[int, ...]) -> Tensor:
        """Return weights (len(ids),) float64 of a mean, n_i over the sum of ``ids``, each at most
        ``largest``.
        """
        return _normed(limited([self.sizes[i] for i in ids], self.largest))


def _normed(counted: Sequence[float]) -> Tensor:
    sizes = torch.tensor(counted, dtype=torch.float64)
    return sizes / sizes.sum()


@dataclass(frozen=True)
class Round:
    """One round's settings; every scheduled value is a pure function of the round number (1 to
    total).

    A client trains for ``epochs`` passes over its data, or ``steps`` steps if given. ``base_lr`` is
    the configured learning rate and ``lr`` this round's; ``decay`` is their ratio, for a method's
    other rates.
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
    steps: int | None = None

    @property
    def passes(self) -> Passes:
        """The length of a client's training in the round."""
        return Passes(self.epochs, self.steps)

    @property
    def unscheduled(self) -> "Round":
        """The round with unscheduled rates, for training that only serves an evaluation."""
        return replace(self, lr=self.base_lr, decay=1.0)

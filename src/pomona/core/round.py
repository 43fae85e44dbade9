"""A round's members and settings: ``Roster`` (members and sample counts) and ``Round`` (number and
step settings).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TypeAlias, TypeVar

from pomona.core.lazy_torch import Tensor, torch
from pomona.core.training_settings import Optimizer, Passes

Ids: TypeAlias = tuple[int, ...]
"""Numbers of clients, which are their places in a roster."""


@dataclass(frozen=True)
class Roster:
    """All clients of the federation, in id order, whether or not they take part in a round.

    ``sizes``: number of training samples per client, which the client reports once, when it
    registers; 0 for a client that is currently not a member. Methods weight clients by ``shares``
    and ``weights``, which limit each client's share of an average to ``largest``.
    """

    sizes: tuple[int, ...]
    largest: float = 1.0

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def members(self) -> Ids:
        """The ids of the current members, in ascending order."""
        return tuple(i for i, size in enumerate(self.sizes) if size)

    @cached_property
    def member_mask(self) -> Tensor:
        """The mask (N,) bool of the current members."""
        return torch.tensor(self.sizes) > 0

    def only(self, ids: Ids) -> "Roster":
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

    def weights(self, ids: Ids) -> Tensor:
        """Return weights (len(ids),) float64 of a mean, n_i over the sum of ``ids``, each at most
        ``largest``.
        """
        return _normed(limited([self.sizes[i] for i in ids], self.largest))


def _normed(limited_sizes: Sequence[float]) -> Tensor:
    sizes = torch.tensor(limited_sizes, dtype=torch.float64)
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


Exact = TypeVar("Exact", int, Fraction)


def limited(sizes: Sequence[Exact], largest: float) -> tuple[Exact | float, ...]:
    """Return effective sample counts; the same as ``sizes`` if no client exceeds the limit.

        n'_i = min(n_i, c),  c the largest number with  c <= s * sum_j min(n_j, c)

    Clients that are not limited keep the ratios of their counts. Among m clients the largest weight
    is at least 1/m, so for m <= 1/s all weights are equal.

    Args:
        sizes: sample counts of the clients in the average, or other weights; 0 for clients that are
            not members, which stay at 0. Exact numbers, because with floats the sum of the rest
            could become negative.
        largest: the share s, in (0, 1]; 1 means no limit.
    """
    share, total = Fraction(largest), sum(sizes)
    descending = sorted((n for n in sizes if n), reverse=True)
    if not descending or descending[0] <= share * total or descending[0] == descending[-1]:
        return tuple(sizes)
    if len(descending) * share <= 1:
        return tuple(int(n > 0) for n in sizes)
    # limited clients; exact, so that the loop ends before the divisor is 0
    for limited_count, n in enumerate(descending):
        limit = share * total / (1 - limited_count * share)
        if n <= limit:
            return tuple(float(min(Fraction(size), limit)) for size in sizes)
        total -= n
    raise AssertionError("the smallest of more than 1/s clients is never cut")


def weights(sizes: Sequence[Exact], largest: float) -> list[float]:
    """Return weights that sum to 1; all 0 if there are no samples."""
    limited_sizes = limited(sizes, largest)
    total = sum(limited_sizes)
    return [float(n / total) if total else 0.0 for n in limited_sizes]


SLACK = 1e-9
"""Tolerance for exceeding the limit: above rounding errors, and negligible in effect."""
BESIDE_NOTHING = 1e-12
"""Share of sample-count weights that clients keep where another client's factor leaves them
none.
"""


def reweighted(p: Sequence[float], method_weights: Sequence[float], largest: float) -> list[float]:
    """Apply the limit to weights that a method derives from ``p``: none exceeds ``largest`` of
    their sum.

    This also limits factors that clients send with their models. The sum is at most 1: with a
    limit, the update is no larger than the clients' changes. Returns ``method_weights`` unchanged
    if both already hold.

    Args:
        p: weights by sample count, which sum to 1, none above the limit where possible.
        method_weights: the method's weights, finite and at least 0, at least one of them positive.
        largest: the share s, in (0, 1]; 1 means no limit.
    """
    total = sum(method_weights)
    if largest == 1 or (
        total <= 1 + SLACK and max(method_weights) <= largest * total * (1 + SLACK)
    ):
        return list(method_weights)
    weighted = [
        Fraction(c / total) + Fraction(BESIDE_NOTHING) * Fraction(n)
        for c, n in zip(method_weights, p, strict=True)
    ]
    return [min(total, 1.0) * share for share in weights(weighted, largest)]

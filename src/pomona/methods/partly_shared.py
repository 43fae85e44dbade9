"""Training of a model of which a part is sent and the rest stays with its client.

    client           (s_i, k_i) <- SGD((s, k_i); E epochs on D_i)            both parts together
    server           s <- sum_i n_i / n s_i                                  k_i never leaves the client

FedBN, FedPer and LG-FedAvg differ only in the part that is kept. With nothing kept this is FedAvg, with everything
Separate, to the bit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from pomona.methods import base


class RowLayout(Protocol):
    """Any object that knows a row's layout, such as ``base.Initial`` and ``base.LocalTraining``."""

    @property
    def layers(self) -> tuple[slice, ...]:
        """Slices of a row, one per layer from input to output."""

    @property
    def norms(self) -> tuple[slice, ...]:
        """Slices of a row, one per tensor of a normalisation layer, in order."""


Kept = Callable[[RowLayout], tuple[slice, ...]]  # the parts of a row that stay with the client, in order


@dataclass(frozen=True)
class KeptState:
    """The part that stays with a client (n, k)."""

    kept: Tensor


def server(kept: Kept) -> base.Server:
    """Return FedAvg's server for the part that is sent, (d - k,)."""
    return base.averaging(lambda initial: base.without(initial(), *kept(initial)))


def client(kept: Kept) -> base.Client:
    """Train the whole model, keep one part and send the rest."""

    def start(initial: base.Initial, roster: base.Roster, ids: tuple[int, ...], seed: int) -> KeptState:
        return KeptState(base.within(initial(), *kept(initial)).repeat(len(ids), 1))

    def train(
        state: KeptState, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[KeptState]:
        parts = kept(training)
        W = base.insert(received["model"], state.kept, *parts)
        training.observe("personal", W, "received")
        base.sgd(training, W, round_)
        training.observe("personal", W, "trained")
        return KeptState(base.within(W, *parts)), {"model": base.without(W, *parts)}, {}

    return base.Client(start, train, private=("kept",))

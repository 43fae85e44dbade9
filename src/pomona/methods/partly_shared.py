"""Training a model of which a part travels and the rest stays with its client.

    client           (s_i, k_i) <- SGD((s, k_i); E epochs on D_i)            both parts together
    server           s <- sum_i n_i / n s_i                                  k_i never leaves the client

Which part is kept is all that FedBN, FedPer and LG-FedAvg differ in. With nothing kept this is FedAvg, with everything
Separate, to the bit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from pomona.methods import base


class RowLayout(Protocol):
    """Whatever knows how a row is laid out: ``base.Initial`` and ``base.LocalTraining`` do."""

    @property
    def layers(self) -> tuple[slice, ...]:
        """Slices of a row, one a layer from input to output."""

    @property
    def norms(self) -> tuple[slice, ...]:
        """Slices of a row, one a tensor of a normalisation layer, in order."""


Kept = Callable[[RowLayout], tuple[slice, ...]]  # the parts of a row that stay with the client, in order


@dataclass(frozen=True)
class KeptState:
    """What stays with a client (n, k)."""

    kept: Tensor


def server(kept: Kept) -> base.Server:
    """FedAvg's server for what travels, (d - k,)."""
    return base.averaging(lambda initial: base.without(initial(), *kept(initial)))


def client(kept: Kept) -> base.Client:
    """Trains its whole model, keeps its part and sends the rest."""

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

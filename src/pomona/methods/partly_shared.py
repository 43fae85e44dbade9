"""Models of which a part is sent and the rest stays with its client; parts of rows, by layers.

    client           (s_i, k_i) <- SGD((s, k_i); E epochs on D_i)            both parts together
    server           s <- sum_i n_i / n s_i                                  k_i never leaves the client

FedBN, FedPer and LG-FedAvg differ only in the part that is kept. With nothing kept this is FedAvg,
with everything Separate, to the bit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pomona.core.errors import ConfigError
from pomona.methods import base, fedavg


class RowLayout(Protocol):
    """Any object that knows a row's layout, such as ``base.Initial`` and ``base.LocalTraining``."""

    @property
    def layers(self) -> tuple[slice, ...]:
        """Slices of a row, one per layer from input to output."""

    @property
    def norms(self) -> tuple[slice, ...]:
        """Slices of a row, one per tensor of a normalisation layer, in order."""


Layers = tuple[slice, ...]  # of a row, from input to output


def top_layers(layers: Layers, count: int, key: str = "method.layers") -> slice:
    """Return the slice of the ``count`` top layers in a row.

    Raises ConfigError if there are fewer.
    """
    _require_layers(layers, count, key)
    return slice(layers[-count].start if count else layers[-1].stop, layers[-1].stop)


def head(layers: Layers, shared: int | None) -> slice:
    """Return the slice above the ``shared`` lower layers (``method.shared``); the last layer if
    None.
    """
    if shared is None:
        return top_layers(layers, 1)
    _require_layers(layers, shared, "method.shared")
    return top_layers(layers, len(layers) - shared)


def _require_layers(layers: Layers, count: int, key: str) -> None:
    if not 0 <= count <= len(layers):
        raise ConfigError(
            f"{key} is {count}, and the network has {len(layers)} layers; set it to {len(layers)} "
            "or less"
        )


def select_columns(W: Tensor, *parts: slice) -> Tensor:
    """Concatenate some parts of rows (..., d): (..., p)."""
    return torch.cat([W[..., part] for part in parts] or [W[..., :0]], dim=-1)


def drop_columns(W: Tensor, *parts: slice) -> Tensor:
    """Return rows (..., d) without some parts, which are in order and disjoint: (..., d - p)."""
    ends = [0, *(part.stop for part in parts)]
    starts = [*(part.start for part in parts), W.shape[-1]]
    return select_columns(W, *(slice(end, start) for end, start in zip(ends, starts, strict=True)))


def insert_columns(rest: Tensor, values: Tensor, *parts: slice) -> Tensor:
    """Return new rows (..., d): parts (..., p) of ``select_columns``, the rest (..., d - p) of
    ``drop_columns``.
    """
    pieces, kept, taken = [], 0, 0
    for part in parts:
        gap, length = part.start - kept - taken, part.stop - part.start
        pieces += [rest[..., kept : kept + gap], values[..., taken : taken + length]]
        kept, taken = kept + gap, taken + length
    return torch.cat([*pieces, rest[..., kept:]], dim=-1)


# the parts of a row that stay with the client, in order
Kept = Callable[[RowLayout], tuple[slice, ...]]


@dataclass(frozen=True)
class KeptState:
    """The part that stays with a client (n, k)."""

    kept: Tensor


def server(kept: Kept) -> base.Server:
    """Return FedAvg's server for the part that is sent, (d - k,)."""
    return fedavg.server(lambda initial: drop_columns(initial(), *kept(initial)))


def client(kept: Kept) -> base.Client:
    """Train the whole model, keep one part and send the rest."""

    def start(
        initial: base.Initial, roster: base.Roster, ids: tuple[int, ...], seed: int
    ) -> KeptState:
        return KeptState(select_columns(initial(), *kept(initial)).repeat(len(ids), 1))

    def train(
        state: KeptState, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[KeptState]:
        parts = kept(training)
        W = insert_columns(received["model"], state.kept, *parts)
        training.observe("personal", W, "received")
        base.sgd(training, W, round_)
        training.observe("personal", W, "trained")
        return KeptState(select_columns(W, *parts)), {"model": drop_columns(W, *parts)}, {}

    return base.Client(start, train, private=("kept",))

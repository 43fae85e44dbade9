"""Models of which a part is sent and the rest stays with its client; parts of rows, by layers or by
the names of parameters.

    client           (s_i, k_i) <- SGD((s, k_i); E epochs on D_i)            both parts together
    server           s <- sum_i n_i / n s_i                                  k_i never leaves the client

FedBN, FedPer, FedSA-LoRA and LG-FedAvg differ only in the part that is kept. With nothing kept this
is FedAvg, with everything Separate, to the bit.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Protocol

from pydantic import Field

from pomona.core.errors import ConfigError
from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base
from pomona.methods.one_model import fedavg
from pomona.models.layers import matching
from pomona.models.settings import Globs
from pomona.objective.training import TRAINING


class RowLayout(Protocol):
    """Any object that knows a row's layout, such as ``base.Initial`` and ``base.LocalTraining``."""

    @property
    def layers(self) -> tuple[slice, ...]:
        """Slices of a row, one per layer from input to output."""

    @property
    def norms(self) -> tuple[slice, ...]:
        """Slices of a row, one per tensor of a normalisation layer, in order."""

    @property
    def parameters(self) -> tuple[base.ParameterSlice, ...]:
        """The places of all tensors in a row, in order, with their names."""


Layers = tuple[slice, ...]  # of a row, from input to output
Columns = tuple[slice, ...]  # of a row, in order and disjoint
# a number of layers, or globs over the names of parameters
Shared = Annotated[int, Field(ge=0)] | Globs
BY_NAME = "; or a list of globs over parameters"
_LOWER = "lower layers that are shared; all but the last if not set" + BY_NAME
LowerLayers = Annotated[Shared | None, Field(description=_LOWER)]
KEY = "method.shared"


def top_layers(layers: Layers, count: int, key: str = "method.layers") -> slice:
    """Return the slice of the ``count`` top layers in a row.

    Raises ConfigError if there are fewer.
    """
    _require_layers(layers, count, key)
    return slice(layers[-count].start if count else layers[-1].stop, layers[-1].stop)


def _require_layers(layers: Layers, count: int, key: str) -> None:
    if not 0 <= count <= len(layers):
        raise ConfigError(
            f"{key} is {count}, and the network has {len(layers)} layers; set it to {len(layers)} "
            "or less"
        )


def head(row: RowLayout, shared: Shared | None) -> Columns:
    """Return what stays with a client if the ``shared`` lower layers are shared, all but the last
    if None; or what a list of globs does not match.

    Raises ConfigError if the network has fewer layers, or nothing that a glob matches.
    """
    if isinstance(shared, tuple):
        return gaps(matched(row, shared, KEY), row.layers[-1].stop)
    if shared is None:
        return (row.layers[-1],)
    _require_layers(row.layers, shared, KEY)
    return (top_layers(row.layers, len(row.layers) - shared),)


def foot(row: RowLayout, shared: Shared) -> Columns:
    """Return what stays with a client if the ``shared`` upper layers are shared; otherwise as
    ``head``.
    """
    if isinstance(shared, tuple):
        return head(row, shared)
    return (slice(0, top_layers(row.layers, shared, KEY).start),)


def top(row: RowLayout, shared: Shared, key: str) -> Columns:
    """Return the ``shared`` upper layers, or what globs match. Raises as ``head`` does."""
    if isinstance(shared, tuple):
        return matched(row, shared, key)
    return (top_layers(row.layers, shared, key),)


def matched(row: RowLayout, globs: Globs, key: str) -> Columns:
    """Return the parameters whose names match one of the globs.

    Raises ConfigError, naming the setting ``key``, for a glob without matches.
    """
    names = matching([entry.name for entry in row.parameters], globs, key, "parameter")
    return merge(slice(e.start, e.stop) for e in row.parameters if e.name in names)


def merge(columns: Iterable[slice]) -> Columns:
    """Return ordered parts with those that touch made one."""
    merged: list[slice] = []
    for s in columns:
        start = merged.pop().start if merged and merged[-1].stop == s.start else s.start
        merged.append(slice(start, s.stop))
    return tuple(merged)


def gaps(columns: Columns, length: int) -> Columns:
    """Return the parts of a row of this length between other ones, none of them empty."""
    gap_starts = [0, *(s.stop for s in columns)]
    gap_stops = [*(s.start for s in columns), length]
    pairs = zip(gap_starts, gap_stops, strict=True)
    return tuple(slice(a, b) for a, b in pairs if a < b)


def select_columns(W: Tensor, *columns: slice) -> Tensor:
    """Concatenate some parts of rows (..., d): (..., p)."""
    return torch.cat([W[..., s] for s in columns] or [W[..., :0]], dim=-1)


def drop_columns(W: Tensor, *columns: slice) -> Tensor:
    """Return rows (..., d) without some parts, which are in order and disjoint: (..., d - p)."""
    return select_columns(W, *gaps(columns, W.shape[-1]))


def insert_columns(remaining: Tensor, values: Tensor, *columns: slice) -> Tensor:
    """Return new rows (..., d): parts (..., p) of ``select_columns``, the rest (..., d - p) of
    ``drop_columns``.
    """
    pieces, offset, value_offset = [], 0, 0
    for s in columns:
        gap, length = s.start - offset - value_offset, s.stop - s.start
        pieces += [
            remaining[..., offset : offset + gap],
            values[..., value_offset : value_offset + length],
        ]
        offset, value_offset = offset + gap, value_offset + length
    return torch.cat([*pieces, remaining[..., offset:]], dim=-1)


def put_columns(W: Tensor, values: Tensor, *columns: slice) -> None:
    """Overwrite parts of rows (..., d) by values (..., p) of ``select_columns``, in place."""
    lengths = [s.stop - s.start for s in columns]
    for s, piece in zip(columns, values.split_with_sizes(lengths, dim=-1), strict=True):
        W[..., s] = piece


def sgd(
    training: base.LocalTraining,
    W: Tensor,
    round_: base.Round,
    columns: Columns,
    epochs: int | None = None,
    purpose: str = TRAINING,
) -> None:
    """Take local steps on some parts of rows W (n, d), in place; the rest of each row is fixed.

    Whole layers in one piece move as ``base.sgd`` moves them, by steps of the engine.
    """
    columns = tuple(s for s in columns if s.start < s.stop)
    edges = {0, *(layer.stop for layer in training.layers)}
    if len(columns) == 1 and {columns[0].start, columns[0].stop} <= edges:
        base.sgd(training, W, round_, epochs, purpose=purpose, columns=columns[0])
    elif columns:
        passes = round_.passes if epochs is None else epochs
        state = base.optimizer_state(select_columns(W, *columns), round_)
        for batch, w, moments in training.steps(passes, W, state, purpose=purpose):
            _, g = training.gradient(w, batch, above=columns[0].start)
            trained = select_columns(w, *columns)
            base.optimizer_step(trained, select_columns(g, *columns), moments, round_)
            put_columns(w, trained, *columns)


KeepRule = Callable[[RowLayout], Columns]  # what stays with the client


@dataclass(frozen=True)
class KeptState:
    """The part that stays with a client (n, k)."""

    kept: Tensor


def server(kept_columns: KeepRule) -> base.Server:
    """Return FedAvg's server for the part that is sent, (d - k,)."""
    return fedavg.server(lambda initial: drop_columns(initial(), *kept_columns(initial)))


def client(kept_columns: KeepRule) -> base.Client:
    """Train the whole model, keep one part and send the rest."""

    def start(initial: base.Initial, roster: base.Roster, ids: base.Ids, seed: int) -> KeptState:
        return KeptState(select_columns(initial(), *kept_columns(initial)).repeat(len(ids), 1))

    def train(
        state: KeptState, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[KeptState]:
        columns = kept_columns(training)
        W = insert_columns(received["model"], state.kept, *columns)
        training.observe("personal", W, "received")
        base.sgd(training, W, round_)
        training.observe("personal", W, "trained")
        return KeptState(select_columns(W, *columns)), {"model": drop_columns(W, *columns)}, {}

    return base.Client(start, train, private=("kept",))


def by_name(card: base.Card, shared: Shared | None) -> base.Card:
    """Return a method's card; if ``shared`` lists globs, with the exchange in those words."""
    if not isinstance(shared, tuple):
        return card
    amount = "share of the parameters in method.shared"
    exchange = replace(card.exchange, down=amount, up=amount, private="the other layers")
    return replace(card, exchange=replace(exchange, keeps="its other parameters"))

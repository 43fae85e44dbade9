"""Algebra on rows shared by methods, each row the parameters of one model; methods access it through ``base``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pomona.core.errors import ConfigError
from pomona.core.round import Roster, Round
from pomona.objective.objective import Pull, RowCriterion
from pomona.objective.optimizer_step import descend, moments_of
from pomona.objective.training import TRAINING, LocalTraining
from pomona.storage.mapped_tensor import by_columns, norms_by_columns, sum_by_columns, with_rows
from pomona.storage.row_bank import RowBank

TINY = 1e-12
"""Shorter rows are treated as having this length, and no direction."""


@dataclass(frozen=True)
class Rows:
    """Models by receiver, without copies: receiver k of a downlink gets ``bank[index[k]]``.

    ``bank`` (V, d); ``index`` (n,) for one model each, or (n, M) for M models each: then row j of the bank is client
    j's, and a receiver's own id marks an empty place.
    """

    bank: Tensor
    index: Tensor

    @classmethod
    def same(cls, row: Tensor, n: int) -> "Rows":
        """Return one model (d,) for all n receivers."""
        return cls(row.unsqueeze(0), torch.zeros(n, dtype=torch.long))

    def part(self, places: Sequence[int]) -> "Rows":
        """Return the models of the receivers at these places."""
        return Rows(self.bank, self.index[places])


@dataclass(frozen=True)
class Copies:
    """Models of n clients as last received: for receiver k, client j's is ``bank[index[k, j]]``.

    ``bank`` has rows (d,) by number; ``index`` (n, N) are numbers; ``came`` (n, M) the clients whose models were
    received in this call, where a receiver's own id marks an empty place.
    """

    bank: RowBank
    index: Tensor
    came: Tensor

    def rows(self) -> Tensor:
        """Return the models (n, N, d), in memory that the next call overwrites; they must not be changed."""
        return self.bank[self.index]

    def part(self, places: Sequence[int]) -> "Copies":
        """Return the copies of the receivers at these places."""
        return Copies(self.bank, self.index[places], self.came[places])


def weighted_mean(W: Tensor, p: Tensor) -> Tensor:
    """Return sum_i p_i w_i (d,) of rows W (n, d) with weights p (n,) that sum to 1; exactly w if all rows equal w."""
    return by_columns(lambda w: w[0] + p.to(w) @ (w - w[0]), W)


def mean_of(W: Tensor, roster: Roster) -> Tensor:
    """Return the mean model (d,) of the members, weighted by their samples, from the rows W (N, d) of all clients."""
    return by_columns(lambda w: weighted_mean(w[roster.known], roster.shares[roster.known]), W)


def mean_of_some(W: Tensor, chosen: Tensor) -> Tensor:
    """Return the plain mean (d,) of the rows W (n, d) in a mask (n,)."""
    p = torch.full((int(chosen.sum()),), 1 / int(chosen.sum()), dtype=torch.float64)
    return by_columns(lambda w: weighted_mean(w[chosen], p), W)


def cosines(function: Callable[..., Tensor], *tensors: Tensor, scale: float = 1.0) -> Tensor:
    """Return cosines (n, n), times ``scale``, of the rows (n, d) of a function by columns; 0 with a zero row."""
    lengths = norms_by_columns(function, *tensors).clamp_min(TINY).unsqueeze(1)

    def products(*pieces: Tensor) -> Tensor:
        units = function(*pieces) / lengths
        return scale * units @ units.T

    return sum_by_columns(products, *tensors)


def alike(row: Tensor, n: int) -> Tensor:
    """Repeat a row (d,) n times (n, d), without copying."""
    return row.expand(n, -1)


def placed(W: Tensor, ids: tuple[int, ...], rows: Tensor) -> Tensor:
    """Return rows W (N, d) with ``rows``, one for all (d,) or one each (n, d), in the places of ids."""
    return with_rows(W, ids, rows.expand(len(ids), -1))


def over_moments(mask: Tensor, moments: Tensor) -> Tensor:
    """Convert a mask over rows (n, d) to one over their moments (n, k), which always includes the number of steps."""
    times, count = divmod(moments.shape[1], mask.shape[1])
    return torch.cat([mask.repeat(1, times), mask.new_ones(len(mask), count)], 1)


Term = Callable[[Tensor], Tensor]  # rows w (a, d) -> an extra gradient term (a, d); a Pull if it is affine
Loss = Callable[[Tensor], RowCriterion]  # the samples (b,) of a batch -> the loss of one row on it


def sgd(
    training: LocalTraining,
    W: Tensor,
    round_: Round,
    epochs: int | None = None,
    pull: Pull | None = None,
    purpose: str = TRAINING,
    losses: Sequence[Loss] = (),
    term: Term | None = None,
) -> Tensor:
    """Take local steps on rows W (n, d), in place: ``epochs`` passes (the round's if None) over the training data.

    ``losses``, one per row, replace the run's own. ``pull`` and ``term`` are added to the gradient: a pull where it is
    affine in the row, so that an engine can take the whole step.
    """
    passes = round_.epochs if epochs is None else epochs
    for batch, w, moments in training.steps(passes, W, moments_of(W, round_), purpose=purpose):
        if not losses and term is None:
            training.step(w, batch, moments, round_, pull)
            continue
        own = [loss(index) for loss, index in zip(losses, batch.indices, strict=False)] or None
        _, g = training.gradient(w, batch, own)
        for extra in (pull, term):
            g = g if extra is None else g + extra(w)
        descend(w, g, moments, round_)
    return W


def sgd_on(part: slice, training: LocalTraining, W: Tensor, round_: Round, epochs: int, purpose: str) -> None:
    """Run local SGD on a part of rows W (n, d), in place, with the rest fixed; does nothing for an empty part."""
    if part.start == part.stop:
        return
    for batch, w, moments in training.steps(epochs, W, moments_of(W[:, part], round_), purpose=purpose):
        training.step(w, batch, moments, round_, part=part)


Layers = tuple[slice, ...]  # of a row, from input to output


def upper(layers: Layers, count: int, key: str = "method.layers") -> slice:
    """Return the slice of the ``count`` upper layers in a row. Raises ConfigError if there are fewer."""
    _require_layers(layers, count, key)
    return slice(layers[-count].start if count else layers[-1].stop, layers[-1].stop)


def head(layers: Layers, shared: int | None) -> slice:
    """Return the slice above the ``shared`` lower layers (``method.shared``); the last layer if None."""
    if shared is None:
        return upper(layers, 1)
    _require_layers(layers, shared, "method.shared")
    return upper(layers, len(layers) - shared)


def _require_layers(layers: Layers, count: int, key: str) -> None:
    if not 0 <= count <= len(layers):
        raise ConfigError(
            f"{key} is {count}, and the network has {len(layers)} layers; set it to {len(layers)} or less"
        )


def within(W: Tensor, *parts: slice) -> Tensor:
    """Concatenate some parts of rows (..., d): (..., p)."""
    return torch.cat([W[..., part] for part in parts] or [W[..., :0]], dim=-1)


def without(W: Tensor, *parts: slice) -> Tensor:
    """Return rows (..., d) without some parts, which are in order and disjoint: (..., d - p)."""
    ends = [0, *(part.stop for part in parts)]
    starts = [*(part.start for part in parts), W.shape[-1]]
    return within(W, *(slice(end, start) for end, start in zip(ends, starts, strict=True)))


def insert(rest: Tensor, values: Tensor, *parts: slice) -> Tensor:
    """Insert parts (..., p) from ``within`` into the rest (..., d - p) from ``without``; returns new rows (..., d)."""
    pieces, kept, taken = [], 0, 0
    for part in parts:
        gap, length = part.start - kept - taken, part.stop - part.start
        pieces += [rest[..., kept : kept + gap], values[..., taken : taken + length]]
        kept, taken = kept + gap, taken + length
    return torch.cat([*pieces, rest[..., kept:]], dim=-1)

"""The algebra on rows that methods share, each row the parameters of one model; methods reach it as ``base``."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pomona.core.round import Roster, Round
from pomona.objective.local_training import TRAINING, LocalTraining


@dataclass(frozen=True)
class Rows:
    """Models by receiver, without copies: receiver k of a downlink gets ``bank[index[k]]``.

    ``bank`` (V, d); ``index`` (n,) for one model each, or (n, M) for M models each: then row j of the bank
    is client j's, and a receiver's own id marks a place left empty.
    """

    bank: Tensor
    index: Tensor

    @classmethod
    def same(cls, row: Tensor, n: int) -> "Rows":
        """One model (d,) for everybody."""
        return cls(row.unsqueeze(0), torch.zeros(n, dtype=torch.long))


def weighted_mean(W: Tensor, p: Tensor) -> Tensor:
    """sum_i p_i w_i (d,) of rows W (n, d) with weights p (n,) that sum to 1; exactly w where all rows equal w."""
    return W[0] + p.to(W) @ (W - W[0])


def mean_of(W: Tensor, roster: Roster) -> Tensor:
    """The mean model (d,) of the members, weighted by their samples, from the rows W (N, d) of all clients."""
    return weighted_mean(W[roster.known], roster.shares[roster.known])


def placed(W: Tensor, ids: tuple[int, ...], rows: Tensor) -> Tensor:
    """Rows W (N, d) with ``rows``, one for all (d,) or one each (n, d), in the places of ids."""
    return W.index_copy(0, torch.tensor(ids, device=W.device), rows.expand(len(ids), -1))


def descend(w: Tensor, g: Tensor, velocity: Tensor, round_: Round) -> None:
    """One SGD step on rows, in place: v <- momentum v + g + weight_decay w;  w <- w - lr v (PyTorch's convention)."""
    if round_.weight_decay:
        g = g + round_.weight_decay * w
    if round_.momentum:
        g = torch.add(g, velocity, alpha=round_.momentum, out=velocity)  # one pass over memory, not two
    w.sub_(g, alpha=round_.lr)


def velocities(W: Tensor, round_: Round) -> Tensor:
    """Momentum buffers for rows W: zeros at the start of each round, and empty rows when there is no momentum."""
    return torch.zeros_like(W) if round_.momentum else W.new_empty(len(W), 0)


Pull = Callable[[Tensor], Tensor]  # rows w (a, d) -> an extra gradient term (a, d)


def sgd(
    training: LocalTraining,
    W: Tensor,
    round_: Round,
    epochs: int | None = None,
    pull: Pull | None = None,
    purpose: str = TRAINING,
) -> Tensor:
    """Local SGD on rows W (n, d), in place: ``epochs`` passes (the round's if None) over the training data."""
    passes = round_.epochs if epochs is None else epochs
    for batch, w, velocity in training.steps(passes, W, velocities(W, round_), purpose=purpose):
        _, g = training.gradient(w, batch)
        if pull is not None:
            g = g + pull(w)
        descend(w, g, velocity, round_)
    return W

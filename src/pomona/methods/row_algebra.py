"""Models as rows: what a downlink has for each receiver, and algebra that many methods share.

Methods reach it through ``base``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pomona.core.lazy_torch import Tensor, torch
from pomona.core.round import Ids, Roster
from pomona.storage.mapped_tensor import Chunked, chunked, with_rows
from pomona.storage.row_bank import RowBank

TINY = 1e-12
"""Shorter rows are treated as having this length, and no direction."""
TIE = 1e-4
"""Numbers that differ by no more than this share may be equal but for rounding in training."""
ROUNDING = 2.0**-50
"""A product below a whole number by less than this share of it is that number, but for rounding."""


@dataclass(frozen=True)
class Rows:
    """Models by receiver, without copies: receiver k of a downlink gets ``bank[index[k]]``.

    ``bank`` (V, d); ``index`` (n,) for one model each, or (n, M) for M models each: then row j of
    the bank is client j's, and a receiver's own id marks an empty place.
    """

    bank: Tensor
    index: Tensor

    @classmethod
    def broadcast(cls, row: Tensor, n: int) -> "Rows":
        """Return one model (d,) for all n receivers."""
        return cls(row.unsqueeze(0), torch.zeros(n, dtype=torch.long))

    def select(self, positions: Sequence[int]) -> "Rows":
        """Return the models of the receivers at these places."""
        return Rows(self.bank, self.index[positions])


@dataclass(frozen=True)
class Copies:
    """Models of n clients as last received: for receiver k, client j's is ``bank[index[k, j]]``.

    ``bank`` has rows (d,) by number; ``index`` (n, N) are numbers; ``received`` (n, M) the clients
    whose models were received in this call, where a receiver's own id marks an empty place.
    """

    bank: RowBank
    index: Tensor
    received: Tensor

    def rows(self) -> Tensor:
        """Return the models (n, N, d), in memory that the next call overwrites; they must not be
        changed.
        """
        return self.bank[self.index]

    def select(self, positions: Sequence[int]) -> "Copies":
        """Return the copies of the receivers at these places."""
        return Copies(self.bank, self.index[positions], self.received[positions])


def weighted_mean(W: Tensor | Chunked, p: Tensor) -> Tensor:
    """Return sum_j p_j w_j (d,) of rows W (n, d) with weights p (n,) that sum to 1; exactly w if
    all rows equal w.

    Several weightings p (m, n) give one mean each, (m, d).
    """
    return chunked(W).apply(lambda w: w[0] + p.to(w) @ (w - w[0])).compute()


def members_mean(W: Tensor, roster: Roster) -> Tensor:
    """Return the mean model (d,) of the members, weighted by their samples, from rows W (N, d) of
    all clients.
    """
    return weighted_mean(chunked(W)[roster.member_mask], roster.shares[roster.member_mask])


def cosine_similarity(W: Tensor | Chunked, scale: float = 1.0) -> Tensor:
    """Return the cosines (n, n), times ``scale``, of all pairs of rows W (n, d); 0 with a row of
    zeros.
    """
    lengths = chunked(W).norms().clamp_min(TINY).unsqueeze(1)
    return chunked(W).apply(lambda w: w / lengths).gram(scale)


def onto_simplex(V: Tensor, total: float = 1.0) -> Tensor:
    """Return the points (n, m) nearest to rows V (n, m), m >= 1, that sum to ``total`` without
    negative numbers: max(V - t, 0).
    """
    ordered, _ = V.sort(1, descending=True)
    thresholds = (ordered.cumsum(1) - total) / torch.arange(1, V.shape[1] + 1)
    support = (ordered > thresholds).sum(1, keepdim=True)
    return (V - thresholds.gather(1, support - 1)).clamp_min(0)


def floored(share: float, n: int) -> int:
    """Return a share of n, rounded down: 29 for 0.29 of 100, though their product is below it."""
    return int(share * n * (1 + ROUNDING))


def largest(values: Tensor, count: int) -> Tensor:
    """Return the mask (n, m) bool of the ``count`` >= 1 largest of each row (n, m), none of them
    below 0.

    Numbers within ``TIE`` of the smallest that is chosen are taken for equal to it, and the first
    of these are chosen: parameters whose gradients are the same move alike but for rounding, which
    differs between engines and processors.
    """
    threshold = values.kthvalue(values.shape[1] - count + 1, dim=1, keepdim=True).values
    above = values > threshold * (1 + TIE)
    tied = (values >= threshold * (1 - TIE)) & ~above
    return above | (tied & (tied.cumsum(1) <= count - above.sum(1, keepdim=True)))


def replace_rows(W: Tensor, ids: Ids, rows: Tensor) -> Tensor:
    """Return rows W (N, d) with others in the places of ids: one for all (d,), or one each (n,
    d).
    """
    return with_rows(W, ids, rows.expand(len(ids), -1))

"""Algebra on rows shared by methods, each row the parameters of one model; methods access it through ``base``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pomona.core.errors import ConfigError
from pomona.core.round import Roster, Round
from pomona.objective.batches import Batch
from pomona.objective.local_training import TRAINING, LocalTraining
from pomona.objective.pull import Pull
from pomona.objective.row_gradients import RowCriterion
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


def descend(w: Tensor, g: Tensor, moments: Tensor, round_: Round) -> None:
    """Take one step of the round's optimizer on rows w (a, d), in place, with gradients g (a, d) and their moments.

    PyTorch's conventions: sgd with v <- momentum v + g + weight_decay w;  w <- w - lr v. Decay is added to the gradient
    for sgd and adam, and shrinks the row for adamw. Each row of g is first clipped to ``max_grad_norm``, if set.
    """
    optimizer = round_.optimizer
    if optimizer.max_grad_norm is not None:
        g = g * (optimizer.max_grad_norm / (g.norm(dim=1, keepdim=True) + 1e-6)).clamp_max(1)
    if round_.weight_decay and optimizer.name == "adamw":
        w.mul_(1 - round_.lr * round_.weight_decay)
    elif round_.weight_decay:
        g = g + round_.weight_decay * w
    if optimizer.name != "sgd":
        _adam(w, g, moments, round_)
        return
    if round_.momentum:
        g = torch.add(g, moments, alpha=round_.momentum, out=moments)  # one pass over memory, not two
    w.sub_(g, alpha=round_.lr)


def _adam(w: Tensor, g: Tensor, moments: Tensor, round_: Round) -> None:
    """Apply Kingma and Ba (2015), Algorithm 1: m <- mean of g, v <- mean of g^2, w <- w - lr m^ / (sqrt(v^) + eps)."""
    optimizer, d = round_.optimizer, w.shape[1]
    m, v, count = moments[:, :d], moments[:, d : 2 * d], moments[:, 2 * d :].add_(1)
    m.lerp_(g, 1 - optimizer.beta1)
    v.mul_(optimizer.beta2).addcmul_(g, g, value=1 - optimizer.beta2)
    t = count.double()  # 1 - beta2^t loses four digits in single precision
    rate = round_.lr / (1 - optimizer.beta1**t)
    root = v.sqrt().div_((1 - optimizer.beta2**t).sqrt().to(w)).add_(optimizer.eps)
    w.sub_(torch.div(m, root, out=root).mul_(rate.to(w)))


def moments_of(W: Tensor, round_: Round) -> Tensor:
    """Return the optimizer state of rows W (n, d): zeros at the start of each round.

    One row per model, so that prefixes are views: (n, d) for momentum, (n, 0) without; for adam and adamw m, v and the
    number of steps (n, 2 d + 1).
    """
    n, d = W.shape
    if round_.optimizer.name != "sgd":
        return W.new_zeros(n, 2 * d + 1)
    return torch.zeros_like(W) if round_.momentum else W.new_empty(n, 0)


def over_moments(mask: Tensor, moments: Tensor) -> Tensor:
    """Convert a mask over rows (n, d) to one over their moments (n, k), which always includes the number of steps."""
    times, count = divmod(moments.shape[1], mask.shape[1])
    return torch.cat([mask.repeat(1, times), mask.new_ones(len(mask), count)], 1)


Term = Callable[[Tensor], Tensor]  # rows w (a, d) -> an extra gradient term (a, d); a Pull if it is affine
Loss = Callable[[Tensor], RowCriterion]  # the samples (b,) of a batch -> the loss of one row on it


def step(
    training: LocalTraining, w: Tensor, batch: Batch, moments: Tensor, round_: Round, pull: Term | None = None
) -> None:
    """Take one local step on rows w (a, d), in place: the gradient on the batch, the pull, and ``descend``."""
    if (pull is None or isinstance(pull, Pull)) and training.stepped(w, batch, moments, round_, pull):
        return
    _, g = training.gradient(w, batch)
    descend(w, g if pull is None else g + pull(w), moments, round_)


def sgd(
    training: LocalTraining,
    W: Tensor,
    round_: Round,
    epochs: int | None = None,
    pull: Term | None = None,
    purpose: str = TRAINING,
    losses: Sequence[Loss] = (),
) -> Tensor:
    """Take local steps on rows W (n, d), in place: ``epochs`` passes (the round's if None) over the training data.

    ``losses``, one per row, replace the run's own.
    """
    passes = round_.epochs if epochs is None else epochs
    for batch, w, moments in training.steps(passes, W, moments_of(W, round_), purpose=purpose):
        if not losses:
            step(training, w, batch, moments, round_, pull)
            continue
        _, g = training.gradient(w, batch, [loss(index) for loss, index in zip(losses, batch.indices, strict=False)])
        descend(w, g if pull is None else g + pull(w), moments, round_)
    return W


def sgd_on(part: slice, training: LocalTraining, W: Tensor, round_: Round, epochs: int, purpose: str) -> None:
    """Run local SGD on a part of rows W (n, d), in place, with the rest fixed; does nothing for an empty part."""
    if part.start == part.stop:
        return
    for batch, w, moments in training.steps(epochs, W, moments_of(W[:, part], round_), purpose=purpose):
        if training.stepped(w, batch, moments, round_, part=part):
            continue
        _, g = training.gradient(w, batch, above=part.start)
        descend(w[:, part], g[:, part], moments, round_)


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

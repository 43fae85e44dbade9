"""A round's update of a client's core and relationships: APPLE's equations 5 and 6, and the
extension ``local``.

Both use one gradient per batch, g = dF_i/dw at the client's mixture. See
``methods/mixtures/apple.py`` for the purpose.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pomona.core.lazy_torch import Tensor, torch
from pomona.core.training_settings import Optimizer
from pomona.methods import base
from pomona.objective.objective import Mixture

DR_LR = 1e-3
"""The paper's learning rate of the directed relationships, the default."""


@dataclass(frozen=True)
class Mixing:
    """The models that clients mix in a round.

    ``copies`` of all cores, as in ``Mixture``: (N, d) if all clients have the same, else (n, N, d)
    or, of the paper's rule, an engine's own; ``origins`` (n, d), from which progress is measured;
    ``is_self`` (n, N) marks a client's own position, ``members`` (N,) the members; ``p0`` (N,) the
    shares to which ``pull``, i.e. lambda(r) mu, draws the relationships.
    """

    copies: Any
    origins: Tensor
    is_self: Tensor
    members: Tensor
    p0: Tensor
    pull: float

    def copies_of(self, n: int) -> Any:
        """Return the copies of the first n clients."""
        if isinstance(self.copies, torch.Tensor) and self.copies.dim() == 3:
            return self.copies[:n]
        return self.copies

    def penalty(self, p: Tensor) -> Tensor:
        """Return the penalty's gradient at rows p (n, N)."""
        return self.pull * (p - self.p0)


# cores (n, d), relationships (n, N), the personal models (n, d)
Updated = tuple[Tensor, Tensor, Callable[[], Tensor]]


@dataclass(frozen=True)
class Rule:
    """The update rule of a round.

    move(cores, relationships, mixing, training, round, dr_lr) -> their new values, and the personal
    models; origin(row, n) -> the origin of progress for n clients that start from a row;
    unseen(round) -> the round for a client whose results are not used by others;
    ``rate``: the setting of a rate that has to fit the task, besides lr.
    """

    move: Callable[[Tensor, Tensor, Mixing, base.LocalTraining, base.Round, float | None], Updated]
    origin: Callable[[Tensor, int], Tensor]
    unseen: Callable[[base.Round], base.Round]
    rate: str | None


def paper(
    C: Tensor,
    P: Tensor,
    mixing: Mixing,
    training: base.LocalTraining,
    round_: base.Round,
    dr_lr: float | None,
) -> Updated:
    """Apply eqs. 5 and 6 to rows C (n, d) and P (n, N) step by step, in place; ``dr_lr`` is 0.001
    if not set.
    """
    dr_round = relationships_round(round_, (DR_LR if dr_lr is None else dr_lr) * round_.decay)
    rows = (C, P, base.optimizer_state(C, round_), base.optimizer_state(P, round_), mixing.is_self)
    for batch, c, p, vc, vp, self_row in training.steps(round_.passes, *rows):
        mixture = Mixture(p, self_row, mixing.copies_of(len(c)), c)
        slopes = training.mixed_step(mixture, batch, vc, round_)
        base.optimizer_step(p, (slopes + mixing.penalty(p)) * mixing.members, vp, dr_round)
    return C, P, lambda: training.objective.mixtures(Mixture(P, mixing.is_self, mixing.copies, C))


def local(
    C: Tensor,
    P: Tensor,
    mixing: Mixing,
    training: base.LocalTraining,
    round_: base.Round,
    dr_lr: float | None,
) -> Updated:
    """Apply the extension: W (n, d) starts at the mixture and is trained separately, together with
    rows P (n, N).

    Cores are constant during training; at the end the core moves by W minus the mixture. P's rates
    are at most ``dr_lr``.
    """
    W, rates = mixture(C, P, mixing), safe_rates(C, mixing, round_, dr_lr)
    dr_round = relationships_round(round_, 1.0)
    states = base.optimizer_state(W, round_), base.optimizer_state(P, round_)
    rows = (W, P, *states, mixing.is_self, C, mixing.origins, rates)
    for batch, w, p, vw, vp, self_row, c, o, rate in training.steps(round_.passes, *rows):
        C0 = mixing.copies_of(len(w))
        _, G = training.gradient(w, batch)
        slopes = training.objective.products(Mixture(p, self_row, C0, c), G) - (G * o).sum(
            1, keepdim=True
        )
        slopes = (slopes + mixing.penalty(p)) * mixing.members
        # a matrix product's bits would depend on the other clients in the call
        D = (rate * slopes.unsqueeze(1)).sum(2)
        base.optimizer_step(w, G, vw, round_)
        previous = p.clone()
        base.optimizer_step(p, D, vp, dr_round)
        change = p - previous
        w.add_(
            training.objective.mixtures(Mixture(change, self_row, C0, c)).addcmul_(
                change.sum(1, keepdim=True), o, value=-1
            )
        )
    return W + (C - mixture(C, P, mixing)), P, lambda: W


def relationships_round(round_: base.Round, lr: float) -> base.Round:
    """Return the round for the steps of P: plain SGD with the round's momentum at its own rate,
    without decay.
    """
    return replace(round_, lr=lr, weight_decay=0.0, optimizer=Optimizer())


def mixture(C: Tensor, P: Tensor, mixing: Mixing) -> Tensor:
    """Return o_i + sum_j p_ij (c_j - o_i) (n, d): exactly c_i for a one-hot row, and if all cores
    are the origin.
    """
    other_weights = P.masked_fill(mixing.is_self, 0).unsqueeze(1)
    excess = P.sum(1, keepdim=True) - 1

    def mix(C0: Tensor, c: Tensor, o: Tensor) -> Tensor:
        # Relative to the own core: the sum over others is exactly 0 in both cases.
        differences = [
            (q @ ((C0[k] if C0.dim() == 3 else C0) - c[k])).squeeze(0)
            for k, q in enumerate(other_weights)
        ]
        return c + torch.stack(differences) + excess * (c - o)

    return base.chunked(mixing.copies).apply(mix, C, mixing.origins).compute()


def safe_rates(C: Tensor, mixing: Mixing, round_: base.Round, dr_lr: float | None) -> Tensor:
    """Return R_i (n, N, N), such that a step -R_i D of the relationships moves no mixture by more
    than lr g.

    R_i = ((K + k I) / lr + (lambda(r) mu + 1 / dr_lr) I)^-1 over members, K the products of all
    pairs of their progress c_j - o_i and k the mean of its eigenvalues; 0 if all cores are at the
    origin, since there is nothing to choose from.
    """
    largest = math.inf if dr_lr is None else dr_lr * round_.decay
    lr = torch.tensor(round_.lr, dtype=torch.float64)
    inverse_dr_lr = 1 / torch.tensor(largest, dtype=torch.float64)
    rates = C.new_zeros(len(C), len(mixing.members), len(mixing.members))
    ids = mixing.members.nonzero().squeeze(1)
    for k in range(len(C)):
        values, vectors = torch.linalg.eigh(_products(C, mixing, k))
        values = values.clamp_min(0)
        damped = (values + values.mean()) / lr + (mixing.pull + inverse_dr_lr)
        inverse = torch.where(values.sum() > 0, 1 / damped, 0)
        rates[k, ids.unsqueeze(1), ids] = (vectors * inverse) @ vectors.T
    return rates


def _products(C: Tensor, mixing: Mixing, k: int) -> Tensor:
    """Return the products (m, m) of all pairs of members' progress, as held by client k."""
    copies = mixing.copies[k] if mixing.copies.dim() == 3 else mixing.copies
    is_self = mixing.is_self[k].unsqueeze(1)

    def progress(C0: Tensor, c: Tensor, o: Tensor) -> Tensor:
        return (torch.where(is_self, c, C0) - o)[mixing.members]

    return base.chunked(copies).apply(progress, C[k : k + 1], mixing.origins[k : k + 1]).gram()


RULES = {
    "paper": Rule(
        paper,
        lambda row, n: row.new_empty(n, 0),
        lambda round_: replace(round_, lr=0.0),
        "method.dr_lr",
    ),
    "local": Rule(local, lambda row, n: row.repeat(n, 1), lambda round_: round_, None),
}

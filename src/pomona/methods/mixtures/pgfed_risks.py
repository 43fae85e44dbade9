"""Shared parts of both forms of PGFed: settings, the pass for a client's risk and its gradient, and
coefficients.

Luo, Mendieta, Chen, Wu. PGFed: personalize each client's global objective for federated learning.
ICCV 2023; for the equations see ``pgfed``.
"""

from math import inf
from typing import Literal

from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.core.settings import Settings
from pomona.methods import base

RISK = "risk"
RISKS_REVEALED = {
    "gradient": "the gradient over all of its training data",
    "offset": "its mean training loss, to first order",
}
UNMET = -1.0


class Risks(Settings):
    """Settings of both methods; symbols of the paper in brackets.

    Attributes:
        mu: weight of the other clients' risks (mu); 0 is FedAvg-local
        risk_lr: learning rate of the coefficients a_ij (eta_2)
        mixing: who weighs the others' gradients: the server, which sees a_ij, or each client, which
            keeps them
        budget: others' gradients a client downloads a round with mixing = client (M); all if not
            set
    """

    mu: float = Field(0.1, ge=0)
    risk_lr: float = Field(0.01, ge=0)
    mixing: Literal["server", "client"] = "server"
    budget: int | None = Field(None, ge=1)

    def idle(self) -> dict[str, str]:
        """Of the server clients download their mixture, not gradients."""
        return {"budget": "only for mixing = client"} if self.mixing == "server" else {}


def meeting(a: Tensor, present: Tensor, members: Tensor) -> Tensor:
    """Return coefficients a (n, N) with 1 / |S| for risks of this round, ``present`` (n, N), that
    are new.

    -1 marks risks that were never met, and those of clients outside the mask ``members`` (N,).
    """
    share = 1 / present.sum(1, keepdim=True).clamp_min(1)
    return torch.where(present & (a < 0), share.to(a), a).masked_fill(~members.to(a.device), UNMET)


def largest_coefficient(roster: base.Roster) -> float:
    """Return the largest allowed coefficient; if shares are limited, that share of a client's
    initial total of 1.

    An offset is a client's own number, and a false one can make the coefficients of its risk
    arbitrarily large.
    """
    return roster.largest if roster.largest < 1 else inf


def with_momentum(mixture: Tensor, previous: Tensor, beta: float) -> Tensor:
    """Return PGFedMo's c_i (n, d) from mu times the new mixture and the client's previous one; 0
    means none yet.
    """
    if not beta:
        return mixture
    has_previous = previous.any(1, keepdim=True)
    return torch.where(has_previous, torch.lerp(mixture, previous, beta), mixture)


def risk(training: base.LocalTraining, W: Tensor, round_: base.Round) -> tuple[Tensor, Tensor]:
    """Return g_i = grad F_i(w_i) (n, d) at rows W (n, d) over all training data, and the offsets
    F_i(w_i) - <g_i, w_i>.

    The offsets are (n, 1). A step's weight is its number of samples by the roster, with those that
    join a last batch (``Pass.least``), not of those drawn, so that under privacy the size of a draw
    stays private. A call that only evaluates takes no steps.
    """
    G, F, counts = torch.zeros_like(W), W.new_zeros(len(W), 1), W.new_zeros(len(W), 1)
    if not training.trains:
        return G, F
    sizes = W.new_tensor([training.roster.sizes[i] for i in training.clients]).unsqueeze(1)
    batch_size, min_batch = round_.batch_size, training.objective.least_batch
    for batch, w, total, losses, count, n in training.steps(
        1, W, G, F, counts, sizes, purpose=RISK
    ):
        loss, g = training.gradient(w, batch)
        left = n - batch.step * round_.batch_size
        size = torch.where(left < batch_size + min_batch, left, batch_size).clamp_min(1)
        total.addcmul_(size, g)
        losses.addcmul_(size, loss.to(losses).unsqueeze(1))
        count.add_(size)
    counts.clamp_min_(1)
    G /= counts
    return G, F / counts - (G * W).sum(1, keepdim=True)


QUANTITIES = (
    base.Quantity(
        "risk_weights",
        "matrix",
        "Whose risks each client lowers in addition to its own",
        "a(i, j)",
        "the coefficient a(i, j), times mu the weight that client i (row) gives the risk of client "
        "j (column) in its own objective; 0 for risks that it has not met.",
        history="How the coefficients of each client moved",
    ),
)

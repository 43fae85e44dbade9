"""q-FedAvg: FedAvg with larger weights for clients with larger losses.

Li, Sanjabi, Beirami, Smith. Fair resource allocation in federated learning. ICLR 2020 (arXiv
1905.10497), Algorithm 2.

    objective        min_w  sum_i p_i / (q + 1) F_i(w)^(q + 1),   p_i = n_i / n over the cohort               (eq. 1)
    client           w_i <- SGD(w; E epochs on D_i), and F_i(w), the mean training loss of the model received
    server           D_i = (w - w_i) / lr         the change as a gradient
                     h_i = q F_i^(q - 1) |D_i|^2 + F_i^q / lr
                     w <- w - sum_i p_i F_i^q D_i / sum_i p_i h_i

h_i bounds the curvature of F_i^(q + 1) / (q + 1) where 1 / lr bounds that of F_i: the step needs no
new rate as q grows. q = 0 is FedAvg, to the bit; a large q is close to minimising the worst
client's loss. Named models are FedAvg's. Where shares are limited (``largest_share``), those of p_i
F_i^q are, since a loss is reported by the client itself.

Differs from the paper: that samples clients by p_i and takes plain sums; here the cohort is the
run's and p_i weights the sums, which have the same mean. Its rate for D_i and h_i is tuned at q =
0; here it is the run's. Momentum would make D_i longer than gradients and the step shorter, so it
is refused, as are clipping, adam and adamw. Differs from published code: none found; both add 1e-10
to the loss.
"""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from pomona.core.lazy_torch import Tensor
from pomona.methods import base
from pomona.methods.one_model import fedavg
from pomona.methods.one_model.reweighting import reweighted_server

TINY = 1e-10
SMALLEST = 1e-200  # its inverse is finite, also times any squared distance


class QFedAvg(base.MethodSettings):
    """q-FedAvg's settings; symbols of the paper in brackets.

    Attributes:
        q: how much more those with large losses count (q); 0 is FedAvg
    """

    name: Literal["q-fedavg"] = "q-fedavg"
    q: float = Field(1.0, ge=0, le=100)

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""

        def ratios(w: Tensor, uplink: base.Uplink, p: Tensor, round_: base.Round) -> Tensor:
            distances = (base.chunked(uplink["model"]) - w).norms()
            return shares(self.q, uplink["risk"].squeeze(1).to(p), distances.to(p), p, round_.lr)

        return base.Method(
            reweighted_server({"risk": 0.0}, ratios), base.Client(base.stateless, train), CARD
        )


def shares(q: float, risks: Tensor, distances: Tensor, p: Tensor, lr: float) -> Tensor:
    """Return F_i^q / (lr sum_j p_j h_j) (n,), from losses, distances |w_i - w| and weights (n,);
    exactly 1 for q = 0.

    Losses are relative to the largest, to keep their powers within the floating-point range.
    """
    largest = risks.max() + TINY
    F = ((risks + TINY) / largest).clamp_min(SMALLEST)
    h = q * F ** (q - 1) * (distances / lr) ** 2 / largest + F**q / lr
    return F**q / lr / (h[0] + p @ (h - h[0]))


def train(
    state: None, received: base.Received, training: base.LocalTraining, round_: base.Round
) -> base.Trained[None]:
    """Run FedAvg's round, and compute the loss of the received model."""
    risks = received["model"].new_zeros(len(received["model"]))
    if training.trains:
        risks = training.loss(received["model"], "train")
    _, uplink, info = _AVG.train(None, received, training, round_)
    return None, {**uplink, "risk": risks.double().unsqueeze(1)}, {**info, "risk": risks}


_AVG = fedavg.client(mu=0.0)

QUANTITIES = (
    base.Quantity(
        "risk",
        "values",
        "Loss of the sent model at each client",
        "training loss",
        "the mean training loss of the model received, by which a client counts in the next one.",
    ),
)

CARD = replace(
    fedavg.CARD,
    presentation=base.Presentation("q-FedAvg", quantities=QUANTITIES),
    paper="Li et al., ICLR 2020, Algorithm 2",
    summary=(
        "one global model, the mean of locally trained copies in which clients with larger "
        "losses count more"
    ),
    privacy=replace(
        fedavg.CARD.privacy,
        releases=(replace(base.RELEASES["training-loss"], remedy="take fedavg"),),
    ),
    needs=base.Needs(steps="plain"),
    exchange=replace(
        fedavg.CARD.exchange,
        reveals={"risk": "the mean loss of the global model on its training data"},
    ),
)

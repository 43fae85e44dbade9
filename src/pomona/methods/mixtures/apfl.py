"""APFL: each client mixes the weights of its own model with those of its copy of the global model.

Deng, Kamani, Mahdavi. Adaptive personalized federated learning. arXiv 2003.13461 (2020), Algorithm
1.

    personal model   m_i = alpha_i v_i + (1 - alpha_i) w_i
    objective        min_w  sum_i n_i / n F_i(w);   min_{v_i, alpha_i}  F_i(m_i)
    client           w_i is a copy of the received w; per batch, both gradients taken before either step:
                     w_i <- w_i - lr g_i(w_i)
                     v_i <- v_i - lr alpha_i g_i(m_i)                            (the chain rule gives the factor)
                     with ``adaptive``, once a round, at its first batch, from the same gradient:
                     alpha_i <- clip(alpha_i - lr <v_i - w_i, g_i(m_i)>, 0, 1)
    server           as FedAvg, on the w_i: weights n_i / n

Named models: ``global`` is w as received, ``personal`` is m_i after training. v_i and alpha_i never
leave the client. alpha = 1 is Separate, alpha = 0 is FedAvg-local, to the bit: both models see
FedAvg's batches.

Differs from the paper: the server's mean has weights n_i / n; the paper's is uniform over the
cohort. Differs from published code: that mixes outputs, not weights; its alpha gradient <v - w,
alpha g_v + (1 - alpha) g_w> uses the gradients of the mixed outputs for v and w, after their step,
and adds a ridge of 0.02 alpha. Here it is dF_i / dalpha_i, by the chain rule.
"""

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base
from pomona.methods.one_model import fedavg


class APFL(base.MethodSettings):
    """APFL's settings; symbols of the paper in brackets.

    Attributes:
        alpha: share of the own model in the personal one (alpha), at the start
        adaptive: learn alpha, one step a round
    """

    name: Literal["apfl"] = "apfl"
    alpha: float = Field(0.5, ge=0, le=1)
    adaptive: bool = False

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        return base.Method(fedavg.server(), client(self), CARD)


@dataclass(frozen=True)
class APFLState:
    """State of clients: own model v (n, d) and its mixing weight alpha (n,)."""

    model: Tensor
    alpha: Tensor


def client(settings: APFL) -> base.Client:
    """Train the copy of the global model and the own model on the same batches."""

    def start(initial: base.Initial, roster: base.Roster, ids: base.Ids, seed: int) -> APFLState:
        V = initial().repeat(len(ids), 1)
        return APFLState(V, V.new_full((len(ids),), settings.alpha))

    def train(
        state: APFLState, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[APFLState]:
        training.observe("global", received["model"], "received")
        W, V, A = received["model"].clone(), state.model, state.alpha.unsqueeze(1)
        rows = (W, V, A, base.optimizer_state(W, round_), base.optimizer_state(V, round_))
        for batch, w, v, a, velocity_w, velocity_v in training.steps(round_.passes, *rows):
            mixed = torch.lerp(w, v, a)
            difference = v - w if settings.adaptive and batch.step == 0 else None
            training.step(w, batch, velocity_w, round_)
            _, g = training.gradient(mixed, batch)
            base.optimizer_step(v, a * g, velocity_v, round_)
            if difference is not None:
                a.sub_(round_.lr * (difference * g).sum(1, keepdim=True)).clamp_(0, 1)
        training.observe("personal", torch.lerp(W, V, A), "trained")
        return APFLState(V, A.squeeze(1)), {"model": W}, {"alpha": A.squeeze(1)}

    return base.Client(start, train, private=("model", "alpha"))


QUANTITIES = (
    base.Quantity(
        "alpha",
        "values",
        "How much of its own model each client uses",
        "\N{GREEK SMALL LETTER ALPHA}",
        "\N{GREEK SMALL LETTER ALPHA}, the share of a client's own model in its personal one; the "
        "rest is its copy of the global model.",
    ),
)

CARD = base.Card(
    presentation=base.Presentation("APFL", QUANTITIES),
    paper="Deng et al., arXiv 2003.13461, Algorithm 1",
    summary="each client mixes its own model with its copy of the global one",
    exchange=base.Exchange(
        down="1",
        up="1",
        private="the own model and the mixing weight alpha",
        keeps="its own model and alpha",
    ),
    headline=("personal", "trained"),
    joining=(
        "a newcomer's own model starts from the global one, alpha from its setting; an unseen "
        "client's too"
    ),
    privacy=base.PrivacyCost(gradients=(base.Gradients(per_batch=2),)),
)

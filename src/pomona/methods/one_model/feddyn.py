"""FedDyn: a linear and a quadratic term make the optima of the clients agree with that of the
federation.

Acar, Zhao, Matas, Mattina, Whatmough, Saligrama. Federated learning based on dynamic
regularization. ICLR 2021 (arXiv 2111.04263), Algorithm 1.

    objective        min_w  1/N sum_i F_i(w)
    client           v <- argmin_v  F_i(v) - <lambda_i, v> + alpha / 2 ||v - w||^2         (eq. 1; SGD from v = w)
                     lambda_i <- lambda_i - alpha (v - w)
    server           h <- h - alpha / N sum_S (v_i - w)
                     w <- 1/|S| sum_S v_i - h / alpha

lambda_i and h start at 0. A local solve to the optimum makes lambda_i = grad F_i(v_i); h is the
mean of all lambda_i after every round, for any cohort, and vanishes at the federation's optimum.
Weights are uniform, not n_i / n. Named models: ``global`` is w (the paper's cloud model) as
received, ``local`` is v after training.

Differs from published code: alpha is the same for all clients (there: divided by a client's share
of the samples); gradients are not clipped (there: to norm 10); the quadratic term pulls towards w
only (there: it is part of the weight decay).
"""

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base


class FedDyn(base.MethodSettings):
    """FedDyn's settings; symbols of the paper in brackets.

    Attributes:
        alpha: weight of the dynamic regulariser (alpha)
    """

    name: Literal["feddyn"] = "feddyn"
    alpha: float = Field(0.01, gt=0)

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        return base.Method(server(self.alpha), client(self.alpha), CARD)


@dataclass(frozen=True)
class Cloud:
    """The cloud model w (d,), and the clients' linear terms (N, d).

    h is their mean over the members: stored individually, they can be removed with their client.
    """

    model: Tensor
    linear: Tensor


def server(alpha: float) -> base.Server:
    """Average the clients' models, corrected by h."""

    def start(initial: base.Initial, roster: base.Roster, seed: int) -> Cloud:
        w = initial()
        return Cloud(w, torch.zeros_like(w).expand(len(roster), -1))

    def downlink(
        state: Cloud, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> base.Downlink:
        return {"model": base.Rows.broadcast(state.model, len(ids))}

    def aggregate(
        state: Cloud, uplink: base.Uplink, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> Cloud:
        w, V, index = state.model, uplink["model"], torch.tensor(ids, device=state.model.device)
        changes = base.chunked(V) - w
        linear = base.chunked(state.linear).index_add(0, index, changes, alpha=-alpha)
        h = base.chunked(linear)[roster.member_mask].mean(0)
        return Cloud(w + changes.mean(0) - h / alpha, linear)

    def uplink_form(state: Cloud) -> base.Uplink:
        return {"model": state.model}

    return base.Server(
        start,
        downlink,
        aggregate,
        base.add_from_model,
        uplink_form,
        global_model=True,
        mirrors="linear terms",
    )


@dataclass(frozen=True)
class FedDynState:
    """State of clients: linear term lambda_i (n, d)."""

    linear: Tensor


def client(alpha: float) -> base.Client:
    """Run local SGD on the regularised objective, from the received model."""

    def start(initial: base.Initial, roster: base.Roster, ids: base.Ids, seed: int) -> FedDynState:
        return FedDynState(torch.zeros_like(initial()).repeat(len(ids), 1))

    def train(
        state: FedDynState,
        received: base.Received,
        training: base.LocalTraining,
        round_: base.Round,
    ) -> base.Trained[FedDynState]:
        w = received["model"]
        training.observe("global", w, "received")
        linear = state.linear
        local = base.sgd(training, w.clone(), round_, pull=base.Pull(alpha, w, -linear))
        training.observe("local", local, "trained")
        return FedDynState(linear - alpha * (local - w)), {"model": local}, {}

    return base.Client(start, train)


CARD = base.Card(
    presentation=base.Presentation("FedDyn"),
    paper="Acar et al., ICLR 2021, Algorithm 1",
    summary="one global model; linear terms make the clients' optima agree with it",
    exchange=base.Exchange(
        down="1",
        up="1",
        private="nothing but the data (a client's linear term is a sum over its uploads)",
        keeps="its linear term (1 model)",
    ),
    headline=("global", "received"),
    joining=(
        "h is the mean over the members: a leaver takes its own term along; newcomers and unseen "
        "clients bring 0"
    ),
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
)

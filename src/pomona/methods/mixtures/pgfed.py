"""PGFed and PGFedMo: each client also minimises the risks of the others, weighted by learned
coefficients.

Luo, Mendieta, Chen, Wu. PGFed: personalize each client's global objective for federated learning.
ICCV 2023 (arXiv 2212.01448). By authors of APPLE.

    objective        min_{w_i, a_i >= 0}  F_i(w_i) + mu sum_j a_ij F_j(w_i)
    approximation    F_j(w) ~ F_j(w_j) + <g_j, w - w_j> = o_j + <g_j, w>         g_j = grad F_j(w_j) over all of D_j
                     at w_j, client j's model after its last local training;     o_j = F_j(w_j) - <g_j, w_j>
    client           from the cohort's mean model w:  w_i <- w_i - lr (g_i(w_i) + c_i)
                     a_ij <- max(0, a_ij - eta_2 (mu o_j + <w_i, mu gbar>))      each step, j of the cohort S before
    server           w <- sum_i n_i / n w_i;   c_i = mu sum_j a_ij g_j;   gbar = 1 / |S| sum_j g_j in place of all g_j
    PGFedMo          c_i <- (1 - beta) c_i + beta c_i of the client's round before
    a_ij             1 / |S| when client i first meets the risk of j

A client uploads w_i, g_i, o_i and its row a_i, and downloads w, c_i, gbar and all o_j: no O(N^2)
traffic. In round 1 there are no risks yet. mu = 0 is FedAvg-local, to the bit. ``personal,
trained`` is w_i after local training, ``global`` the mean. The sum holds j = i where i was in S, as
in the authors' code.

Consequences of the rule for a_ij: risks are positive, so that a_ij falls wherever the approximation
is good, and with many steps or a large eta_2 all reach 0, which is FedAvg-local. And with gbar in
place of the g_j the step of a_ij is a number of j plus a number of i: as long as none reaches 0,
all clients rank the others equally, partners or not.

If a client's share of a mean is limited (``largest_share``), each a_ij is at most that share.

``mixing = "client"`` is ours: a_i stays private, as in APPLE. A client downloads the g_j of others,
all or M a round, keeps its own, and takes both steps from one gradient of its own samples, with the
exact products:

    client           w_i  <- w_i - lr (g_i(w_i) + mu sum_j a_ij g_j)             j over those downloaded, and i
                     a_ij <- max(0, a_ij - eta_2 mu (o_j + <g_j, w_i>))
    budget M         as APPLE's: those never downloaded first, the rest by probabilities that grow with a_ij

The last g_j of all clients that ever took part are available, so that under partial participation
some are older.

Under differential privacy g_i comes from noised gradients, one more epoch a round; o_i holds the
mean training loss, without noise.

Differs from published code: g_j and F_j are means over all samples (there g_j is one over whole
batches); momentum starts at zero in each round (there it continues). eta_2 follows the run's
schedule of rates.
"""

from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.core.round import SLACK
from pomona.methods import base
from pomona.methods.mixtures import pgfed_private
from pomona.methods.mixtures.pgfed_risks import (
    QUANTITIES,
    RISK,
    RISKS_REVEALED,
    UNMET,
    Risks,
    largest_coefficient,
    meeting,
    risk,
    with_momentum,
)
from pomona.methods.mixtures.request_bank import limit


class PGFed(base.MethodSettings, Risks):
    """PGFed's settings."""

    name: Literal["pgfed"] = "pgfed"

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        return build_method(self, 0.0, CARD)


class PGFedMo(base.MethodSettings, Risks):
    """PGFed with momentum on the others' gradients.

    Attributes:
        beta: share of the last round's mixture that is kept (beta); 0 is PGFed
    """

    name: Literal["pgfedmo"] = "pgfedmo"
    beta: float = Field(0.5, ge=0, lt=1)

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        presentation = base.Presentation("PGFedMo", quantities=QUANTITIES)
        return build_method(
            self,
            self.beta,
            replace(CARD, presentation=presentation, summary=f"{CARD.summary}, with momentum"),
        )


def build_method(settings: Risks, beta: float, card: base.Card) -> base.Method:
    """Return the method in the form of ``mixing``."""
    history = "its last mixture of gradients" if beta else "nothing"
    if settings.mixing == "server":
        return base.Method(
            server(),
            client(settings, beta),
            replace(card, exchange=replace(card.exchange, keeps=history)),
        )
    private = replace(
        card,
        exchange=replace(
            card.exchange,
            down="1 + M (N without a budget)",
            down_models=lambda clients: 1 + limit(settings.budget, clients),
            private="the coefficients a_i",
            keeps=f"its last gradient and its coefficients{f'; {history}' if beta else ''}",
            reveals={**RISKS_REVEALED, "request": "whose gradients it wants next"},
        ),
    )
    return base.Method(
        pgfed_private.server(settings), pgfed_private.client(settings, beta), private
    )


@dataclass(frozen=True)
class ServerState:
    """The server's state.

    The mean model (d,); for each client the last gradient (N, d), its offset (N, 1), its
    coefficients (N, N), -1 for risks not met yet; and the mask of the last cohort (N,) bool.
    """

    model: Tensor
    gradients: Tensor
    offsets: Tensor
    weights: Tensor
    last: Tensor


def server() -> base.Server:
    """Average models as FedAvg, and mix the last cohort's gradients."""

    def start(initial: base.Initial, roster: base.Roster, seed: int) -> ServerState:
        w, N = initial(), len(roster)
        zeros = base.chunked(w.unsqueeze(0)).apply(torch.zeros_like).compute().expand(N, -1)
        no_cohort = torch.zeros(N, dtype=torch.bool)
        return ServerState(w, zeros, w.new_zeros(N, 1), w.new_full((N, N), UNMET), no_cohort)

    def downlink(
        state: ServerState, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> base.Downlink:
        members, index = roster.member_mask, torch.arange(len(ids))
        last = (state.last & members).to(state.model.device)
        a = meeting(state.weights[list(ids)], last.expand(len(ids), -1), members).clamp_max(
            largest_coefficient(roster)
        )
        share = last.to(a) / last.sum().clamp_min(1)
        gradients = base.chunked(state.gradients)
        return {
            "model": base.Rows.broadcast(state.model, len(ids)),
            "mixture": base.Rows((a * last) @ gradients, index),
            "mean_gradient": base.Rows.broadcast(share @ gradients, len(ids)),
            "weights": base.Rows(a, index),
            "offsets": base.Rows.broadcast(state.offsets.squeeze(1), len(ids)),
            "last": base.Rows.broadcast(last, len(ids)),
        }

    def aggregate(
        state: ServerState,
        uplink: base.Uplink,
        ids: base.Ids,
        roster: base.Roster,
        round_: base.Round,
    ) -> ServerState:
        return ServerState(
            base.weighted_mean(uplink["model"], roster.weights(ids)),
            base.replace_rows(state.gradients, ids, uplink["gradient"]),
            base.replace_rows(state.offsets, ids, uplink["offset"]),
            base.replace_rows(state.weights, ids, uplink["weights"]),
            torch.zeros_like(state.last).index_fill(
                0, torch.tensor(ids, device=state.last.device), True
            ),
        )

    def add_clients(
        state: ServerState, ids: base.Ids, roster: base.Roster
    ) -> tuple[ServerState, Tensor]:
        weights = base.replace_rows(
            state.weights, ids, state.weights.new_full((1, len(state.last)), UNMET)
        )
        return replace(state, weights=weights), state.model

    def uplink_form(state: ServerState) -> base.Uplink:
        entries = {
            "gradient": state.gradients[0],
            "offset": state.offsets[0],
            "weights": state.weights[0],
        }
        return {"model": state.model, **entries}

    def capped_clients(
        state: ServerState,
        uplink: base.Uplink,
        ids: base.Ids,
        roster: base.Roster,
        round_: base.Round,
    ) -> dict[int, str]:
        largest, cap = uplink["weights"].amax(0).tolist(), largest_coefficient(roster)
        return {
            j: f"others weigh its risk by up to {a:.3g}; it counts by {cap:g} at most"
            for j, a in enumerate(largest)
            if a > cap * (1 + SLACK)
        }

    return base.Server(
        start,
        downlink,
        aggregate,
        add_clients,
        uplink_form,
        capped_clients=capped_clients,
        global_model=True,
    )


def client(settings: Risks, beta: float) -> base.Client:
    """Run local SGD on the own risk and the received mixture; the state is that mixture (n, d),
    None without beta.
    """

    def start(initial: base.Initial, roster: base.Roster, ids: base.Ids, seed: int) -> Tensor:
        return torch.zeros_like(initial()).repeat(len(ids), 1)

    def train(
        previous: Tensor | None,
        received: base.Received,
        training: base.LocalTraining,
        round_: base.Round,
    ) -> base.Trained[Tensor | None]:
        w, a, last = received["model"], received["weights"].clone(), received["last"]
        training.observe("global", w, "received")
        mu, rate = settings.mu, settings.risk_lr * round_.decay
        c = mu * received["mixture"]
        if previous is not None:
            c = with_momentum(c, previous, beta)
        slope_at_0, mean = mu * received["offsets"], mu * received["mean_gradient"]
        W = w.clone()
        rows = (W, a, c, slope_at_0, mean, last, base.optimizer_state(W, round_))
        for batch, w_i, weights, pull, offsets, gbar, present, velocity in training.steps(
            round_.passes, *rows
        ):
            slope = offsets + (w_i * gbar).sum(1, keepdim=True)
            training.step(w_i, batch, velocity, round_, base.Pull(constant=pull))
            weights.copy_(torch.where(present, (weights - rate * slope).clamp_min(0), weights))
        training.observe("personal", W, "trained")
        G, offset = risk(training, W, round_)
        uplink = {"model": W, "gradient": G, "offset": offset, "weights": a}
        return c if beta else None, uplink, {"risk_weights": a.clamp_min(0)}

    return base.Client(start if beta else base.stateless, train)


CARD = base.Card(
    presentation=base.Presentation("PGFed", quantities=QUANTITIES),
    paper="Luo et al., ICCV 2023",
    summary="each client lowers the others' risks too, to first order, by weights that it learns",
    exchange=base.Exchange(
        down="3",
        up="2",
        private="nothing but the data",
        keeps="nothing",
        reveals={**RISKS_REVEALED, "weights": "whose risks it weighs how much"},
    ),
    headline=("personal", "trained"),
    joining=(
        "a newcomer starts from the mean model and the first weights of everybody's risk; a "
        "leaver's risk is in no sum; an unseen client trains from the final mean model under the "
        "final risks"
    ),
    privacy=base.PrivacyCost(
        gradients=(base.Gradients(), base.Gradients(purpose=RISK, epochs=1)),
        releases=(
            replace(
                base.RELEASES["training-loss"],
                remedy="take a method without risks of others, such as apple",
            ),
        ),
    ),
)

"""pFedGraph: the server infers a collaboration graph, and sends each client its own mixture.

Ye, Ni, Wu, Chen, Wang. Personalized federated learning with inferred collaboration graphs. ICML
2023 (https://proceedings.mlr.press/v202/ye23b.html).

    similarity       s_ij = cos(w_i - w^0, w_j - w^0)          changes from the initial model w^0
    graph            a_i  = argmin over the simplex of  alpha |a - p|^2 - sum_j a_j s_ij,    p_j = n_j / n
                          = the projection of  p + s_i / (2 alpha)  onto the simplex
    server           theta_i = sum_j a_ij w_j
    client           w_i <- SGD(theta_i; E epochs) on  F_i(w) - mu sum_j a_ij cos(w, w_j)
                     of which the second part has the gradient  -mu (u_i - <u_i, e> e) / |w|
                     with e = w / |w|,  u_i = sum_j a_ij w_j / |w_j|

The server keeps the last model of each client; the graph covers the members that have sent one. In
round 1 there are none: all start from w^0, without the second part. ``personal, received`` is
theta_i, ``personal, trained`` is w_i. A large alpha makes a_i = p: FedAvg-local for mu = 0. A small
alpha gives each client the most similar model, which is its own: Separate.

``similarity = "models"`` takes cos(w_i, w_j) instead; networks that start from one model are then
almost parallel.

Differs from published code: that minimises +mu cos, which drives the models apart (its mu is 0.01;
the sign here is that of the objective); counts similarities above 0.9 as 1; has a solver for the
quadratic programme, where the projection is exact; and restricts the graph to the round's cohort.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base
from pomona.methods.row_algebra import TINY, cosine_similarity, onto_simplex


class PFedGraph(base.MethodSettings):
    """pFedGraph's settings; symbols of the paper in brackets.

    Attributes:
        alpha: pull of the graph towards the shares of samples (alpha)
        mu: weight of the similarity to one's neighbours in local training (mu)
        similarity: what the server compares: changes from the initial model, or models
    """

    name: Literal["pfedgraph"] = "pfedgraph"
    alpha: float = Field(0.8, gt=0)
    mu: float = Field(0.01, ge=0)
    similarity: Literal["changes", "models"] = "changes"

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        return base.Method(server(self), base.Client(base.stateless, trainer(self.mu)), CARD)


@dataclass(frozen=True)
class Bank:
    """The origin for similarity (d,), the last model of each client (N, d), and who has sent one
    (N,) bool.
    """

    origin: Tensor
    models: Tensor
    sent: Tensor


def server(settings: PFedGraph) -> base.Server:
    """Keep models, infer the graph, and mix."""

    def start(initial: base.Initial, roster: base.Roster, seed: int) -> Bank:
        w, N = initial(), len(roster)
        origin = w if settings.similarity == "changes" else torch.zeros_like(w)
        return Bank(origin, w.expand(N, -1), torch.zeros(N, dtype=torch.bool))

    def downlink(
        bank: Bank, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> base.Downlink:
        senders = bank.sent & roster.member_mask
        has_senders = bool(senders.any())
        a = graph(
            settings.alpha, bank, senders if has_senders else roster.member_mask, ids, roster
        ).to(bank.models)
        W = base.chunked(bank.models)
        lengths = W.norms().clamp_min(TINY)
        index = torch.arange(len(ids))
        return {
            "model": base.Rows(base.weighted_mean(W, a), index),
            "direction": base.Rows(has_senders * (a / lengths) @ W, index),
            "graph": base.Rows(a, index),
        }

    def aggregate(
        bank: Bank, uplink: base.Uplink, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> Bank:
        senders = bank.sent.index_fill(0, torch.tensor(ids), True)
        return Bank(bank.origin, base.replace_rows(bank.models, ids, uplink["model"]), senders)

    def add_clients(bank: Bank, ids: base.Ids, roster: base.Roster) -> tuple[Bank, Tensor]:
        row = base.members_mean(bank.models, roster)
        senders = bank.sent.index_fill(0, torch.tensor(ids), False)
        return Bank(bank.origin, base.replace_rows(bank.models, ids, row), senders), row

    return base.Server(
        start,
        downlink,
        aggregate,
        add_clients,
        lambda bank: {"model": bank.models[0]},
        separable=True,
    )


def graph(
    alpha: float, bank: Bank, candidates: Tensor, ids: base.Ids, roster: base.Roster
) -> Tensor:
    """Return the rows a_i (n, N) float64 of some clients over those of a mask (N,)."""
    columns = candidates.nonzero().squeeze(1)
    p = roster.weights(tuple(columns.tolist()))
    changes = base.chunked(bank.models) - bank.origin
    cosines = cosine_similarity(changes)  # 0 for clients that have not moved
    s = cosines[list(ids)].index_select(1, columns.to(bank.models.device)).double().cpu()
    a = onto_simplex(p + s / (2 * alpha))
    return a.new_zeros(len(ids), len(candidates)).index_copy(1, columns, a)


def trainer(mu: float) -> Callable[..., base.Trained[None]]:
    """Run local SGD from the received mixture, towards the directions of the neighbours' models."""

    def train(
        state: None, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[None]:
        u = received["direction"]
        training.observe("personal", received["model"], "received")
        term = (lambda w: -mu * cosine_gradient(w, u[: len(w)])) if mu else None
        W = base.sgd(training, received["model"].clone(), round_, term=term)
        training.observe("personal", W, "trained")
        return None, {"model": W}, {"graph": received["graph"]}

    return train


def cosine_gradient(w: Tensor, u: Tensor) -> Tensor:
    """Return the gradient in w of <u, w / |w|>, rows (n, d)."""
    length = w.norm(dim=1, keepdim=True).clamp_min(TINY)
    e = w / length
    along: Tensor = (u * e).sum(1, keepdim=True) * e
    gradient: Tensor = (u - along) / length
    return gradient


QUANTITIES = (
    base.Quantity(
        "graph",
        "matrix",
        "Who learns with whom",
        "a(i, j)",
        (
            "the share a(i, j) of the model of client j (column) in the mixture that the server "
            "sends client i (row)."
        ),
        history="How each client's neighbours changed",
        own="How much of its own model each client gets back",
    ),
)

CARD = base.Card(
    presentation=base.Presentation("pFedGraph", quantities=QUANTITIES),
    paper="Ye et al., ICML 2023",
    summary="each client starts from its own mixture of the models whose changes resemble its own",
    exchange=base.Exchange(down="2", up="1", private="nothing but the data", keeps="nothing"),
    headline=("personal", "trained"),
    joining=(
        "the graph runs over the members; a newcomer starts from their mean model; an unseen "
        "client gets mixtures of its own, and sends its model to no one"
    ),
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
)

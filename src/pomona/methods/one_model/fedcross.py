"""FedCross: several models travel from client to client, and each is mixed with one of the others.

Hu, Zhou, Yue, Ling, Huang, Li, Liu, Lian, Chen. FedCross: towards accurate federated learning via
multi-model cross-aggregation. ICDE 2024 (arXiv 2210.08285), Algorithm 1.

    client           v_k <- SGD(w_k; E epochs on D_i)                        k drawn anew for each client and round
    server           w_k <- alpha v_k + (1 - alpha) v_c(k),   c(k) != k:
                     in-order   c(k) = (k + (r mod (K - 1)) + 1) mod K       r counts rounds from 1, k from 0
                     lowest     the least cosine of v_k and v_c,    highest: the largest; ties to the smaller c
    deployed         w = 1 / K sum_k w_k

The K models (middleware models) start alike, and alpha below 1 keeps them near each other; every
model counts alike in w, whatever the samples of its clients; and a partner of many counts up to
1 - alpha more, whatever the limit of shares. ``global, received`` is w, which goes down next to the
model to be trained: for evaluation alone. ``local, trained`` is v_k. K = 1 is FedAvg, to the bit.

Differs from the paper: that has as many models as clients in a round; here K is the number of
clients when it starts, unless set. A model that several clients of the round train is their mean by
samples; one that none trains stays, and can be c(k). The paper's ways to start faster (several
partners at first, alpha that grows) are left out. Differs from PFLlib's code: that compares models
by a sum of cosines, of ever more tensors, starts with FedAvg, gives each model to its clients
without a new draw if all take part, and evaluates the mean by samples, from before the mixing.
"""

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.core.rng import stream
from pomona.methods import base
from pomona.methods.row_algebra import cosine_similarity


class FedCross(base.MethodSettings):
    """FedCross's settings; symbols of the paper in brackets.

    Attributes:
        models: models that are trained (K); one a client if not set
        alpha: weight of a model against that of its partner (alpha)
        partner: with which model each is mixed: the least or most similar, or in turn
    """

    name: Literal["fedcross"] = "fedcross"
    models: int | None = Field(None, ge=1, le=1000)
    alpha: float = Field(0.99, ge=0.5, le=1)
    partner: Literal["lowest", "highest", "in-order"] = "lowest"

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        return base.Method(server(self), base.Client(base.stateless, train), CARD)


@dataclass(frozen=True)
class Middleware:
    """The models that are trained (K, d), and their mean (d,)."""

    models: Tensor
    mean: Tensor


def server(settings: FedCross) -> base.Server:
    """Deal the models out, and mix each with its partner."""

    def start(initial: base.Initial, roster: base.Roster, seed: int) -> Middleware:
        w = initial()
        return Middleware(w.expand(settings.models or len(roster.members), -1), w)

    def downlink(
        state: Middleware, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> base.Downlink:
        return {
            "model": base.Rows(state.models, dealt(len(state.models), ids, roster, round_)),
            "mean_model": base.Rows.broadcast(state.mean, len(ids)),
        }

    def aggregate(
        state: Middleware,
        uplink: base.Uplink,
        ids: base.Ids,
        roster: base.Roster,
        round_: base.Round,
    ) -> Middleware:
        numbers = dealt(len(state.models), ids, roster, round_)
        trained = tuple(numbers.unique().tolist())
        trainers = [(numbers == k).nonzero().squeeze(1) for k in trained]
        p = [roster.weights(tuple(ids[m] for m in rows.tolist())) for rows in trainers]

        def means(W: Tensor) -> Tensor:
            pairs = zip(trainers, p, strict=True)
            return torch.stack([base.weighted_mean(W[rows], weights) for rows, weights in pairs])

        locals_ = base.chunked(uplink["model"]).apply(means).compute()
        models = base.replace_rows(state.models, trained, locals_)
        if len(models) > 1:
            chosen = partners(models, settings.partner, round_.number)
            mixed = base.chunked(models).apply(lambda w: torch.lerp(w[chosen], w, settings.alpha))
            models = mixed.compute()
        uniform = torch.full((len(models),), 1 / len(models), dtype=torch.float64)
        return Middleware(models, base.weighted_mean(models, uniform))

    def add_clients(
        state: Middleware, ids: base.Ids, roster: base.Roster
    ) -> tuple[Middleware, Tensor]:
        return state, state.mean

    def uplink_form(state: Middleware) -> base.Uplink:
        return {"model": state.mean}

    return base.Server(
        start, downlink, aggregate, add_clients, uplink_form, global_model=True, deals=True
    )


def dealt(K: int, ids: base.Ids, roster: base.Roster, round_: base.Round) -> Tensor:
    """Return the number (n,) of the model that each client trains: the members take them in turn,
    in a new order each round.
    """
    order = torch.from_numpy(stream(round_.seed, "fedcross", round_.number).permutation(K))
    turns = {client: turn for turn, client in enumerate(roster.members)}
    return order[[turns[i] % K for i in ids]]


def partners(models: Tensor, rule: str, number: int) -> Tensor:
    """Return c (K,) for each of models (K, d), K >= 2, in a round."""
    K = len(models)
    if rule == "in-order":
        return (torch.arange(K) + number % (K - 1) + 1) % K
    sign = 1 if rule == "lowest" else -1
    similarity = sign * cosine_similarity(base.chunked(models).apply(torch.Tensor.double))
    return similarity.fill_diagonal_(torch.inf).argmin(1)


def train(
    state: None, received: base.Received, training: base.LocalTraining, round_: base.Round
) -> base.Trained[None]:
    """Train the model dealt out, and evaluate the mean."""
    training.observe("global", received["mean_model"], "received")
    W = base.sgd(training, received["model"].clone(), round_)
    training.observe("local", W, "trained")
    return None, {"model": W}, {}


CARD = base.Card(
    presentation=base.Presentation("FedCross"),
    paper="Hu et al., ICDE 2024, Algorithm 1",
    summary="models that travel from client to client, each mixed with one other; used is their mean",
    exchange=base.Exchange(down="2", up="1", private="nothing but the data", keeps="nothing"),
    headline=("global", "received"),
    joining="newcomers and unseen clients start from the mean of the models",
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
)

"""FedFomo: each client evaluates others' models on its own validation data and moves towards those
that help.

Zhang, Sapra, Fidler, Yeung, Alvarez. Personalized federated learning with first order model
optimization. ICLR 2021 (arXiv 2012.08565).

    weight           w_n = (L_i(theta_i') - L_i(theta_n)) / ||theta_n - theta_i'||                         (eq. 3)
                     theta_i' is the model before its last local training, L_i the mean validation loss;
                     n runs over the models received and the client's own, just trained one
    update           theta_i = theta_i' + sum_n w*_n (theta_n - theta_i'),   w*_n = max(w_n, 0) / sum_n max(w_n, 0);
                     theta_i' itself where no w_n is positive; then E epochs of local SGD
    affinity         p_i <- p_i + w, p_i = e_i at first; what to download next are the M largest p_ij (ties at random),
                     each place taken with probability epsilon by a random model not yet picked

The server keeps the last model of each client. The row p_i stays with client i, which requests
models with its upload: it sends its order of preference of the others, and when it takes part again
the server sends it M of the models of the previous round (section 3.1). With ``candidates =
"everybody"`` all models that were ever sent are available, however old; the server then tells
clients which exist (including this round's cohort), and sees only the M chosen ones. If all clients
take part in each round both are the same. For a client without a request the server draws at
random, since all p_ij (j != i) are then equal. Round 1 brings no models.

The validation share (the paper's split is 80/20) is a setting of the data:
``data.validation_share``. Validation losses bypass the gradient, so a differentially private
objective does not cover them.

Differs from the paper: the budget M counts other clients; its server ranks the affinities, and so
must know them; here it knows their order. If a single client took part in a round, models of the
previous one stay available. A member that joined after a client's last request ranks last for it.
The paper states that links between clients and their uploads can be removed. That is not
implemented: affinities and requests identify the models that helped, so a server that answers them
must know their senders. Eq. 12 does not derive eq. 3, which is taken as a definition; an unchanged
model (0 / 0) has the weight 0. Differs from published code: that measures distances by the L1 norm
(``norm="l1"``), adds w / sum |w| to p, starts p_ii at 0.1, repeats the same "random" choice each
round, counts the own model in M, augments validation images, and also sends the means of spectral
clusters of the true number, which the paper does not mention. Under partial participation it trains
all clients once before round 1, and draws the same cohort in every round, because it reseeds the
draw.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base
from pomona.methods.mixtures.fedfomo_server import (
    Bank,
    Fomo,
    describe_requests,
    make_request,
    server,
)
from pomona.methods.mixtures.request_bank import limit


class FedFomo(Fomo):
    """FedFomo's settings.

    Attributes:
        norm: distance between models; l1 is the published code's
    """

    name: Literal["fedfomo"] = "fedfomo"
    norm: Literal["l2", "l1"] = "l2"

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        order = 2 if self.norm == "l2" else 1

        def start(
            initial: base.Initial, roster: base.Roster, ids: base.Ids, seed: int
        ) -> FedFomoState:
            return initial_state(initial, roster, ids, seed, previous=initial())

        def evaluate(
            state: FedFomoState, received: base.Received, training: base.LocalTraining
        ) -> Evaluation:
            return evaluate_models(state, received, training, order)

        relaying_server = replace(server(self, offer_models), relays={"models": "model"})
        card = replace(
            CARD,
            exchange=replace(
                CARD.exchange,
                reveals=describe_requests(self),
                down_models=lambda clients: limit(self.budget, clients),
            ),
        )
        return base.Method(
            relaying_server, base.Client(start, train(self, evaluate), private=("affinity",)), card
        )


VALIDATION_LOSSES = replace(
    base.RELEASES["validation-losses"],
    remedy="take a method that evaluates no models, such as apple",
)


def offer_models(bank: Bank, index: Tensor, offered: Tensor) -> base.Downlink:
    """Offer single models."""
    return {"models": base.Rows(bank.models, index)}


@dataclass(frozen=True)
class FedFomoState:
    """State of clients: model (n, d), the one before its last local training, its affinities (n,
    N).

    ``previous`` is (n, 0) if models are compared with their mean.
    """

    current: Tensor
    previous: Tensor
    affinity: Tensor


@dataclass(frozen=True)
class Evaluation:
    """The personal model (n, d), and w and w* (n, M + 1) of the received models, then of the own
    one.
    """

    personal: Tensor
    gains: Tensor
    shares: Tensor


def initial_state(
    initial: base.Initial, roster: base.Roster, ids: base.Ids, seed: int, previous: Tensor
) -> FedFomoState:
    """Return the initial state: the common model for all, with p_i = e_i."""
    current = base.model_state(initial, roster, ids, seed)
    affinity = torch.eye(len(roster), dtype=current.dtype)[list(ids)]
    return FedFomoState(current, previous.repeat(len(ids), 1), affinity)


def train(
    settings: Fomo,
    evaluate: Callable[[FedFomoState, base.Received, base.LocalTraining], Evaluation],
) -> Callable[
    [FedFomoState, base.Received, base.LocalTraining, base.Round], base.Trained[FedFomoState]
]:
    """Return a client's round: federated update, local SGD, and the next request."""

    def round_trip(
        state: FedFomoState,
        received: base.Received,
        training: base.LocalTraining,
        round_: base.Round,
    ) -> base.Trained[FedFomoState]:
        evaluation = evaluate(state, received, training)
        sources = torch.cat([received["models"].index, training.ids.unsqueeze(1)], dim=1)
        affinity = state.affinity.masked_fill(~training.roster.member_mask, 0).scatter_add(
            1, sources, evaluation.gains.to(state.affinity)
        )
        weights = torch.zeros_like(affinity).scatter_add(1, sources, evaluation.shares.to(affinity))
        training.observe("personal", evaluation.personal, "received")

        previous = evaluation.personal[:, : state.previous.shape[1]].clone()
        W = base.sgd(training, evaluation.personal, round_)
        requests = [
            make_request(settings, p, available, i, round_)
            for p, available, i in zip(
                affinity, received["available"], training.clients, strict=True
            )
        ]
        uplink = {"model": W, "request": torch.stack(requests)}
        return (
            FedFomoState(W, previous, affinity),
            uplink,
            {"weights": weights, "affinity": affinity},
        )

    return round_trip


def evaluate_models(
    state: FedFomoState, received: base.Received, training: base.LocalTraining, order: int
) -> Evaluation:
    """Apply eq. 3: each model against the one before the last local training, gain in loss per
    distance. A gain that is not finite counts for nothing.
    """
    previous, offer = state.previous, received["models"]
    losses = measure_all(offer, state.current, lambda W: training.loss(W, "validation"))
    distances = measure_all(
        offer, state.current, lambda W: torch.linalg.vector_norm(W - previous, order, dim=1)
    )
    gains = (training.loss(previous, "validation").cpu().unsqueeze(1) - losses) / distances.to(
        losses
    ).masked_fill(distances == 0, torch.inf)
    gains[:, :-1].masked_fill_(offer.index == training.ids.unsqueeze(1), 0)
    gains.masked_fill_(~gains.isfinite(), 0)
    shares = normalised(gains)
    return Evaluation(move_towards(previous, offer, state.current, shares), gains, shares)


def models(offer: base.Rows, current: Tensor) -> Iterator[Tensor]:
    """Yield the received models, one (n, d) after another, then the own one; they must not be
    changed.
    """
    for column in offer.index.T.tolist():
        # of a single client without copying
        yield offer.bank[column[0]].unsqueeze(0) if len(column) == 1 else offer.bank[column]
    yield current


def measure_all(offer: base.Rows, current: Tensor, measure: Callable[[Tensor], Tensor]) -> Tensor:
    """Measure every received model and the own one: (n, M + 1), on the CPU."""
    return torch.stack([measure(W).cpu() for W in models(offer, current)], dim=1)


def normalised(gains: Tensor) -> Tensor:
    """Return w* = max(w, 0) / sum max(w, 0) along rows; zeros if no w is positive."""
    positive = gains.clamp_min(0)
    total = positive.sum(1, keepdim=True)
    return positive / total.masked_fill(total == 0, 1)


def move_towards(origin: Tensor, offer: base.Rows, current: Tensor, weights: Tensor) -> Tensor:
    """Return rows origin + sum_n weights_n (theta_n - origin), (n, d); exactly the origin if all
    weights are 0.
    """
    W, difference = origin.clone(), torch.empty_like(origin)
    for weight, model in zip(weights.T.to(origin), models(offer, current), strict=True):
        W.addcmul_(weight.unsqueeze(1), torch.sub(model, origin, out=difference))
    return W


QUANTITIES = (
    base.Quantity(
        "weights",
        "matrix",
        "Whose models each client moved towards",
        "w*(i, j)",
        "the normalised weight w*(i, j) with which client i (row) took the model of client j "
        "(column) into its own "
        "in that round; 0 for models that did not help on its validation data or did not come.",
        history="Which models helped each client, round by round",
    ),
    base.Quantity(
        "affinity",
        "matrix",
        "Whose models have helped so far",
        "p(i, j)",
        "the affinity p(i, j), the sum over rounds of the weights that client i (row) found for "
        "the model of client j (column) on its validation data; the highest are asked for next. In "
        "a deployment each row stays with its client.",
        history="How each client's affinities grew",
    ),
)

CARD = base.Card(
    presentation=base.Presentation("FedFomo", QUANTITIES),
    paper="Zhang et al., ICLR 2021, eq. 3 and section 3.2",
    summary="each client moves towards the models that lower its validation loss",
    exchange=base.Exchange(
        down="M (all others without a budget)",
        up="1",
        private=(
            "the affinities, the validation losses, and the personal model before local training"
        ),
        keeps="its model, the one before its last training, and its row of P",
    ),
    headline=("personal", "received"),
    joining=(
        "a newcomer starts from the members' mean model and p_i = e_i; a leaver's column of P "
        "becomes 0 and is not requested; an unseen client is like a newcomer, but sends its "
        "model to no one"
    ),
    privacy=base.PrivacyCost(gradients=(base.Gradients(),), releases=(VALIDATION_LOSSES,)),
    needs=base.Needs(cohort="any cohort, a validation split", validation=True),
)

"""FedFomo with model averages: only the mean of all models and the leave-one-out means are sent.

Zhang, Sapra, Fidler, Yeung, Alvarez. Personalized federated learning with first order model
optimization. ICLR 2021 (arXiv 2012.08565), appendix A.4; everything else is as in ``fedfomo``.

    weight           w_n = L_i(mean without theta_n) - L_i(mean)                                          (eq. 14)
    update           theta_i = mean + sum_n w*_n (theta_n - mean),   w*_n = max(w_n, 0) / sum_n max(w_n, 0)

For V models theta_n - mean is (V - 1) (mean - mean without theta_n): so single models can be
recovered.

Differs from the paper: it does not define what eq. 14 mixes; here, clients' models relative to the
mean, and the mean itself if no weight is positive.
"""

from dataclasses import replace
from typing import Literal

from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base
from pomona.methods.mixtures import fedfomo
from pomona.methods.mixtures.fedfomo import (
    Evaluation,
    FedFomoState,
    initial_state,
    measure_all,
    move_towards,
    normalised,
    train,
)
from pomona.methods.mixtures.fedfomo_server import Bank, Fomo, describe_requests, server
from pomona.methods.mixtures.request_bank import limit


class FedFomoMA(Fomo):
    """The variant's settings."""

    name: Literal["fedfomo-ma"] = "fedfomo-ma"

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""

        def start(
            initial: base.Initial, roster: base.Roster, ids: base.Ids, seed: int
        ) -> FedFomoState:
            return initial_state(initial, roster, ids, seed, previous=initial()[:0])

        client = base.Client(start, train(self, evaluate_means), private=("affinity",))
        card = replace(
            CARD,
            exchange=replace(
                CARD.exchange,
                reveals=describe_requests(self),
                down_models=lambda clients: limit(self.budget, clients) + 1,
            ),
        )
        return base.Method(server(self, offer_means), client, card)


def offer_means(bank: Bank, index: Tensor, offered: Tensor) -> base.Downlink:
    """Offer the mean of the available models (initially the initial one), and the leave-one-out
    means.
    """
    included = offered if offered.any() else torch.arange(len(offered)) == 0
    W, count = base.chunked(bank.models), int(included.sum())
    mean = base.weighted_mean(W[included], torch.full((count,), 1 / count, dtype=torch.float64))
    means = W.apply(lambda models, overall: leave_one_out(overall, models, count), mean).compute()
    return {
        "models": base.Rows(means, index),
        "mean": base.Rows.broadcast(mean, len(index)),
        "uploaded": base.Rows.broadcast(offered, len(index)),
    }


def leave_one_out(mean: Tensor, model: Tensor, count: Tensor | int) -> Tensor:
    """Return the mean of ``count`` models without one, from the mean of all; for a single model
    that mean itself.
    """
    return mean + (mean - model) / (torch.as_tensor(count, device=mean.device) - 1).clamp_min(1)


def evaluate_means(
    state: FedFomoState, received: base.Received, training: base.LocalTraining
) -> Evaluation:
    """Apply eq. 14: the loss of the mean without each model; the client computes the mean without
    its own. A gain that is not finite counts for nothing; without a finite loss of the mean the
    client starts from its own model.
    """
    mean, offer, uploaded = received["mean"], received["models"], received["uploaded"]
    count = uploaded.sum(1, keepdim=True)
    without_self = leave_one_out(mean, state.current, count)
    losses = measure_all(offer, without_self, lambda W: training.loss(W, "validation"))
    mean_loss = training.loss(mean, "validation").unsqueeze(1)
    gains = losses - mean_loss.cpu()
    gains[:, :-1].masked_fill_(offer.index == training.ids.unsqueeze(1), 0)
    gains[:, -1:].masked_fill_(~uploaded.gather(1, training.ids.unsqueeze(1)), 0)
    gains.masked_fill_(~gains.isfinite(), 0)
    shares = normalised(gains)
    origin = mean.where(mean_loss.isfinite(), state.current)
    return Evaluation(
        move_towards(origin, offer, without_self, (1 - count) * shares), gains, shares
    )


CARD = replace(
    fedfomo.CARD,
    presentation=base.Presentation("FedFomo-MA", fedfomo.CARD.presentation.quantities),
    paper="Zhang et al., ICLR 2021, eq. 14 and appendix A.4",
    summary="FedFomo that is sent means without one model in place of single models",
    exchange=replace(
        fedfomo.CARD.exchange,
        down="M + 1 (N without a budget)",
        private="the affinities and the validation losses",
        keeps="its model and its row of P",
    ),
)

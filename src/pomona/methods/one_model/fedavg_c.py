"""FedAvg-C and FedProx-C: every round starts with fine-tuning, and local training continues from
there.

"Customised" baselines of Zhang, Hua, Wang, Song, Xue, Ma, Guan. FedALA: adaptive local aggregation
for personalized federated learning. AAAI 2023 (arXiv 2212.01197), table 2.

    client           t_i <- SGD(w; k epochs on D_i)                          the personal model, without a proximal term
                     w_i <- SGD(t_i; E epochs), for FedProx-C pulled by mu (v - w) towards the received w
    server           as FedAvg: w <- sum_i n_i / n w_i

With plain SGD, FedAvg-C trains exactly as FedAvg with k more epochs a round (but for the order of
the samples, and the momentum that starts anew); what differs is the headline model. Fine-tuning is
part of training here, so that its rate follows the run's schedule: at the end of a cosine t_i is
close to the received w, where FedAvg-FT's is not.

Differs from the paper: k is not given; the default is the run's ``local_epochs``. The time per
round in table 3 suggests about 14.
"""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from pomona.methods import base
from pomona.methods.one_model import fedavg, fedprox
from pomona.methods.one_model.fedavg import FinetuneEpochs


class FedAvgC(base.MethodSettings):
    """FedAvg whose clients continue training from the fine-tuned model."""

    name: Literal["fedavg-c"] = "fedavg-c"
    finetune_epochs: FinetuneEpochs = None

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        card = customised_card(fedavg.CARD, self.finetune_epochs, base.Presentation("FedAvg-C"))
        return base.Method(
            fedavg.server(), customised(fedavg.client(mu=0.0), self.finetune_epochs), card
        )


class FedProxC(base.MethodSettings):
    """FedProx whose clients continue training from the fine-tuned model.

    Attributes:
        mu: weight of the proximal term (mu); 0 is FedAvg-C
    """

    name: Literal["fedprox-c"] = "fedprox-c"
    mu: float = Field(0.01, ge=0)
    finetune_epochs: FinetuneEpochs = None

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        card = customised_card(fedprox.CARD, self.finetune_epochs, base.Presentation("FedProx-C"))
        return base.Method(
            fedavg.server(), customised(fedavg.client(self.mu), self.finetune_epochs), card
        )


def customised(inner: base.Client, epochs: int | None) -> base.Client:
    """Fine-tune the received model by plain SGD, evaluate the result, and start ``inner`` from
    it.
    """

    def train(
        state: object, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[object]:
        tuned = base.sgd(training, received["model"].clone(), round_, epochs, purpose="finetuning")
        training.observe("personal", tuned, "received")
        return inner.train(state, {**received, "start": tuned}, training, round_)

    return replace(inner, train=train, sends_step=False)


def customised_card(
    card: base.Card, epochs: int | None, presentation: base.Presentation
) -> base.Card:
    """Return the card of a method that starts with ``epochs`` of fine-tuning."""
    return replace(
        fedavg.finetuned_card(card, presentation, epochs),
        paper=f"{card.paper}; customised: Zhang et al., AAAI 2023 (arXiv 2212.01197), table 2",
        summary=f"{card.summary}; each client fine-tunes first, and trains on from there",
    )

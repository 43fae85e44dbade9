"""FedAvg-C and FedProx-C: every round starts with fine-tuning, and local training goes on from there.

"Customised" baselines of Zhang, Hua, Wang, Song, Xue, Ma, Guan. FedALA: adaptive local aggregation for personalized
federated learning. AAAI 2023, table 2.

    client           t_i <- SGD(w; k epochs on D_i)                          the personal model, without a proximal term
                     w_i <- SGD(t_i; E epochs), for FedProx-C pulled by mu (v - w) towards the received w
    server           as FedAvg: w <- sum_i n_i / n w_i

With plain SGD, FedAvg-C trains exactly as FedAvg with k more epochs a round (but for the order of the samples, and the
momentum that starts anew); what differs is the model that is judged.

Differs from the paper: k is printed nowhere; the default is the run's ``local_epochs``. The time per round in table 3
suggests about 14.
"""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from pomona.core.round import Round
from pomona.methods import fedavg, fedprox
from pomona.methods.base import Card, Client, Info, Method, MethodSettings, Received, Uplink, averaging, sgd
from pomona.objective.local_training import LocalTraining
from pomona.record.presentation import Presentation


class FedAvgC(MethodSettings):
    """FedAvg whose clients train on from the fine-tuned model."""

    name: Literal["fedavg-c"] = "fedavg-c"
    finetune_epochs: int | None = Field(
        None, ge=0, le=10**6, description="epochs of fine-tuning; the run's local_epochs if not set"
    )

    def method(self) -> Method:
        """The two halves."""
        card = customised_card(fedavg.CARD, self.finetune_epochs, Presentation("FedAvg-C", 22))
        return Method(averaging(), customised(fedavg.client(mu=0.0), self.finetune_epochs), card)


class FedProxC(MethodSettings):
    """FedProx whose clients train on from the fine-tuned model."""

    name: Literal["fedprox-c"] = "fedprox-c"
    mu: float = Field(0.01, ge=0, description="weight of the proximal term (mu); 0 is FedAvg-C")
    finetune_epochs: int | None = Field(
        None, ge=0, le=10**6, description="epochs of fine-tuning; the run's local_epochs if not set"
    )

    def method(self) -> Method:
        """The two halves."""
        card = customised_card(fedprox.CARD, self.finetune_epochs, Presentation("FedProx-C", 23))
        return Method(averaging(), customised(fedavg.client(self.mu), self.finetune_epochs), card)


def customised(inner: Client, epochs: int | None) -> Client:
    """A client that fine-tunes what it received by plain SGD, is judged by that, and lets ``inner`` start from it."""

    def train(state: object, received: Received, training: LocalTraining, round_: Round) -> tuple[object, Uplink, Info]:
        tuned = sgd(training, received["model"].clone(), round_, epochs, purpose="finetuning")
        training.observe("personal", tuned, "received")
        return inner.train(state, {**received, "start": tuned}, training, round_)

    return Client(inner.start, train, inner.private)


def customised_card(card: Card, epochs: int | None, presentation: Presentation) -> Card:
    """The card of a method that starts from ``epochs`` of fine-tuning."""
    return replace(
        fedavg.finetuned_card(card, epochs, presentation),
        paper=f"{card.paper}; customised: Zhang et al., AAAI 2023, table 2",
        summary=f"{card.summary}; each client fine-tunes first, and trains on from there",
    )

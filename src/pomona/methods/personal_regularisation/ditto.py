"""Ditto: FedAvg, plus a personal model for each client that is kept near the global one.

Li, Hu, Beirami, Smith. Ditto: fair and robust federated learning through personalization. ICML 2021
(arXiv 2012.04221), Algorithm 1.

    objective        min_{v_i}  F_i(v_i) + lambda / 2 ||v_i - w*||^2,   w* = argmin_w sum_i n_i / n F_i(w)
    client           w_i <- SGD(w), as FedAvg
                     v_i <- v_i - lr (g_i(v_i) + lambda (v_i - w))       w is the model received, not the trained copy
    server           as FedAvg, on the w_i: weights n_i / n

v_i persists and never leaves the client. Named models: FedAvg's ``global`` and ``local``, and
``personal``, which is v_i after training. Both passes of a round draw the same batches, so that the
global part is FedAvg and, for lambda = 0, v_i is Separate, to the bit. A step keeps the share 1 -
lr lambda of v_i: at lr lambda = 1 nothing. The paper chooses lambda among 0.1, 1 and 2 at small
rates; at larger ones take a smaller lambda. With ``feature_weight`` = mu F_i gets mu R besides, the
discrepancy (``discrepancy.py``) of the batch's features under v_i from those under w.

Differs from published code: that alternates the steps of both models (to the same effect), samples
clients by size and averages uniformly.
"""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from pomona.core.lazy_torch import Tensor
from pomona.methods import base
from pomona.methods.one_model import fedavg
from pomona.methods.personal_regularisation.discrepancy import discrepancy_losses


class Ditto(base.MethodSettings):
    """Ditto's settings; symbols of the paper in brackets.

    Attributes:
        lambda_: pull of the personal model towards the global one (lambda); lr x lambda well below
            1
        feature_weight: pull of the features' distribution to that under the global model (MMD)
        personal_epochs: epochs of the personal model a round; the run's local_epochs if not set
    """

    name: Literal["ditto"] = "ditto"
    lambda_: float = Field(1.0, ge=0, alias="lambda")
    feature_weight: float = Field(0.0, ge=0)
    personal_epochs: int | None = Field(None, ge=0, le=10**6)

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        card = base.reads_outputs(CARD, "feature_weight") if self.feature_weight else CARD
        personal = base.Gradients(epochs=self.personal_epochs, noised=not self.feature_weight)
        gradients = base.Gradients(), personal
        card = replace(card, privacy=replace(card.privacy, gradients=gradients))
        return base.Method(fedavg.server(), client(self), card, self.caution)

    def caution(self, round_: base.Round, _members: int) -> str | None:
        """Warn of a proximal pull that is not small against a step."""
        return strong_pull_warning(self.name, self.lambda_, round_)


def strong_pull_warning(name: str, weight: float, round_: base.Round) -> str | None:
    """Warn if a method's pull on personal models, ``method.lambda``, is not small against a
    step.
    """
    if round_.lr * weight < 1:
        return None
    return (
        f"{name}: lr x lambda = {round_.lr * weight:.3g}; from 1 on every step forgets the "
        f"personal model; set method.lambda well below {1 / round_.lr:.3g}, or a smaller lr"
    )


def client(settings: Ditto) -> base.Client:
    """Run FedAvg's client, and train a personal model (n, d) in addition."""
    shared = fedavg.client(mu=0.0)

    def train(
        V: Tensor, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[Tensor]:
        w, weight = received["model"], settings.lambda_
        _, uplink, info = shared.train(None, received, training, round_)
        losses = discrepancy_losses(training, w, settings.feature_weight)
        pull = base.Pull(weight, w)
        base.sgd(training, V, round_, settings.personal_epochs, pull=pull, losses=losses)
        training.observe("personal", V, "trained")
        return V, uplink, info

    return base.Client(base.model_state, train)


CARD = base.Card(
    presentation=base.Presentation("Ditto"),
    paper="Li et al., ICML 2021, Algorithm 1",
    summary="FedAvg, and a personal model of each client held near the global one",
    exchange=base.Exchange(
        down="1", up="1", private="the personal model", keeps="its personal model"
    ),
    headline=("personal", "trained"),
    joining=("a newcomer's personal model starts from the global one; an unseen client's too"),
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
)

"""MOON: FedAvg with a contrastive loss: features near the global model's, and away from the own
previous model's.

Li, He, Song. Model-contrastive federated learning. CVPR 2021 (arXiv 2103.16257), Algorithm 1.

    client           v <- SGD(w; E epochs on F_i + mu C_i),   of a sample with features z under v, z_w under
                     the received w, z_p under the client's last local model:
                     C_i = -log( exp(cos(z, z_w) / tau) / (exp(cos(z, z_w) / tau) + exp(cos(z, z_p) / tau)) )
    server           as FedAvg: w <- sum_i n_i / n v_i

Features are the input of the last layer. The last local model stays with the client; it starts as
the initial one, so that in round 1 z_p = z_w, C_i is constant and the round is FedAvg's. mu = 0 is
FedAvg, to the bit. Named models as in FedAvg. The paper searches mu among 0.1, 1, 5 and 10, with
tau = 0.5.

Differs from the paper: that puts a projection head of two layers before the last one; here the
network is the run's, and may contain one. z_w and z_p are computed once per round, in evaluation
mode and without augmentation: the same numbers unless the network normalises over batches or uses
dropout, or training augments images. Differs from published code: that runs each batch through all
three models in every epoch.
"""

from typing import Literal

from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base
from pomona.methods.one_model import fedavg


class MOON(base.MethodSettings):
    """MOON's settings; symbols of the paper in brackets.

    Attributes:
        mu: weight of the contrast in the loss (mu); 0 is FedAvg
        temperature: of the similarities in the contrast (tau)
    """

    name: Literal["moon"] = "moon"
    mu: float = Field(1.0, ge=0)
    temperature: float = Field(0.5, gt=0)

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        card = base.reads_outputs(CARD, "mu") if self.mu else CARD
        return base.Method(fedavg.server(), client(self), card)


def client(settings: MOON) -> base.Client:
    """Run FedAvg's client with the contrastive loss; the state is its last local model (n, d)."""

    def train(
        last: Tensor, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[Tensor]:
        w = received["model"]
        training.observe("global", w, "received")
        losses = [
            contrasted(
                settings,
                training,
                *(base.Cached.features(training.objective, row, c) for row in pair),
            )
            for *pair, c in zip(w, last, training.clients, strict=True)
            if settings.mu and training.trains
        ]
        W = base.sgd(training, received.get("start", w).clone(), round_, losses=losses)
        training.observe("local", W, "trained")
        return W, {"model": W}, {}

    return base.Client(base.model_state, train)


def contrasted(
    settings: MOON,
    training: base.LocalTraining,
    global_features: base.Cached,
    last_features: base.Cached,
) -> base.Loss:
    """Return the loss of a client's batches: its samples -> F + mu C, with the features of both
    fixed models.
    """
    plain = training.objective.criterion

    def batch_loss(index: Tensor) -> base.RowCriterion:
        z_w, z_p = global_features.lookup(index), last_features.lookup(index)

        def loss(outputs: Tensor, targets: Tensor, features: Tensor) -> Tensor:
            return plain(outputs, targets).mean() + settings.mu * contrast(
                features, z_w, z_p, settings.temperature
            )

        return loss

    return batch_loss


def contrast(z: Tensor, z_w: Tensor, z_p: Tensor, temperature: float) -> Tensor:
    """Return the mean contrastive loss () of features z (b, f), attracted by ``z_w`` and repelled
    by ``z_p``.
    """
    similar = (
        torch.stack(
            [torch.nn.functional.cosine_similarity(z, reference) for reference in (z_w, z_p)], 1
        )
        / temperature
    )
    return torch.nn.functional.cross_entropy(
        similar, torch.zeros(len(z), dtype=torch.long, device=z.device)
    )


CARD = base.Card(
    presentation=base.Presentation("MOON"),
    paper="Li et al., CVPR 2021, Algorithm 1",
    summary="one global model; clients keep their features near its own",
    exchange=base.Exchange(
        down="1", up="1", private="nothing but the data", keeps="its last local model"
    ),
    headline=("global", "received"),
    joining="a newcomer's last model is the global one; an unseen client's too",
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
)

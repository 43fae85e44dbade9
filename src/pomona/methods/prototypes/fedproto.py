"""FedProto: clients exchange mean features of each class, and train their own models near them.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang. FedProto: federated prototype learning across heterogeneous
clients. AAAI 2022 (arXiv 2105.00243), Algorithm 1.

    client           w_i  <- SGD(w_i; E epochs on F_i + lambda R),   R(z; y) = 1 / (b f) sum_j |z_j - C_y|^2
                     c_ik = mean of the features z of its samples of class k under the new w_i
    server           C_k  <- sum_i n_ik c_ik / sum_i n_ik            n_ik samples of class k in the cohort
    by prototypes    the answer to a sample is the class k with the least |z - C_k|^2

Features z are the f numbers that the last layer receives, of b samples j in a batch. Models stay
with their clients, and start as the initial one; in round 1 there is no C, no R. lambda = 0 is
Separate, to the bit.

Named models: ``personal`` is w_i with its own head. ``prototypes`` is w_i by prototypes, which is a
network too: -|z - C_k|^2 is linear in z up to a term that all classes share, so C makes a head. A
class without a mean is never its answer.

Differs from the paper: its equation 6 divides a class's mean by the number of clients that have the
class again. Differs from published code: that counts clients that have a class alike
(``weigh = "clients"``), averages features while the model still moves over the epoch, and forgets a
class that nobody in the cohort has. R is that code's mean over samples and features. PFLlib
averages over all epochs, and ends up with these models if it takes the means after training, by a
function that it does not call; it prints the accuracy by prototypes, the authors' code those of
both named models.
"""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base
from pomona.methods.prototypes import class_means
from pomona.methods.prototypes.class_means import ClassMeans

NEVER = 1e4
"""How much further than the furthest mean, from 0, a class without a mean is taken to be."""


class FedProto(base.MethodSettings):
    """FedProto's settings; symbols of the paper in brackets.

    Attributes:
        lambda_: pull of features to the prototype of their class (lambda)
        weigh: what counts in the mean of a class: its samples, or clients equally
    """

    name: Literal["fedproto"] = "fedproto"
    lambda_: float = Field(1.0, ge=0, alias="lambda")
    weigh: Literal["samples", "clients"] = "samples"

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        card = replace(CARD, privacy=class_means.privacy(self.lambda_))
        return base.Method(server(self), client(self.lambda_), card)


def server(settings: FedProto) -> base.Server:
    """Pool the class means, and send them to all."""

    def start(initial: base.Initial, roster: base.Roster, seed: int) -> ClassMeans:
        return class_means.start(initial)

    def downlink(
        state: ClassMeans, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> base.Downlink:
        return class_means.downlink(state, len(ids))

    def aggregate(
        state: ClassMeans,
        uplink: base.Uplink,
        ids: base.Ids,
        roster: base.Roster,
        round_: base.Round,
    ) -> ClassMeans:
        return class_means.pooled(state, uplink, ids, roster, settings.weigh == "clients")

    return base.Server(
        start,
        downlink,
        aggregate,
        base.add_from_initial,
        class_means.uplink_form,
        invalid=class_means.invalid,
    )


def client(lambda_: float) -> base.Client:
    """Train a model of its own near the class means; the state is that model (n, d)."""

    def train(
        W: Tensor, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[Tensor]:
        means, has_mean = class_means.received(received)
        head = base.linear_head(training)
        training.observe("personal", W, "received")
        training.observe("prototypes", by_prototypes(W, means, has_mean, head), "received")
        losses = [
            class_means.attracted(training, *target, lambda_)
            for target in zip(means, has_mean, strict=True)
            if lambda_
        ]
        base.sgd(training, W, round_, losses=losses)
        training.observe("personal", W, "trained")
        training.observe("prototypes", by_prototypes(W, means, has_mean, head), "trained")
        return W, class_means.uplink(training, W), {}

    return base.Client(base.model_state, train, private=("state",))


def by_prototypes(W: Tensor, means: Tensor, has_mean: Tensor, head: base.Head) -> Tensor:
    """Return rows W (n, d) whose head answers by the nearest mean.

    Args:
        W: rows.
        means: (n, K, f).
        has_mean: (n, K).
        head: of the rows.
    """
    P = W.clone()
    weight, bias = head.view(P)
    weight.copy_(2 * means * has_mean.unsqueeze(2))
    squares = means.square().sum(2)
    furthest = squares.amax(1, keepdim=True)
    bias.copy_(torch.where(has_mean > 0, -squares, -NEVER * (1 + furthest)))
    return P


CARD = base.Card(
    presentation=base.Presentation("FedProto"),
    paper="Tan et al., AAAI 2022, Algorithm 1",
    summary="a model for each client, with features near the mean features of each class",
    exchange=base.Exchange(
        down="class means",
        up="class means",
        private="the whole model",
        keeps="its model",
        reveals=class_means.REVEALS,
    ),
    headline=("personal", "trained"),
    models=("prototypes",),
    joining="newcomers and unseen clients start from the initial model, near the standing means",
    privacy=class_means.privacy(1.0),
    tasks=("classes",),
)

"""GPFL: a shared body and valve, whose features serve the client's own head and class embeddings.

Zhang, Hua, Wang, Song, Xue, Ma, Cao, Guan. GPFL: simultaneously learning global and personalized
feature information for personalized federated learning. ICCV 2023 (arXiv 2308.10279), Algorithm 1.

    valve            v(z, c) = ReLU(z (1 + gamma(c)) + beta(c))    gamma, beta: linear, ReLU, LayerNorm      (3, 4)
    conditions       g = sum_u C'_u / K,  p_i = sum_u a_iu C'_u / K                                          (5, 7)
    client           (phi, V, C, h_i) <- SGD((phi, V, C, h_i); E epochs on F_i + A + lambda M + mu (|V| + |C|))   (11)
                     F_i = loss of h_i(v(z, p_i)),   z = phi(x)                                              (10)
                     A   = -log softmax(cos(v(z, g), C))_y                                                   (8)
                     M   = |v(z, g) - C'_y|                                                                  (9)
    server           (phi, V, C) <- sum_i n_i / n (phi_i, V_i, C_i)

C has a vector of f numbers for each of K classes, C' is C as received; a_iu is the share of class u
in client i's training samples; V are gamma and beta. h_i and p_i never leave the client; V_i
follows from p_i. Named models: ``personal``, as received and trained. The network is the run's with
a valve before its last layer (``model.valve``, which the method sets); it is trained whatever
``model.train`` names. Conditions are in the row, so that a personal model is complete, and set once
a round.

Differs from published code: that takes both conditions from the client's own C of the round before
(0 in the first), and p_i without the division by K; M is the norm of a whole batch's differences;
mu is a weight decay, whose gradient is mu V, not mu V / |V|. PFLlib has the same code; FL4Health
conditions as here. lambda and mu are 0.01 and 0.1 in its command for a small network, 0.0001 and 0
for ResNet-18.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base
from pomona.methods.shared_parts import partly_shared
from pomona.methods.shared_parts.partly_shared import drop_columns, insert_columns, select_columns
from pomona.models.settings import CONDITIONS, EMBEDDINGS, HEAD, VALVE


class GPFL(base.MethodSettings):
    """GPFL's settings; symbols of the paper in brackets.

    Attributes:
        lambda_: weight of the distance to a class's embedding (lambda)
        mu: weight of the valve's and embeddings' norms (mu)
    """

    name: Literal["gpfl"] = "gpfl"
    lambda_: float = Field(0.01, ge=0, alias="lambda")
    mu: float = Field(0.1, ge=0)

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        return base.Method(partly_shared.server(private_columns), client(self), CARD)


def private_columns(row: partly_shared.RowLayout) -> partly_shared.Columns:
    """Return what stays with a client: the conditions and the last layer."""
    private = [e for e in row.parameters if e.name == CONDITIONS or e.name.startswith(HEAD)]
    return partly_shared.merge(slice(e.start, e.stop) for e in private)


def client(settings: GPFL) -> base.Client:
    """Set the conditions, train all but them under both losses, and send what is shared."""

    def train(
        state: partly_shared.KeptState,
        received: base.Received,
        training: base.LocalTraining,
        round_: base.Round,
    ) -> base.Trained[partly_shared.KeptState]:
        columns, entries = private_columns(training), {e.name: e for e in training.parameters}
        W = insert_columns(received["model"], state.kept, *columns)
        C = entries[EMBEDDINGS].view(W).clone()
        conditions = entries[CONDITIONS]
        conditions.view(W).copy_(class_shares(training, C) @ C / C.shape[1])
        training.observe("personal", W, "received")
        losses = [guided(settings, training, embeddings) for embeddings in C]
        base.sgd(
            training,
            W,
            round_,
            losses=losses,
            term=norm_gradient(settings.mu, training) if settings.mu else None,
            columns=slice(conditions.stop, W.shape[1]),
        )
        training.observe("personal", W, "trained")
        private = partly_shared.KeptState(select_columns(W, *columns))
        return private, {"model": drop_columns(W, *columns)}, {}

    return replace(partly_shared.client(private_columns), train=train)


def class_shares(training: base.LocalTraining, C: Tensor) -> Tensor:
    """Return the shares (n, 2, K) of classes in the conditions: the client's own, and ones."""
    shares = torch.ones(len(C), 2, C.shape[1]).to(C)
    for proportions, client in zip(shares[:, 0], training.clients, strict=True):
        counts = training.class_counts(client)
        assert counts is not None
        proportions.zero_()[: len(counts)] = counts / counts.sum()
    return shares


def guided(settings: GPFL, training: base.LocalTraining, embeddings: Tensor) -> base.Loss:
    """Return the loss of one client's batches, with the embeddings (K, f) as it received them."""
    plain, (classes, f) = training.objective.criterion, embeddings.shape

    def batch_loss(index: Tensor) -> base.RowCriterion:
        y = training.targets(index)

        def loss(outputs: Tensor, targets: Tensor, features: Tensor) -> Tensor:
            _, common, cosines = features.split([f, f, classes], 1)
            distance: Tensor = (common - embeddings[y]).norm(dim=1).mean()
            task_loss = plain(outputs, targets).mean()
            return (
                task_loss
                + torch.nn.functional.cross_entropy(cosines, y)
                + settings.lambda_ * distance
            )

        return loss

    return batch_loss


def norm_gradient(mu: float, row: partly_shared.RowLayout) -> Callable[[Tensor], Tensor]:
    """Return the gradient of mu (|V| + |C|) as a function of rows (a, d)."""
    C, *V = [e for e in row.parameters if e.name.startswith(VALVE) and e.name != CONDITIONS]
    blocks = slice(C.start, C.stop), slice(V[0].start, V[-1].stop)

    def gradient(W: Tensor) -> Tensor:
        G = torch.zeros_like(W)
        for block in blocks:
            G[:, block] = mu * torch.nn.functional.normalize(W[:, block])
        return G

    return gradient


CARD = base.Card(
    presentation=base.Presentation("GPFL"),
    paper="Zhang et al., ICCV 2023, Algorithm 1",
    summary="body shared, with a valve and class embeddings that guide it; a head of each client",
    exchange=base.Exchange(
        down="1, without the head, and a valve with class embeddings",
        up="1, without the head, and a valve with class embeddings",
        private="the head and the shares of its classes",
        keeps="its head",
    ),
    headline=("personal", "received"),
    joining=(
        "a newcomer's head starts from the initial one; an unseen client trains it next to the "
        "final shared part"
    ),
    privacy=base.PrivacyCost(
        gradients=(base.Gradients(noised=False),), releases=(base.RELEASES["output-criterion"],)
    ),
    needs=base.Needs(model={"valve": True}),
    tasks=("classes",),
)

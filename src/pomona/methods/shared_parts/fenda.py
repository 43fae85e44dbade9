"""FENDA-FL and PerFCL: two bodies under one head; one body is shared, the rest is a client's own.

FENDA-FL: Tavakoli, Emerson, Ayromlou, Jewell, Krishnan, Zhang, Verma, Razak. A comprehensive view
of personalized federated learning on heterogeneous clinical datasets. arXiv 2309.16825.

PerFCL: Zhang, Xu, Wei, Wang, Li, Shang. Doubly contrastive representation learning for federated
image recognition. Pattern Recognition 139, 2023.

    model            h_i([a_i(x), b(x)])        a_i, b two bodies of one architecture, h_i a linear layer on both
    client           (a_i, b_i, h_i) <- SGD((a_i, b, h_i); E epochs on F_i + mu C_b + gamma C_a)
    server           b <- sum_i n_i / n b_i
    contrast         C(z; +, -) = -log( exp(cos(z, +) / tau) / (exp(cos(z, +) / tau) + exp(cos(z, -) / tau)) )
                     C_b = C(b_i(x); b(x), b'_i(x)),   b as received, b'_i the client's of its last round
                     C_a = C(a_i(x); a'_i(x), b(x)),   a'_i the client's own as it was before the round

a_i and h_i never leave the client. FENDA-FL has no contrasts, and so has a client in its first
round; mu = gamma = 0 is FENDA-FL, to the bit. Named models: ``personal``, as received and trained.
The network is the run's, all but its last layer twice (``model.bodies = 2``, which the methods
set): both bodies start from draws of their own, a_i and h_i alike at all clients.

Differs from FL4Health 0.4.2, which has both: features of fixed bodies are computed once a round, in
evaluation mode and without augmentation; its bodies may differ from each other, and heads may have
more layers.
"""

from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base
from pomona.methods.one_model.moon import contrast
from pomona.methods.shared_parts import partly_shared
from pomona.methods.shared_parts.partly_shared import drop_columns, insert_columns, select_columns
from pomona.models.settings import OWN_BODY


class FENDA(base.MethodSettings):
    """FENDA-FL, which has no settings."""

    name: Literal["fenda"] = "fenda"

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        return base.Method(
            partly_shared.server(private_columns), partly_shared.client(private_columns), CARD
        )


class PerFCL(base.MethodSettings):
    """PerFCL's settings; symbols of the paper in brackets.

    Attributes:
        mu: weight of the shared body's contrast (mu)
        gamma: weight of the own body's contrast (gamma)
        temperature: of the similarities in both (tau)
    """

    name: Literal["perfcl"] = "perfcl"
    mu: float = Field(1.0, ge=0)
    gamma: float = Field(1.0, ge=0)
    temperature: float = Field(0.5, gt=0)

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        card = replace(
            CARD,
            presentation=base.Presentation("PerFCL"),
            paper="Zhang et al., Pattern Recognition 2023",
            summary=f"{CARD.summary}; each body's features kept apart from the other's",
            exchange=replace(CARD.exchange, keeps="its body, its head and its last shared body"),
        )
        if self.mu or self.gamma:
            card = base.reads_outputs(card, "mu=0 method.gamma")
        return base.Method(partly_shared.server(private_columns), client(self), card)


def private_columns(row: partly_shared.RowLayout) -> partly_shared.Columns:
    """Return what stays with a client: the own body and the last layer."""
    body = [slice(e.start, e.stop) for e in row.parameters if e.name.startswith(f"{OWN_BODY}.")]
    return partly_shared.merge([*body, row.layers[-1]])


@dataclass(frozen=True)
class PerFCLState:
    """A client's own body and head (n, k), its last shared body (n, d - k), and whether it ever
    took part (n,) bool.
    """

    kept: Tensor
    shared: Tensor
    has_trained: Tensor


def client(settings: PerFCL) -> base.Client:
    """Train the whole model with both contrasts, keep one part and send the rest."""

    def start(initial: base.Initial, roster: base.Roster, ids: base.Ids, seed: int) -> PerFCLState:
        W, columns = initial().repeat(len(ids), 1), private_columns(initial)
        has_trained = torch.zeros(len(ids), dtype=torch.bool, device=W.device)
        return PerFCLState(select_columns(W, *columns), drop_columns(W, *columns), has_trained)

    def train(
        state: PerFCLState,
        received: base.Received,
        training: base.LocalTraining,
        round_: base.Round,
    ) -> base.Trained[PerFCLState]:
        columns = private_columns(training)
        W = insert_columns(received["model"], state.kept, *columns)
        training.observe("personal", W, "received")
        last = insert_columns(state.shared, state.kept, *columns)
        losses = [
            contrasted(settings, training, k, (W[k], last[k]) if state.has_trained[k] else None)
            for k in range(len(W))
            if training.trains and (settings.mu or settings.gamma)
        ]
        base.sgd(training, W, round_, losses=losses)
        training.observe("personal", W, "trained")
        shared = drop_columns(W, *columns)
        trained = PerFCLState(
            select_columns(W, *columns), shared.clone(), torch.ones_like(state.has_trained)
        )
        return trained, {"model": shared}, {}

    return base.Client(start, train, private=("kept",))


def contrasted(
    settings: PerFCL, training: base.LocalTraining, k: int, fixed: tuple[Tensor, Tensor] | None
) -> base.Loss:
    """Return the loss of a client's batches: the run's own, and both contrasts with the features of
    two fixed rows (d,): as received, and with the last shared body.
    """
    plain, client = training.objective.criterion, training.clients[k]
    features = [base.Cached.features(training.objective, row, client) for row in fixed or ()]

    def batch_loss(index: Tensor) -> base.RowCriterion:
        halves = [half for cached in features for half in cached.lookup(index).chunk(2, 1)]

        def loss(outputs: Tensor, targets: Tensor, z: Tensor) -> Tensor:
            task_loss = plain(outputs, targets).mean()
            if not halves:
                return task_loss
            own_features, shared_features = z.chunk(2, 1)
            previous_own, received, _, previous_shared = halves
            tau = settings.temperature
            C_b = contrast(shared_features, received, previous_shared, tau)
            C_a = contrast(own_features, previous_own, received, tau)
            return task_loss + settings.mu * C_b + settings.gamma * C_a

        return loss

    return batch_loss


CARD = base.Card(
    presentation=base.Presentation("FENDA-FL"),
    paper="Tavakoli et al., arXiv 2309.16825",
    summary="two bodies under each client's head, one of them shared",
    exchange=base.Exchange(
        down="one of two bodies",
        up="one of two bodies",
        private="the own body and the head",
        keeps="its body and its head",
    ),
    headline=("personal", "received"),
    joining=(
        "a newcomer's body and head start from the initial ones; an unseen client trains them next "
        "to the final shared body"
    ),
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
    needs=base.Needs(model={"bodies": 2}),
    tasks=("classes", "multilabel", "regression", "survival"),
)

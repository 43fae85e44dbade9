"""FedPHP: every client inherits a private model from its own past, which teaches the next local
training.

Li, Zhan, Shao, Li, Song. FedPHP: federated personalization with inherited private models. ECML-PKDD
2021 (doi 10.1007/978-3-030-86486-6_36).

    client           w_i <- SGD(w; E epochs on (1 - lambda) F_i + lambda R(., h_i)), (h_i is fixed)
                     h_i <- m h_i + (1 - m) w_i,   m = mu (r - 1) / rounds,   0 in the first participation,
                     mu in the rounds past the last in which a client never trained with adapts
    server           as FedAvg: w <- sum_i n_i / n w_i
    transfer R       distillation: the run's loss against h_i's answers, softened by temperature 4
                     mmd: squared maximum mean discrepancy between the features of w_i and of h_i on
                     the batch, with five Gaussian kernels around the mean squared distance

h_i is not sent, but the server could compute it: it is a weighted mean of the w_i. ``personal,
trained`` is h_i after the mixing. Under full participation m is the published code's momentum, mu
times the times a client took part over the times it will.

Differs from published code: that knows the participation rate and counts each client's visits (here
the round counts, which is the same on average), clips gradients, and trains at least five batches a
round. There a batch of one sample has an R, of a slope without bound: the width is its own
distance.
"""

from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base
from pomona.methods.one_model import fedavg
from pomona.methods.personal_regularisation.discrepancy import distances, statistic
from pomona.objective.objective import Objective

TEMPERATURE = 4.0


class FedPHP(base.MethodSettings):
    """FedPHP's settings; symbols of the paper in brackets.

    Attributes:
        mu: how much of the inherited model stays in the last round (mu)
        transfer: what the inherited model teaches: features, or answers
        transfer_weight: weight of the transfer in the loss (lambda)
    """

    name: Literal["fedphp"] = "fedphp"
    mu: float = Field(0.9, ge=0, le=1)
    transfer: Literal["mmd", "distillation"] = "distillation"
    transfer_weight: float = Field(0.1, ge=0, le=1)

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        card = replace(CARD, needs=replace(CARD.needs, total_rounds=self.mu > 0))
        if self.transfer_weight:
            card = base.reads_outputs(card, "transfer_weight")
        return base.Method(fedavg.server(), client(self), card)


@dataclass(frozen=True)
class FedPHPState:
    """A client's inherited model (n, d), and whether it ever took part (n,)."""

    inherited: Tensor
    seen: Tensor


def client(settings: FedPHP) -> base.Client:
    """Train with the transfer from the inherited model, then update that model with the trained
    one.
    """

    def start(initial: base.Initial, roster: base.Roster, ids: base.Ids, seed: int) -> FedPHPState:
        model = initial().repeat(len(ids), 1)
        return FedPHPState(model, torch.zeros(len(ids), dtype=torch.bool, device=model.device))

    def train(
        state: FedPHPState,
        received: base.Received,
        training: base.LocalTraining,
        round_: base.Round,
    ) -> base.Trained[FedPHPState]:
        w = received["model"]
        training.observe("global", w, "received")
        W = received.get("start", w).clone()
        teachers = [
            Teacher.for_client(settings, h, c, training.objective)
            for h, c in zip(state.inherited, training.clients, strict=True)
            if settings.transfer_weight and training.trains
        ]
        base.sgd(training, W, round_, losses=[teacher.criterion for teacher in teachers])
        training.observe("local", W, "trained")

        inheritance = state.seen.to(W) * (settings.mu * min((round_.number - 1) / round_.total, 1))
        inherited = torch.lerp(W, state.inherited, inheritance.unsqueeze(1))
        training.observe("personal", inherited, "trained")
        return (
            FedPHPState(inherited, torch.ones_like(state.seen)),
            {"model": W},
            {"inheritance": inheritance},
        )

    return base.Client(start, train)


@dataclass(frozen=True)
class Teacher:
    """The inherited model's features or softened outputs on a client's own training samples."""

    settings: FedPHP
    objective: Objective
    cached: base.Cached

    @classmethod
    def for_client(
        cls, settings: FedPHP, h: Tensor, client: int, objective: Objective
    ) -> "Teacher":
        """Return the teacher of an inherited model (d,), computed on all of a client's training
        samples.
        """
        if settings.transfer == "mmd":
            return cls(settings, objective, base.Cached.features(objective, h, client))
        hard = base.Cached.outputs(objective, h, client)
        soft = replace(hard, values=objective.data.task.soften(hard.values, TEMPERATURE))
        return cls(settings, objective, soft)

    def criterion(self, index: Tensor) -> base.RowCriterion:
        """Return the loss of one batch: (1 - lambda) F + lambda R."""
        taught, weight = self.cached.lookup(index), self.settings.transfer_weight

        def loss(outputs: Tensor, targets: Tensor, features: Tensor) -> Tensor:
            task = self.objective.criterion(outputs, targets).mean()
            if self.settings.transfer == "mmd":
                transfer = discrepancy(features, taught)
            else:
                transfer = self.objective.criterion(outputs, taught).mean()
            return (1 - weight) * task + weight * transfer

        return loss


def discrepancy(x: Tensor, y: Tensor) -> Tensor:
    """Return squared MMD () between samples x and y (b, f), over Gaussian kernels of five widths
    (biased estimate); 0 if there is one sample.

    The middle width is the mean squared distance between different samples of both together, held
    fixed.
    """
    if len(x) == 1:
        return 0 * x.sum()
    distance, m = distances(x, y), 2 * len(x)
    width = distance.detach().sum() / (m * m - m) + 1e-8
    return statistic(distance, width, len(x))


QUANTITIES = (
    base.Quantity(
        "inheritance",
        "values",
        "How much of the inherited model stays",
        "share kept, m",
        "m, the share of its past that the inherited private model keeps in that round; the rest "
        "is the model just trained.",
    ),
)

CARD = base.Card(
    presentation=base.Presentation("FedPHP", QUANTITIES),
    paper="Li et al., ECML-PKDD 2021",
    summary="one global model, and a moving average of its own local models for each client",
    exchange=base.Exchange(
        down="1",
        up="1",
        private="nothing but the data (the inherited model is an average of a client's uploads)",
        keeps="its inherited model",
    ),
    headline=("personal", "trained"),
    joining="newcomers and unseen clients inherit the global model",
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
)

"""Per-FedAvg: one initial model, trained so that a single step on a client's own data adapts it
well.

Fallah, Mokhtari, Ozdaglar. Personalized federated learning with theoretical guarantees: a
model-agnostic meta-learning approach. NeurIPS 2020 (arXiv 2002.07948), Algorithm 1.

    objective        min_w  sum_i n_i / n F_i(w - alpha grad F_i(w))         (eq. 3, weighted by samples)
    client           each step, on independent batches b1, b2, b3:
                     u <- v - alpha g(v; b1)
                     v <- v - beta g(u; b2)                                  order = first (FO)
                     v <- v - beta (g(u; b2) - alpha H(v; b3) g(u; b2))      order = hf
                     where H(v; b) z ~ (g(v + delta z; b) - g(v - delta z; b)) / (2 delta), as in HF-MAML;
                     order = exact: H(v; b) z itself, by a second backward pass
    server           as FedAvg: w <- sum_i n_i / n w_i
    headline         w - alpha g(w; b), one step on a batch of the client's training data

b2 passes over the training data in FedAvg's order, so that alpha = 0 is FedAvg with the rate beta
to the bit; b1 and b3 use other orders. An epoch has as many steps as FedAvg's. delta is scaled to
||delta z|| = 0.01, which keeps the difference above float32's rounding. For quadratics it is exact;
for networks with kinks (ReLU, max-pooling) it is far from the product, by more than its own length
in our experiments, and smaller radii are worse. ``exact`` has no such error, at the cost of about
two gradients as well, but without stacking clients, and not under privacy.

alpha is part of the objective, and the same in every round, whatever the schedule of the rates;
beta follows it, and is the run's lr if not set: if it is far above alpha, the adaptation is hardly
visible. Neither has a value that suits all data; alpha = lr was worse in our experiment (digits, lr
0.3).

Differs from published code: that counts batches where the paper counts steps, and adapts on test
data before testing on them; here nothing ever trains on test data.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Literal

from pydantic import Field

from pomona.core.lazy_torch import Tensor
from pomona.methods import base
from pomona.methods.one_model import fedavg
from pomona.objective.batches import Batch
from pomona.privacy.settings import SECOND_ORDER

RADIUS = 0.01


class PerFedAvg(base.MethodSettings):
    """Per-FedAvg's settings; symbols of the paper in brackets.

    Attributes:
        alpha: rate of the step that adapts the model to a client (alpha); follows neither lr nor
            its schedule
        beta: rate of the outer steps (beta); the run's lr if not set
        order: first-order, or with Hessian-vector products: by differences (HF-MAML), or exact
    """

    name: Literal["per-fedavg"] = "per-fedavg"
    alpha: float = Field(0.01, ge=0)
    beta: float | None = Field(None, ge=0)
    order: Literal["first", "hf", "exact"] = "first"

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        curvature = (
            (base.Gradients(per_batch=2, purpose="curvature"),) if self.order == "hf" else ()
        )
        refused = (
            f"{SECOND_ORDER}; set method.order to first or hf" if self.order == "exact" else None
        )
        card = replace(
            CARD,
            privacy=replace(
                CARD.privacy, gradients=(*CARD.privacy.gradients, *curvature), not_private=refused
            ),
        )
        return base.Method(fedavg.server(), client(self), card)


def client(settings: PerFedAvg) -> base.Client:
    """Train for the model after one step."""

    def train(
        state: None, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[None]:
        w, alpha = received["model"], settings.alpha
        outer = (
            round_ if settings.beta is None else replace(round_, lr=settings.beta * round_.decay)
        )
        W = received.get("start", w).clone()
        training.observe("global", w, "received")
        if training.watches("received"):
            training.observe("personal", adapted(training, W.clone(), alpha), "received")

        inner, third = (
            training.steps(round_.passes, purpose=p) for p in ("adaptation", "curvature")
        )
        for batch, v, velocity in training.steps(round_.passes, W, base.optimizer_state(W, round_)):
            _, g = training.gradient(v, next_batch(inner))
            _, g = training.gradient(v - alpha * g, batch)
            if settings.order != "first":
                product = curvature if settings.order == "hf" else exact
                g = g - alpha * product(training, v, g, next_batch(third))
            base.optimizer_step(v, g, velocity, outer)
        return None, {"model": W}, {}

    return base.Client(base.stateless, train)


def adapted(training: base.LocalTraining, W: Tensor, alpha: float) -> Tensor:
    """Update rows W (n, d), in place, by one step on a batch of training data; unchanged for a
    client without any.
    """
    for batch, w in islice(training.steps(1, W, purpose="finetuning"), 1):
        w.sub_(training.gradient(w, batch)[1], alpha=alpha)
    return W


def curvature(training: base.LocalTraining, v: Tensor, z: Tensor, batch: Batch) -> Tensor:
    """Return the Hessian times z (a, d) at rows v (a, d), by central differences: exact for
    quadratics, 0 for z = 0.
    """
    delta = RADIUS / z.norm(dim=1, keepdim=True).clamp_min(1e-12)
    (_, above), (_, below) = (training.gradient(v + side * delta * z, batch) for side in (1, -1))
    product: Tensor = (above - below) / (2 * delta)
    return product


def exact(training: base.LocalTraining, v: Tensor, z: Tensor, batch: Batch) -> Tensor:
    """Return the Hessian times z (a, d) at rows v (a, d)."""
    return training.hessian(v, batch, z)


def next_batch(steps: Iterator[tuple[Any, ...]]) -> Batch:
    """Return the next batch of a pass that runs alongside another."""
    batch: Batch
    (batch,) = next(steps)
    return batch


CARD = base.Card(
    presentation=base.Presentation("Per-FedAvg"),
    paper="Fallah et al., NeurIPS 2020, Algorithm 1",
    summary="one initial model, trained for what one local step makes of it",
    exchange=base.Exchange(down="1", up="1", private="the adapted model", keeps="nothing"),
    headline=("personal", "received"),
    joining="newcomers and unseen clients start from the global model",
    privacy=base.PrivacyCost(
        gradients=(
            base.Gradients(),
            base.Gradients(purpose="adaptation"),
            base.Gradients(purpose="finetuning", epochs=1, evaluates=True),
        )
    ),
)

"""pFedMe: the global model is trained on the Moreau envelopes of the clients' losses.

T. Dinh, Tran, Nguyen. Personalized federated learning with Moreau envelopes. NeurIPS 2020 (arXiv
2006.08848), Algorithm 1.

    objective        min_w  sum_i n_i / n min_theta { F_i(theta) + lambda / 2 ||theta - w||^2 }           (eqs. 2, 3)
    client           w_i starts at the received w, theta at w; per batch
                     K times: theta <- theta - personal_lr (g_i(theta) + lambda (theta - w_i))
                     w_i   <- w_i - lr lambda (w_i - theta)
    server           w <- (1 - beta) w + beta sum_i n_i / n w_i        over the cohort

Named models: ``global`` is w as received, ``personal`` is theta after training. theta starts at w
in every round, so that a client keeps nothing between rounds; within a round it continues from the
previous batch, as in published code. Momentum and weight decay belong to F_i and act only on
theta's steps. With lambda = 0, w never changes. Both steps are SGD: adam and adamw are refused.

theta's steps contract only while personal_lr (lambda + L) < 2, L the curvature of F_i. The default
is the run's lr, and at most 1 / (2 lambda), so that the pull alone takes no more than half a step.
The authors' 0.09 at lambda = 15 leaves room for L < 7.2 only: enough for their small networks, too
large for others. theta is trained, as w_i moves by it: its rate follows the run's schedule, also
where it is set.

Differs from published code: theta's weight decay is the run's (there: 0.001); only the cohort
trains; personal_lr.
"""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base
from pomona.methods.one_model import fedavg


class PFedMe(base.MethodSettings):
    """pFedMe's settings; symbols of the paper in brackets.

    Attributes:
        lambda_: pull between the personal and the client's global model (lambda)
        inner_steps: steps of the personal model per batch (K)
        beta: share of the clients' mean in the new global model (beta); 0 freezes it
        personal_lr: rate of the personal model; if not set the run's lr, at most 1 / (2 lambda)
    """

    name: Literal["pfedme"] = "pfedme"
    lambda_: float = Field(15.0, ge=0, alias="lambda")
    inner_steps: int = Field(5, ge=1, le=10**6)
    beta: float = Field(1.0, ge=0)
    personal_lr: float | None = Field(None, gt=0)

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        card = replace(
            CARD,
            privacy=replace(CARD.privacy, gradients=(base.Gradients(per_batch=self.inner_steps),)),
        )
        return base.Method(server(self.beta), client(self), card, self.caution)

    def caution(self, round_: base.Round, _members: int) -> str | None:
        """Warn of steps that overshoot because of the pull alone."""
        pulled = personal_rate(self, round_) * self.lambda_
        if pulled < 1:
            return None
        return (
            f"pfedme: personal_lr x lambda = {pulled:.3g}; from 1 on the pull alone overshoots, "
            "and from 2 on it diverges; leave method.personal_lr unset, or lower it"
        )


def server(beta: float) -> base.Server:
    """Return FedAvg's server, mixed with its previous model."""
    mean = fedavg.server()

    def aggregate(
        w: Tensor, uplink: base.Uplink, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> Tensor:
        return torch.lerp(w, mean.aggregate(w, uplink, ids, roster, round_), beta)

    return replace(mean, aggregate=aggregate)


def client(settings: PFedMe) -> base.Client:
    """Solve for theta on each batch, and move w_i towards it."""

    def train(
        state: None, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[None]:
        training.observe("global", received["model"], "received")
        initial = received.get("start", received["model"])
        W, theta = initial.clone(), initial.clone()
        weight, inner = settings.lambda_, replace(round_, lr=personal_rate(settings, round_))
        for batch, w, t, velocity in training.steps(
            round_.passes, W, theta, base.optimizer_state(theta, round_)
        ):
            for _ in range(settings.inner_steps):
                training.step(t, batch, velocity, inner, base.Pull(weight, w))
            w.sub_(w - t, alpha=round_.lr * weight)
        training.observe("personal", theta, "trained")
        return None, {"model": W}, {}

    return base.Client(
        base.stateless, train, rate="method.personal_lr" if settings.personal_lr else None
    )


def personal_rate(settings: PFedMe, round_: base.Round) -> float:
    """Return the learning rate of theta in this round."""
    if settings.personal_lr is not None:
        return settings.personal_lr * round_.decay
    return min(round_.lr, round_.decay / (2 * settings.lambda_)) if settings.lambda_ else round_.lr


CARD = base.Card(
    presentation=base.Presentation("pFedMe"),
    paper="T. Dinh et al., NeurIPS 2020, Algorithm 1",
    summary="one global model for all, a personal one near it for each batch of each client",
    exchange=base.Exchange(down="1", up="1", private="the personal model", keeps="nothing"),
    headline=("personal", "trained"),
    joining="newcomers and unseen clients start from the global model",
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
    needs=base.Needs(steps="sgd"),
)

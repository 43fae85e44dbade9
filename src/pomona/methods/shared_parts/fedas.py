"""FedAS: FedPer with received layers aligned to the client's, and averaged by Fisher information.

Yang, Huang, Ye. FedAS: bridging inconsistency in personalized federated learning. CVPR 2024,
Algorithm 1.

    alignment        P_k   = mean of the features z of the client's samples of class k under its last phi_i
                     phi_i <- SGD(phi; on R),    R = 1 / f sum_k 1 / b_k sum_j |z_j - P_k|^2    over samples j of class k
    client           (phi_i, h_i) <- SGD((phi_i, h_i); E epochs on D_i)
                     t_i   = sum over batches of |g_i(phi_i, h_i)|^2
    server           phi   <- sum_i t_i / (t_1 + ... + t_n) phi_i

phi are all layers but the last, h_i is the last and stays; b_k samples of a batch have class k. t_i
is the trace of the Fisher information, by which clients that hardly trained count little. Without
alignment (``alignment_epochs = 0``) and with ``weigh = "samples"`` this is FedPer, to the bit.

Named models: ``personal, received`` is the received phi under the client's h_i, before the
alignment; ``personal, trained`` is (phi_i, h_i).

Differs from published code: that aligns by plain SGD at 0.01 in batches of 16, here with the run's
optimizer, rate and batches; measures t_i in evaluation mode, here as in training; and lets absent
clients measure theirs, which nobody uses. In full batches PFLlib trains the same models. Where
shares of a mean are limited, so is that of t_i.
"""

from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base
from pomona.methods.one_model import fedavg
from pomona.methods.one_model.reweighting import reweighted_server
from pomona.methods.prototypes.class_means import means_of
from pomona.methods.shared_parts.partly_shared import drop_columns, insert_columns, select_columns

SMALLEST = 1e-30
"""Least trace, relative to the largest, that a client counts by."""


class FedAS(base.MethodSettings):
    """FedAS's settings.

    Attributes:
        alignment_epochs: epochs of the alignment with one's own features; 0: none
        alignment_lr: rate of the alignment; the run's if not set
        weigh: what clients count by: their Fisher information, or their samples
    """

    name: Literal["fedas"] = "fedas"
    alignment_epochs: int = Field(1, ge=0, le=10**6)
    alignment_lr: float | None = Field(None, gt=0, le=1e6)
    weigh: Literal["fisher", "samples"] = "fisher"

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        gradients, releases, exchange = [base.Gradients()], CARD.privacy.releases, CARD.exchange
        server = reweighted_server({"fisher": 0.0}, ratios, shared=body)
        if self.alignment_epochs:
            epochs = self.alignment_epochs
            gradients.append(base.Gradients(purpose="alignment", epochs=epochs, noised=False))
        else:
            releases = ()
        if self.weigh == "fisher":
            gradients.append(base.Gradients(purpose="fisher", epochs=1))
        else:
            server, exchange = fedavg.server(body), replace(exchange, reveals={})
        cost = base.PrivacyCost(tuple(gradients), releases)
        return base.Method(server, client(self), replace(CARD, privacy=cost, exchange=exchange))


def body(initial: base.Initial) -> Tensor:
    """Return the shared part of the initial model (k,)."""
    return drop_columns(initial(), base.linear_head(initial).columns)


def ratios(w: Tensor, uplink: base.Uplink, p: Tensor, round_: base.Round) -> Tensor:
    """Return t_i / sum_j t_j / p_i (n,)."""
    t = uplink["fisher"].squeeze(1).to(p)
    t = (t / t.max().clamp_min(torch.finfo(t.dtype).tiny)).clamp_min(SMALLEST)
    return t / t.sum() / p


@dataclass(frozen=True)
class FedASState:
    """A client's last lower layers (n, k) and head (n, h)."""

    body: Tensor
    head: Tensor


def client(settings: FedAS) -> base.Client:
    """Align, train all layers, and measure the Fisher information."""

    def start(initial: base.Initial, roster: base.Roster, ids: base.Ids, seed: int) -> FedASState:
        W, columns = initial().repeat(len(ids), 1), base.linear_head(initial).columns
        return FedASState(drop_columns(W, columns), select_columns(W, columns))

    def train(
        state: FedASState, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[FedASState]:
        head, rate = base.linear_head(training), settings.alignment_lr
        W = insert_columns(received["model"], state.head, head.columns)
        training.observe("personal", W, "received")
        if training.trains and settings.alignment_epochs:
            last_model = insert_columns(state.body, state.head, head.columns)
            means, _ = means_of(training.features(last_model), head.outputs)
            base.sgd(
                training,
                W,
                replace(round_, lr=rate * round_.decay) if rate else round_,
                settings.alignment_epochs,
                purpose="alignment",
                losses=[aligned(training, m) for m in means],
                columns=slice(0, head.columns.start),
            )
        base.sgd(training, W, round_)
        training.observe("personal", W, "trained")
        shared = drop_columns(W, head.columns)
        extra = {"fisher": traces(training, W)} if settings.weigh == "fisher" else {}
        return FedASState(shared, select_columns(W, head.columns)), {"model": shared, **extra}, {}

    tuned = "method.alignment_lr" if settings.alignment_lr else None
    return base.Client(start, train, private=("head",), rate=tuned)


def aligned(training: base.LocalTraining, means: Tensor) -> base.Loss:
    """Return the loss R of one client's batches, with its own class means (K, f)."""

    def batch_loss(index: Tensor) -> base.RowCriterion:
        y = training.targets(index)
        counts = torch.bincount(y, minlength=len(means))[y]

        def loss(outputs: Tensor, targets: Tensor, features: Tensor) -> Tensor:
            return ((features - means[y]).square().mean(1) / counts).sum()

        return loss

    return batch_loss


def traces(training: base.LocalTraining, W: Tensor) -> Tensor:
    """Return t_i (n, 1) float64 of rows W (n, d); 0 in a call that only evaluates."""
    totals = torch.zeros(len(W), 1, dtype=torch.float64, device=W.device)
    for batch, w, t in training.steps(int(training.trains), W, totals, purpose="fisher"):
        t.add_(training.gradient(w, batch)[1].double().square().sum(1, keepdim=True))
    return totals


CARD = base.Card(
    presentation=base.Presentation("FedAS"),
    paper="Yang et al., CVPR 2024, Algorithm 1",
    summary=(
        "lower layers shared, aligned with each client's own and averaged by Fisher information; "
        "a head for each client"
    ),
    exchange=base.Exchange(
        down="share of the lower layers",
        up="share of the lower layers",
        private="the head",
        keeps="its model",
        reveals={"fisher": "the trace of its model's Fisher information on its samples"},
    ),
    headline=("personal", "trained"),
    joining="newcomers and unseen clients start from the initial model",
    privacy=base.PrivacyCost(
        gradients=(base.Gradients(),), releases=(base.RELEASES["output-criterion"],)
    ),
    tasks=("classes",),
)

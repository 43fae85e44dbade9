"""Fed-RoD: a generic model trained with a class-balanced loss, plus a personal head for each
client.

Chen, Chao. On bridging generic and personalized federated learning for image classification. ICLR
2022 (arXiv 2107.00778), with linear personal heads. The loss is the balanced softmax of Ren et al.,
NeurIPS 2020.

    generic          min_{phi, g}  sum_i n_i / n B_i(g o phi),    of a sample x of class y, z = g(phi(x)) the K outputs
                     B_i: -log( n_{i,y}^gamma exp(z_y) / sum_c n_{i,c}^gamma exp(z_c) ),   n_{i,c} samples of class c
    personal         min_{h_i}  F_i((g + h_i) o phi)                         the run's own loss; phi and g fixed in it
    client           per batch, both gradients taken before either step, phi_i and g_i copies of what was received:
                     (phi_i, g_i) <- (phi_i, g_i) - lr dB_i(g_i o phi_i)
                     h_i          <- h_i - lr dF_i((g_i + h_i) o phi_i) / dh_i
    server           (phi, g) <- sum_i n_i / n (phi_i, g_i)

g and h_i are linear on the same features, so their sum of outputs is the output of the summed
weights: the personal model is the row (phi, g + h_i). h_i never leaves the client. Named models:
``global, received`` is (phi, g), ``local, trained`` (phi_i, g_i); ``personal`` is (phi, g + h_i) as
received, and (phi_i, g_i + h_i) after training.

B_i is the run's loss on z + gamma log n_{i,.}: for classes, and for masks with n_{i,c} the pixels
of a class. A class that a client does not have counts as a millionth of a sample, since smoothed or
weighted labels have no loss at log 0; so a client of one class contributes almost nothing to the
generic part. With other targets there is nothing to balance, and B_i is the run's loss, as for
gamma = 0; then the generic part is FedAvg, to the bit.

Differs from the paper: of its two kinds of personal heads, the hypernetwork, which makes h_i from
class frequencies, is left out. h_i starts at 0, so that the personal model starts as the generic
one; ``head_start = "copy"`` starts it as a copy of the initial g, as implementations by others do,
whose personal model starts with twice the head. The authors published no code. The paper evaluates
the generic and the personal model; the card's headline is the latter after training, while other
implementations evaluate it as received.
"""

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base
from pomona.methods.one_model import fedavg

EMPTY_COUNT = 1e-6  # sample count of a class without samples


class FedRoD(base.MethodSettings):
    """Fed-RoD's settings; symbols of the paper in brackets.

    Attributes:
        gamma: how far the generic loss balances class frequencies (gamma); 0: not at all
        head_start: the personal head at the start: nothing, or a copy of the initial head
    """

    name: Literal["fed-rod"] = "fed-rod"
    gamma: float = Field(1.0, ge=0, le=10)
    head_start: Literal["zero", "copy"] = "zero"

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        card = base.reads_outputs(CARD, "gamma", base.Gradients()) if self.gamma else CARD
        return base.Method(fedavg.server(), client(self), card)


@dataclass(frozen=True)
class FedRoDState:
    """A client's personal head (n, h), to be added to the generic one."""

    head: Tensor


def client(settings: FedRoD) -> base.Client:
    """Train the copy of the generic model and the personal head on the same batches."""

    def start(initial: base.Initial, roster: base.Roster, ids: base.Ids, seed: int) -> FedRoDState:
        head = initial()[initial.layers[-1]].repeat(len(ids), 1)
        return FedRoDState(head if settings.head_start == "copy" else torch.zeros_like(head))

    def train(
        state: FedRoDState,
        received: base.Received,
        training: base.LocalTraining,
        round_: base.Round,
    ) -> base.Trained[FedRoDState]:
        columns, W, H = training.layers[-1], received["model"].clone(), state.head
        training.observe("global", W, "received")
        training.observe("personal", added(W, H, columns), "received")
        losses = []
        if settings.gamma:
            losses = [balanced(training, c, settings.gamma) for c in training.clients]
        rows = (W, H, base.optimizer_state(W, round_), base.optimizer_state(H, round_))
        for batch, w, h, velocity_w, velocity_h in training.steps(round_.passes, *rows):
            _, g = training.gradient(w, batch, losses[: len(w)] or None)
            _, at_personal = training.gradient(added(w, h, columns), batch, above=columns.start)
            base.optimizer_step(w, g, velocity_w, round_)
            base.optimizer_step(h, at_personal[:, columns], velocity_h, round_)
        training.observe("local", W, "trained")
        training.observe("personal", added(W, H, columns), "trained")
        return FedRoDState(H), {"model": W}, {}

    return base.Client(start, train, private=("head",))


def added(W: Tensor, H: Tensor, columns: slice) -> Tensor:
    """Return rows (n, d) with heads H (n, h) added to their own."""
    P = W.clone()
    P[:, columns] += H
    return P


def balanced(training: base.LocalTraining, client: int, gamma: float) -> base.RowCriterion:
    """Return the loss of a batch under a client's class frequencies; the run's own if targets are
    not classes.
    """
    counts, plain = training.class_counts(client), training.objective.criterion
    if counts is None:
        return lambda outputs, targets, _: plain(outputs, targets).mean()

    def loss(outputs: Tensor, targets: Tensor, features: Tensor) -> Tensor:
        shift = gamma * log_counts(counts, outputs.shape[1]).to(outputs)
        return plain(outputs + shift.reshape(-1, *[1] * (outputs.dim() - 2)), targets).mean()

    return loss


def log_counts(counts: Tensor, classes: int) -> Tensor:
    """Return logarithms (K,) of the samples of each class; ``counts`` may end before the last
    class.
    """
    padded = torch.nn.functional.pad(counts.double(), (0, classes - len(counts)))
    return padded.clamp_min(EMPTY_COUNT).log()


CARD = base.Card(
    presentation=base.Presentation("Fed-RoD"),
    paper="Chen and Chao, ICLR 2022",
    summary=(
        "one global model by a class-balanced loss, and a head of each client added to its head"
    ),
    exchange=base.Exchange(
        down="1", up="1", private="the personal head", keeps="its personal head"
    ),
    headline=("personal", "trained"),
    joining=("a newcomer's personal head starts from its setting; an unseen client's too"),
    privacy=base.PrivacyCost(gradients=(base.Gradients(per_batch=2),), batchwise=True),
)

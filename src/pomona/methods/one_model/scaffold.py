"""SCAFFOLD: control variates correct the drift of each client's local steps.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: stochastic controlled averaging for
federated learning. ICML 2020 (arXiv 1910.06378), Algorithm 1.

    objective        min_w  1/N sum_i F_i(w)
    client           y <- y - lr (g_i(y) + c - c_i)      K steps from y = w                               (eq. 3)
                     c_i+ = c_i - c + (w - y) / (K lr)                                        (eq. 4, option II)
    server           w <- w + server_lr 1/|S| sum_S (y_i - w)                                            (eq. 5)
                     c <- c + 1/N sum_S (c_i+ - c_i)

All control variates start at 0, so that the mean of the c_i is c after every round, for any cohort.
Weights are uniform, not n_i / n. Named models: ``global`` is w as received, ``local`` is y after
training.

Option II derives the mean gradient from the distance that plain SGD moved; momentum moves 1 / (1 -
momentum) times as far, and the variates overshoot round by round: momentum is refused, as are
clipping, adam and adamw.

Differs from published code: K is the number of steps taken, short last batches included. A client
without a step keeps its c_i.
"""

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base


class SCAFFOLD(base.MethodSettings):
    """SCAFFOLD's settings; symbols of the paper in brackets.

    Attributes:
        server_lr: step of the server along the mean update (eta_g)
    """

    name: Literal["scaffold"] = "scaffold"
    server_lr: float = Field(1.0, gt=0)

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        return base.Method(server(self), base.Client(start, train, rate="method.server_lr"), CARD)


@dataclass(frozen=True)
class Center:
    """The server's model w (d,), and the clients' control variates c_i (N, d).

    c is their mean over the members: stored individually, they can be removed with their client.
    """

    model: Tensor
    controls: Tensor


def server(settings: SCAFFOLD) -> base.Server:
    """Send w and c, and apply their changes."""

    def start(initial: base.Initial, roster: base.Roster, seed: int) -> Center:
        w = initial()
        return Center(w, torch.zeros_like(w).expand(len(roster), -1))

    def downlink(
        state: Center, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> base.Downlink:
        c = base.chunked(state.controls)[roster.member_mask].mean(0)
        return {
            "model": base.Rows.broadcast(state.model, len(ids)),
            "control": base.Rows.broadcast(c, len(ids)),
        }

    def aggregate(
        state: Center, uplink: base.Uplink, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> Center:
        w = state.model + settings.server_lr * base.chunked(uplink["model_delta"]).mean(0)
        index = torch.tensor(ids, device=w.device)
        controls = base.chunked(state.controls).index_add(0, index, uplink["control_delta"])
        return Center(w, controls)

    def uplink_form(state: Center) -> base.Uplink:
        return {"model_delta": state.model, "control_delta": state.controls[0]}

    return base.Server(
        start,
        downlink,
        aggregate,
        base.add_from_model,
        uplink_form,
        global_model=True,
        mirrors="control variates",
    )


@dataclass(frozen=True)
class SCAFFOLDState:
    """State of clients: control variate c_i (n, d)."""

    control: Tensor


def start(initial: base.Initial, roster: base.Roster, ids: base.Ids, seed: int) -> SCAFFOLDState:
    """Return control variates of zero."""
    return SCAFFOLDState(torch.zeros_like(initial()).repeat(len(ids), 1))


def train(
    state: SCAFFOLDState, received: base.Received, training: base.LocalTraining, round_: base.Round
) -> base.Trained[SCAFFOLDState]:
    """Run local SGD with drift correction."""
    w, c = received["model"], received["control"]
    training.observe("global", w, "received")
    local, steps = w.clone(), w.new_zeros(len(w), 1)
    drift = c - state.control
    rows = (local, drift, steps, base.optimizer_state(local, round_))
    for batch, y, d, k, velocity in training.steps(round_.passes, *rows):
        training.step(y, batch, velocity, round_, base.Pull(constant=d))
        k.add_(1)
    training.observe("local", local, "trained")

    distance = steps * round_.lr
    mean_gradient = (w - local) / distance
    delta = torch.where(distance > 0, mean_gradient - c, 0.0)
    return (
        SCAFFOLDState(state.control + delta),
        {"model_delta": local - w, "control_delta": delta},
        {},
    )


CARD = base.Card(
    presentation=base.Presentation("SCAFFOLD"),
    paper="Karimireddy et al., ICML 2020, Algorithm 1, option II",
    summary="one global model; control variates correct each client's drift",
    exchange=base.Exchange(
        down="2",
        up="2",
        private="nothing but the data (a client's control variate is the sum of its uploads)",
        keeps="its control variate (1 model)",
        reveals={
            "model_delta": "its change of the model",
            "control_delta": "the change of its control variate",
        },
    ),
    headline=("global", "received"),
    joining=(
        "c is the mean over the members: a leaver takes its own term along; newcomers and unseen "
        "clients bring 0"
    ),
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
    needs=base.Needs(steps="plain"),
)

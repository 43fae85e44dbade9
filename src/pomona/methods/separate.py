"""Separate training: every client alone, for as many epochs as the others; what a federation must beat.

    w_i <- SGD(w_i; E epochs on D_i)                       nothing is sent, nothing received

All clients start from one seed, so that the comparison with the federated methods starts from the same model.
"""

from typing import Literal

from torch import Tensor

from pomona.core.round import Roster, Round
from pomona.methods.base import Card, Client, Info, Initial, Method, MethodSettings, Received, Uplink, sgd, silent
from pomona.objective.local_training import LocalTraining
from pomona.privacy.epsilon_projection import Gradients
from pomona.record.presentation import Presentation


class Separate(MethodSettings):
    """Local training alone."""

    name: Literal["separate"] = "separate"

    def method(self) -> Method:
        """The two halves."""
        return Method(silent(), Client(start, train), CARD)


def start(initial: Initial, roster: Roster, ids: tuple[int, ...], seed: int) -> Tensor:
    """Everybody starts from the common model: (n, d)."""
    return initial().repeat(len(ids), 1)


def train(W: Tensor, received: Received, training: LocalTraining, round_: Round) -> tuple[Tensor, Uplink, Info]:
    """Local SGD from the own last model."""
    W = sgd(training, W, round_)
    training.observe("personal", W, "trained")
    return W, {}, {}


CARD = Card(
    presentation=Presentation("Separate", 0),
    paper="none (a baseline of every paper)",
    summary="each client trains alone",
    down="0",
    up="0",
    private="everything",
    headline=("personal", "trained"),
    keeps="its model",
    joining="a newcomer starts from the initial model; unseen: trains it alone",
    gradients=(Gradients(),),
)

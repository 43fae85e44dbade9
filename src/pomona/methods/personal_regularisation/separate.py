"""Separate training: every client alone, for as many epochs as the others; the baseline for a
federation.

    w_i <- SGD(w_i; E epochs on D_i)                       nothing is sent, nothing received

All clients start from one seed, so that the comparison with the federated methods starts from the
same model.
"""

from typing import Literal

from pomona.core.lazy_torch import Tensor
from pomona.methods import base


class Separate(base.MethodSettings):
    """Local training alone."""

    name: Literal["separate"] = "separate"

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        return base.Method(base.constant_server(), base.Client(base.model_state, train), CARD)


def train(
    W: Tensor, received: base.Received, training: base.LocalTraining, round_: base.Round
) -> base.Trained[Tensor]:
    """Run local SGD from the own last model."""
    W = base.sgd(training, W, round_)
    training.observe("personal", W, "trained")
    return W, {}, {}


CARD = base.Card(
    presentation=base.Presentation("Separate"),
    paper="none (a baseline of every paper)",
    summary="each client trains alone",
    exchange=base.Exchange(down="0", up="0", private="everything", keeps="its model"),
    headline=("personal", "trained"),
    joining="newcomers and unseen clients start from the initial model",
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
)

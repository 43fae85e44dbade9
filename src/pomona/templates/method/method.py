"""My method: FedAvg, but each client starts a round between the mean model and its own last one.

    client   u = w + share (v - w);  v <- SGD from u
    server   w <- mean of v, by samples

To change it, see https://pomona.readthedocs.io: "Add a method". test_project.py checks it.
"""

from pydantic import Field
from torch import Tensor

from pomona.methods import base
from pomona.methods.one_model import fedavg


class Mine(base.MethodSettings):
    """Settings of the method: keys of section [method] in run.toml."""

    share: float = Field(0.5, ge=0, le=1, description="part of the client's last model")

    def method(self) -> base.Method:
        """Return the halves of server and client, and the card."""
        return base.Method(fedavg.server(), client(self.share), CARD)


def client(share: float) -> base.Client:
    """Return the client half; its state is its last model v."""

    def train(
        last: Tensor, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[Tensor]:
        start = received["model"].lerp(last, share)
        trained = base.sgd(training, start, round_)
        training.observe("personal", trained, "trained")
        return trained, {"model": trained}, {}

    return base.Client(base.model_state, train)


CARD = base.Card(
    presentation=base.Presentation("Mine"),
    paper="not published",
    summary="each client starts from a mixture of the mean model and its last one",
    exchange=base.Exchange(down="1", up="1", private="nothing but the data", keeps="its model"),
    headline=("personal", "trained"),
    joining="a newcomer starts from the mean model",
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
)

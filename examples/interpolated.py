"""Interpolated: each client starts from a fixed mixture of the received model and its own last one.

After Mansour, Mohri, Ro, Suresh. Three approaches for personalization with applications to
federated learning. arXiv 2002.10619 (model interpolation), with one share for all clients.

    client           u_i = w + share (v_i - w);  v_i <- SGD(u_i; E epochs on D_i)
    server           w   <- sum_i n_i / n v_i        over the cohort, as FedAvg

Named models: ``global`` is w, ``personal`` is u_i. Share 0 is FedAvg, share 1 is Separate, to the
bit.
"""

from pydantic import Field
from torch import Tensor

from pomona.methods import base
from pomona.methods.one_model import fedavg


class Interpolated(base.MethodSettings):
    """One share for all clients."""

    share: float = Field(0.5, ge=0, le=1, description="part of the own model in the mixture")

    def method(self) -> base.Method:
        """The two halves."""
        return base.Method(fedavg.server(), client(self.share), CARD)


def client(share: float) -> base.Client:
    """The client half; its state is v_i as rows (n, d)."""

    def train(
        V: Tensor, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[Tensor]:
        U = received["model"].lerp(V, share)
        training.observe("global", received["model"], "received")
        training.observe("personal", U, "received")
        trained = base.sgd(training, U, round_)
        return trained, {"model": trained}, {}

    return base.Client(base.model_state, train)


CARD = base.Card(
    presentation=base.Presentation("Interpolated"),
    paper="after Mansour et al., arXiv 2002.10619",
    summary="each client starts from a fixed mixture of the received model and its last one",
    exchange=base.Exchange(down="1", up="1", private="nothing but the data", keeps="its model"),
    headline=("personal", "received"),
    joining=(
        "a newcomer starts from the global model; unseen: as a newcomer, under the standing "
        "global model"
    ),
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
)

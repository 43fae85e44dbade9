"""Anchored: FedAvg whose clients are held near their own last model while they train.

Replace this text by your paper: authors, title, venue; then objective and update rules, with
equation numbers.

    objective        min_v  F_i(v) + mu / 2 ||v - u_i||^2         u_i is the client's own last model
    client           from the received w:  v <- v - lr (g_i(v) + mu (v - u_i));  u_i <- v
    server           w <- sum_i n_i / n v_i        over the cohort, as FedAvg

Named models: ``global`` is w as received, ``personal`` is v after training. mu = 0 is FedAvg, to
the bit.

Differs from the paper: say here what your paper leaves open, and which reading this is.
"""

from pydantic import Field
from torch import Tensor

from pomona.methods import base
from pomona.methods.one_model import fedavg


class Anchored(base.MethodSettings):
    """The method's settings: each field is a key of section ``method``, with its bounds and a
    description.
    """

    mu: float = Field(
        0.1, ge=0, description="pull towards the client's own last model (mu); 0 is FedAvg"
    )

    def method(self) -> base.Method:
        """The server half, the client half and the card."""
        return base.Method(fedavg.server(), client(self.mu), CARD)


def client(mu: float) -> base.Client:
    """The client half; its state is u_i as rows (n, d), at first the common initial model."""

    def train(
        U: Tensor, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[Tensor]:
        w = received["model"]
        training.observe("global", w, "received")
        V = base.sgd(training, w.clone(), round_, pull=base.Pull(mu, U) if mu else None)
        training.observe("personal", V, "trained")
        return V, {"model": V}, {"moved": (V - U).norm(dim=1)}

    return base.Client(base.model_state, train)


QUANTITIES = (
    base.Quantity(
        "moved",
        "values",
        "How far each client's model moved in a round",
        "distance",
        "the distance between a client's models after this round and after the one before.",
    ),
)

CARD = base.Card(
    presentation=base.Presentation("Anchored", quantities=QUANTITIES),
    paper="none yet",
    summary="FedAvg whose clients are held near their own last model",
    exchange=base.Exchange(
        down="1", up="1", private="nothing but the data", keeps="its last model"
    ),
    headline=("personal", "trained"),
    joining=(
        "a newcomer starts from the global model; unseen: as a newcomer, under the standing "
        "global model"
    ),
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
)

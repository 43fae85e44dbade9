"""Near class means: FedAvg with the pull of FedProto (Tan et al., AAAI 2022) to means of classes.

    client           v_i <- SGD(w; E epochs on F_i + pull R),    R the mean of |z - C_y|^2 / f
    server           w   <- sum_i n_i / n v_i,    C_k <- the mean of features z of class k

Named models: ``global`` is w, ``local`` is v_i. pull = 0 is FedAvg, to the bit.
"""

from dataclasses import dataclass

from pydantic import Field
from torch import Tensor

from pomona.methods import base
from pomona.methods.one_model import fedavg
from pomona.methods.prototypes import class_means


class NearMeans(base.MethodSettings):
    """One weight of the pull for all."""

    pull: float = Field(1.0, ge=0, description="pull of features to the mean of their class")

    def method(self) -> base.Method:
        """The two halves."""
        return base.Method(server(), base.Client(base.stateless, trainer(self.pull)), CARD)


@dataclass(frozen=True)
class State:
    """The server's model (d,) and means."""

    model: Tensor
    means: class_means.ClassMeans


def server() -> base.Server:
    """FedAvg's server, and the class means in addition to the model."""
    mean = fedavg.server()
    return base.Server(
        lambda initial, *context: State(mean.start(initial, *context), class_means.start(initial)),
        lambda state, ids, *context: {
            **mean.downlink(state.model, ids, *context),
            **class_means.downlink(state.means, len(ids)),
        },
        lambda state, uplink, ids, roster, round_: State(
            mean.aggregate(state.model, uplink, ids, roster, round_),
            class_means.pooled(state.means, uplink, ids, roster),
        ),
        lambda state, *_: (state, state.model),
        lambda state: {**mean.uplink_form(state.model), **class_means.uplink_form(state.means)},
        invalid=class_means.invalid,
        global_model=True,
    )


def trainer(pull: float):
    """The client half; it keeps nothing."""

    def train(state, received, training: base.LocalTraining, round_: base.Round):
        training.observe("global", received["model"], "received")
        targets = zip(*class_means.received(received), strict=True)
        losses = [class_means.attracted(training, *target, pull) for target in targets if pull]
        W = base.sgd(training, received["model"].clone(), round_, losses=losses)
        training.observe("local", W, "trained")
        return None, {"model": W, **class_means.uplink(training, W)}, {}

    return train


CARD = base.Card(
    presentation=base.Presentation("Near class means"),
    paper="after Tan et al., AAAI 2022",
    summary="one global model, with features near the mean of their class",
    exchange=base.Exchange("1 + means", "1 + means", "the data", "nothing", class_means.REVEALS),
    headline=("global", "received"),
    joining="newcomers and unseen clients start from the global model",
    privacy=base.PrivacyCost((base.Gradients(noised=False),), class_means.RELEASES),
    tasks=("classes",),
)

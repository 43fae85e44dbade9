"""LG-FedAvg: shared upper layers, and lower layers for each client.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency. Think locally, act globally:
federated learning with local and global representations. arXiv 2001.01523, Algorithm 1 (without its
auxiliary and adversarial losses).

    client           (l_i, g_i) <- SGD((l_i, g); E epochs on D_i)            lower and upper layers together
    server           g <- sum_i n_i / n g_i

Only g is sent, in both directions. ``personal, received`` is the client's l_i under the received g,
``personal, trained`` the same after local training.

Differs from published code: it starts from a trained FedAvg model (here from the run's initial
model), averages uniformly (here by samples, so that with all layers shared this is FedAvg), and for
its CIFAR network lists the layers in an order that shares the convolutions and keeps the upper
layers, against the paper.
"""

from functools import partial
from typing import Literal

from pydantic import Field

from pomona.methods import base
from pomona.methods.shared_parts import partly_shared


class LGFedAvg(base.MethodSettings):
    """LG-FedAvg's settings."""

    name: Literal["lg-fedavg"] = "lg-fedavg"
    shared: partly_shared.Shared = Field(
        1, description="upper layers that are shared" + partly_shared.BY_NAME
    )

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        card = partly_shared.by_name(CARD, self.shared)
        foot = partial(partly_shared.foot, shared=self.shared)
        return base.Method(partly_shared.server(foot), partly_shared.client(foot), card)


CARD = base.Card(
    presentation=base.Presentation("LG-FedAvg"),
    paper="Liang et al., arXiv 2001.01523, Algorithm 1",
    summary="upper layers shared, lower layers for each client",
    exchange=base.Exchange(
        down="share of the upper layers",
        up="share of the upper layers",
        private="the lower layers",
        keeps="its lower layers",
    ),
    headline=("personal", "received"),
    joining=(
        "a newcomer's lower layers start from the initial ones; an unseen client trains them "
        "below the final shared layers"
    ),
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
)

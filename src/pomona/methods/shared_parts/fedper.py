"""FedPer: shared lower layers and a head for each client, trained in the same steps.

Arivazhagan, Aggarwal, Singh, Choudhary. Federated learning with personalization layers. arXiv
1912.00818, Algorithms 1 and 2.

    objective        min_{phi, h_1..h_n}  sum_i n_i / n F_i(h_i o phi)       phi base layers, h_i personalization layers
    client           (phi_i, h_i) <- SGD((phi, h_i); E epochs on D_i)        both parts together
    server           phi <- sum_i n_i / n phi_i

Only phi is sent, in both directions. ``personal, received`` is the received phi under the client's
h_i, ``personal, trained`` the same after local training. With all layers shared this is FedAvg,
with none Separate, to the bit; FedRep trains the same two parts one after the other, LG-FedAvg
shares the upper part.

Differs from the paper: all heads start from the run's initial model; in the paper, each at random.
The numbers are those of ``partialfed`` with ``rule = "lower-shared"``, which sends all layers.
"""

from functools import partial
from typing import Literal

from pomona.methods import base
from pomona.methods.shared_parts import partly_shared


class FedPer(base.MethodSettings):
    """FedPer's settings."""

    name: Literal["fedper"] = "fedper"
    shared: partly_shared.LowerLayers = None

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        card = partly_shared.by_name(CARD, self.shared)
        head = partial(partly_shared.head, shared=self.shared)
        return base.Method(partly_shared.server(head), partly_shared.client(head), card)


CARD = base.Card(
    presentation=base.Presentation("FedPer"),
    paper="Arivazhagan et al., arXiv 1912.00818, Algorithms 1 and 2",
    summary="lower layers shared, a head for each client, trained in the same steps",
    exchange=base.Exchange(
        down="share of the lower layers",
        up="share of the lower layers",
        private="the head",
        keeps="its head",
    ),
    headline=("personal", "received"),
    joining=(
        "a newcomer's head starts from the initial one; an unseen client trains it on the "
        "final shared layers"
    ),
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
)

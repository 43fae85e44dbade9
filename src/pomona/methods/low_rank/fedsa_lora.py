"""FedSA-LoRA: low-rank changes whose A is shared and whose B each client keeps.

Guo, Zeng, Wang, Fan, Wang, Qu. Selective aggregation for low-rank adaptation in federated learning.
ICLR 2025 (arXiv 2410.01463).

    network          W + s B A of each changed layer; B starts at 0
    client           (A_i, B_i, h_i) <- SGD((A, B_i, h_i); E epochs on D_i)  in the same steps; h_i the last layer
    server           A <- sum_i n_i / n A_i                                  B_i and h_i never leave the client

Everything but B and the last layer is shared: what else ``model.train.lora.beside`` names is in the
mean. ``personal, received`` is the received A with the client's B_i and h_i, ``personal, trained``
the same after local training. The numbers are those of FedPer with
``shared = ["*.lora_A.weight"]``, to the bit, if only the last layer is trained in addition to the
changes; without changes it is FedPer, with ``head = "shared"`` FedAvg, and a run reports it.

Differs from the paper: clients count by samples, and all start from one B and one last layer. As in
published code the classifier stays with its client. The paper's text was not at hand beyond its
abstract.
"""

from dataclasses import replace
from typing import Literal

from pomona.methods import base
from pomona.methods.shared_parts import partly_shared
from pomona.models.settings import is_lora_factor


class FedSALoRA(base.MethodSettings):
    """FedSA-LoRA's settings.

    Attributes:
        head: whether a client keeps its last layer in addition to B
    """

    name: Literal["fedsa-lora"] = "fedsa-lora"
    head: Literal["kept", "shared"] = "kept"

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        card = CARD
        if self.head == "shared":
            exchange = replace(CARD.exchange, private="B of the changed layers", keeps="its B")
            card = replace(CARD, exchange=exchange, needs=base.Needs(without_lora="FedAvg"))
        return base.Method(
            partly_shared.server(self.kept_columns), partly_shared.client(self.kept_columns), card
        )

    def kept_columns(self, row: partly_shared.RowLayout) -> partly_shared.Columns:
        """Return what stays with a client: B of changed layers, and the last layer but its A."""
        top = row.layers[-1].start if self.head == "kept" else row.layers[-1].stop
        return partly_shared.merge(
            slice(entry.start, entry.stop)
            for entry in row.parameters
            if is_lora_factor(entry.name, "B")
            or (entry.start >= top and not is_lora_factor(entry.name, "A"))
        )


CARD = base.Card(
    presentation=base.Presentation("FedSA-LoRA"),
    paper="Guo et al., ICLR 2025",
    summary="low-rank changes of which A is shared, and B and the last layer are each client's",
    exchange=base.Exchange(
        down="share of all but B and the head",
        up="share of all but B and the head",
        private="B of the changed layers, and the head",
        keeps="its B and its head",
    ),
    headline=("personal", "received"),
    joining=(
        "a newcomer's B and head start from the initial ones; an unseen client trains them with "
        "the final A"
    ),
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
    needs=base.Needs(without_lora="FedPer"),
)

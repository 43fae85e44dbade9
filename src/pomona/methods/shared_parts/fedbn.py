"""FedBN: everything is learned together except the normalisation layers, which each client keeps.

Li, Jiang, Zhang, Kamp, Dou. FedBN: federated learning on non-IID features via local batch
normalization. ICLR 2021 (arXiv 2102.07623), Algorithm 1.

    objective        min_{s, b_1..b_n}  sum_i n_i / n F_i(s, b_i)            b_i scale and shift of normalisation layers
    client           (s_i, b_i) <- SGD((s, b_i); E epochs on D_i)            both parts together
    server           s <- sum_i n_i / n s_i

Only s is sent, in both directions, and no statistics of BatchNorm: every model is evaluated with
those of the client's own training data. ``personal, received`` is the received s with the client's
b_i, ``personal, trained`` the same after local training. In a network without normalisation layers
this is FedAvg, to the bit, and a run reports it.

Differs from the paper: that is about BatchNorm; here the parameters of group, layer and instance
normalisation stay too. Statistics are estimated on the client's training data when a model is
evaluated, not tracked while it trains. Differs from published code: clients are averaged uniformly
there (its experiments give all the same number of samples), here by samples. The numbers are those
of ``partialfed`` with ``rule = "local-norm"``, which sends all layers.
"""

from typing import Literal

from pomona.methods import base
from pomona.methods.shared_parts import partly_shared


class FedBN(base.MethodSettings):
    """FedBN has no settings of its own."""

    name: Literal["fedbn"] = "fedbn"

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        return base.Method(partly_shared.server(norms), partly_shared.client(norms), CARD)


def norms(row: partly_shared.RowLayout) -> tuple[slice, ...]:
    """Return the slices that stay with a client."""
    return row.norms


CARD = base.Card(
    presentation=base.Presentation("FedBN"),
    paper="Li et al., ICLR 2021, Algorithm 1",
    summary="all layers shared but those of normalisation, which each client keeps",
    exchange=base.Exchange(
        down="share of all but the normalisation layers",
        up="share of all but the normalisation layers",
        private="parameters and statistics of the normalisation layers",
        keeps="the parameters of its normalisation layers",
    ),
    headline=("personal", "received"),
    joining=(
        "a newcomer's normalisation layers start from the initial ones; an unseen client trains "
        "them with the final shared layers"
    ),
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
    needs=base.Needs(without_norms="FedAvg"),
)

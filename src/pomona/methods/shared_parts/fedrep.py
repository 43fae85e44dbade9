"""FedRep: shared lower layers, and a head for each client, trained in turns.

Collins, Hassani, Mokhtari, Shakkottai. Exploiting shared representations for personalized federated
learning. ICML 2021 (arXiv 2102.07078), Algorithm 1.

    objective        min_phi  1/n sum_i n_i min_{h_i} F_i(h_i o phi)         (eq. 2, weighted by samples)
    client           h_i   <- SGD(h_i; head epochs), phi fixed as received
                     phi_i <- SGD(phi; E epochs), h_i fixed
    server           phi   <- sum_i n_i / n phi_i

Only phi is sent, in both directions. ``personal, received`` is the received phi under the head
fitted to it, and ``personal, trained`` the same after phi's epochs.

Differs from the paper: the mean over clients is weighted by samples, so that with all layers shared
this is FedAvg. Differs from published code: it evaluates the averaged phi under the previous head,
and fits the heads for ten epochs once, at the end; its runs take ten epochs of the head a round and
one of the shared layers, here one of each.
"""

from dataclasses import replace
from functools import partial
from typing import Literal

from pydantic import Field

from pomona.methods import base
from pomona.methods.shared_parts import fedper, partly_shared
from pomona.methods.shared_parts.partly_shared import (
    KeptState,
    drop_columns,
    gaps,
    insert_columns,
    select_columns,
)


class FedRep(base.MethodSettings):
    """FedRep's settings.

    Attributes:
        head_epochs: epochs of the head each round, before those of the shared layers
    """

    name: Literal["fedrep"] = "fedrep"
    shared: partly_shared.LowerLayers = None
    head_epochs: int = Field(1, ge=0, le=10**6)

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        head_only = base.Gradients(purpose="head", epochs=self.head_epochs, evaluates=True)
        cost = replace(CARD.privacy, gradients=(base.Gradients(), head_only))
        head = partial(partly_shared.head, shared=self.shared)
        return base.Method(
            partly_shared.server(head),
            client(head, self.head_epochs),
            replace(partly_shared.by_name(CARD, self.shared), privacy=cost),
        )


def client(head: partly_shared.KeepRule, epochs: int) -> base.Client:
    """Fit the head for some epochs, then train the shared layers under it."""

    def train(
        state: KeptState, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[KeptState]:
        columns = head(training)
        W = insert_columns(received["model"], state.kept, *columns)
        partly_shared.sgd(training, W, round_, columns, epochs, "head")
        training.observe("personal", W, "received")
        partly_shared.sgd(training, W, round_, gaps(columns, W.shape[1]))
        training.observe("personal", W, "trained")
        return KeptState(select_columns(W, *columns)), {"model": drop_columns(W, *columns)}, {}

    return replace(partly_shared.client(head), train=train)


CARD = replace(
    fedper.CARD,
    presentation=base.Presentation("FedRep"),
    paper="Collins et al., ICML 2021, Algorithm 1",
    summary="lower layers shared, a head for each client",
    joining=(
        "a newcomer's head starts from the initial one; an unseen client fits it to the final "
        "shared layers"
    ),
)

"""FedRep: the lower layers are learned together, every client keeps a head of its own.

Collins, Hassani, Mokhtari, Shakkottai. Exploiting shared representations for personalized federated learning. ICML
2021, Algorithm 1.

    objective        min_phi  1/n sum_i n_i min_{h_i} F_i(h_i o phi)         (eq. 2, weighted by samples)
    client           h_i   <- SGD(h_i; head epochs), phi fixed at what was received
                     phi_i <- SGD(phi; E epochs), h_i fixed
    server           phi   <- sum_i n_i / n phi_i

Only phi travels, in both directions. ``personal, received`` is the received phi under the head fitted to it, and
``personal, trained`` the same after phi's epochs.

Differs from the paper: the mean over clients is weighted by samples, so that with all layers shared this is FedAvg.
Differs from published code: it judges the averaged phi under the head of the round before, and fits the heads for ten
epochs once, at the end; its runs take ten epochs of the head a round and one of the shared layers, here one of each.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from pomona.core.errors import ConfigError
from pomona.methods import base
from pomona.objective.local_training import TRAINING

Layers = tuple[slice, ...]


class FedRep(base.MethodSettings):
    """FedRep's settings."""

    name: Literal["fedrep"] = "fedrep"
    shared: int | None = Field(None, ge=0, description="lower layers that are shared; all but the last if not set")
    head_epochs: int = Field(
        1, ge=0, le=10**6, description="epochs of the head each round, before those of the shared layers"
    )

    def method(self) -> base.Method:
        """The two halves."""
        head_only = base.Gradients(purpose="head", epochs=self.head_epochs, evaluates=True)
        server = base.averaging(lambda initial: without(initial(), head(self, initial.layers)))
        return base.Method(server, client(self), replace(CARD, gradients=(base.Gradients(), head_only)))


def head(settings: FedRep, layers: Layers) -> slice:
    """Slice of the head in a row. Raises ConfigError if fewer layers exist than are to be shared."""
    return upper(layers, 1 if settings.shared is None else len(layers) - settings.shared)


@dataclass(frozen=True)
class FedRepState:
    """A client's head (n, h)."""

    head: Tensor


def client(settings: FedRep) -> base.Client:
    """Fits its head, then trains the shared layers under it."""

    def start(initial: base.Initial, roster: base.Roster, ids: tuple[int, ...], seed: int) -> FedRepState:
        return FedRepState(initial()[head(settings, initial.layers)].repeat(len(ids), 1))

    def train(
        state: FedRepState, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[FedRepState]:
        part = head(settings, training.layers)
        W = insert(received["model"], state.head, part)
        sgd_on(part, training, W, round_, settings.head_epochs, "head")
        training.observe("personal", W, "received")
        sgd_on(slice(0, part.start), training, W, round_, round_.epochs, TRAINING)
        training.observe("personal", W, "trained")
        return FedRepState(W[:, part].clone()), {"model": without(W, part)}, {}

    return base.Client(start, train)


def sgd_on(part: slice, training: base.LocalTraining, W: Tensor, round_: base.Round, epochs: int, purpose: str) -> None:
    """Local SGD on a part of rows W (n, d), in place, the rest held fixed; nothing for an empty part."""
    if part.start == part.stop:
        return
    for batch, w, velocity in training.steps(epochs, W, base.moments_of(W[:, part], round_), purpose=purpose):
        _, g = training.gradient(w, batch)
        base.descend(w[:, part], g[:, part], velocity, round_)


def upper(layers: Layers, count: int) -> slice:
    """Slice of the ``count`` upper layers in a row. Raises ConfigError unless that many exist."""
    if not 0 <= count <= len(layers):
        raise ConfigError(
            f"method.shared or method.layers names more layers than the network has; set it to {len(layers)} or less"
        )
    return slice(layers[-count].start if count else layers[-1].stop, layers[-1].stop)


def without(W: Tensor, part: slice) -> Tensor:
    """Rows (..., d) less a part: (..., d - p)."""
    return torch.cat([W[..., : part.start], W[..., part.stop :]], dim=-1)


def insert(rest: Tensor, values: Tensor, part: slice) -> Tensor:
    """The inverse of ``without``: rows (..., d) of their rest (..., d - p) and the part's values (..., p)."""
    return torch.cat([rest[..., : part.start], values, rest[..., part.start :]], dim=-1)


CARD = base.Card(
    presentation=base.Presentation("FedRep", 13),
    paper="Collins et al., ICML 2021, Algorithm 1",
    summary="lower layers shared, a head for each client",
    down="share of the lower layers",
    up="share of the lower layers",
    private="the head",
    headline=("personal", "received"),
    keeps="its head",
    joining=("a newcomer's head starts from the initial one; unseen: fits its head to the standing shared layers"),
    gradients=(base.Gradients(),),
)

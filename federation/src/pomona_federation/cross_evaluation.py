"""Evaluation of models at silos where they were not trained: a run of one round without training.

    round 1          a silo with a model of the agreed study sends it; others send the initial one,
                     which everyone can compute and which is ignored
    closing visit    every silo gets all models and evaluates each on validation and test samples

Without such models, every silo evaluates the run's initial model, from given weights; then no model
is sent.

It is written as a method for the round loop, so that transport, admission, signatures and
checkpoints apply unchanged; but it learns nothing and is listed nowhere as a method.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pomona.core.bounds import ClientId
from pomona.methods import base

GIVEN_WEIGHTS = "given"


def name(client: int) -> str:
    """Name of the model from the silo at a place."""
    return f"model {client}"


class CrossEvaluation(base.MethodSettings):
    """The places whose models are evaluated; if empty, the run's initial model.

    Attributes:
        places: the silos that have a model, by their places
    """

    places: tuple[ClientId, ...] = ()

    def method(self) -> base.Method:
        """The two halves."""
        if not self.places:
            return base.Method(
                base.constant_server(),
                base.Client(base.model_state, evaluate_initial),
                replace(CARD, models=(GIVEN_WEIGHTS,)),
            )
        card = replace(
            CARD,
            exchange=replace(
                CARD.exchange,
                down=f"once, the models that the others sent, {len(self.places)} at most",
                up="once, its personal model of the study that is evaluated, if it has one",
            ),
            models=tuple(map(name, self.places)),
        )
        return base.Method(
            server(frozenset(self.places)),
            base.Client(base.model_state, evaluate_all(self.places)),
            card,
        )


NAME = f"{__name__}:{CrossEvaluation.__qualname__}"


def run(clients: tuple[int, ...]) -> dict[str, Any]:
    """The settings of a run that evaluates the models of the silos at these places."""
    return {"method": {"name": NAME, "places": clients}, "rounds": 1, "lr": 1.0}


@dataclass(frozen=True)
class SentModels:
    """The models (N, d), and whether each was sent (N,)."""

    models: Tensor
    sent: Tensor


def server(clients: frozenset[int]) -> base.Server:
    """A server half that collects the models of some places and sends them all to every silo."""

    def initialize(initial: base.Initial, roster: base.Roster, seed: int) -> SentModels:
        return SentModels(
            initial().expand(len(roster), -1), torch.zeros(len(roster), dtype=torch.bool)
        )

    def downlink(
        state: SentModels, ids: tuple[int, ...], roster: base.Roster, round_: base.Round
    ) -> base.Downlink:
        index = [[j if state.sent[j] else i for j in sorted(clients)] for i in ids]
        return {"models": base.Rows(state.models, torch.tensor(index))}

    def aggregate(
        state: SentModels,
        uplink: base.Uplink,
        ids: tuple[int, ...],
        roster: base.Roster,
        round_: base.Round,
    ) -> SentModels:
        senders = torch.tensor([i for i in ids if i in clients], dtype=torch.long)
        return SentModels(
            base.replace_rows(state.models, ids, uplink["model"]),
            state.sent.index_fill(0, senders, True),
        )

    return base.Server(
        initialize,
        downlink,
        aggregate,
        base.add_from_initial,
        lambda state: {"model": state.models[0]},
        relays={"models": "model"},
    )


def evaluate_all(clients: tuple[int, ...]) -> Any:
    """A client half that first sends its own model and finally evaluates all models."""

    def train(
        W: Tensor, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[Tensor]:
        if training.trains:
            return W, {"model": W}, {}
        models, ids = received["models"], training.ids
        for j in clients:
            is_self = (ids == j).unsqueeze(1)
            if bool((is_self | (models.index == j)).any(1).all()):
                training.observe(name(j), torch.where(is_self, W, models.bank[j]), "received")
        return W, {}, {}

    return train


def evaluate_initial(
    W: Tensor, received: base.Received, training: base.LocalTraining, round_: base.Round
) -> base.Trained[Tensor]:
    """A client half that evaluates the model it started from."""
    if not training.trains:
        training.observe(GIVEN_WEIGHTS, W, "received")
    return W, {}, {}


CARD = base.Card(
    presentation=base.Presentation("Cross-evaluation"),
    paper="none",
    summary="each model is evaluated at every silo; nothing is trained",
    exchange=base.Exchange(down="0", up="0", private="the samples", keeps="its model"),
    headline=("judged", "received"),
    joining="no silo joins: there is one round",
    privacy=base.PrivacyCost(gradients=(), not_private="it trains nothing; take run.privacy out"),
)

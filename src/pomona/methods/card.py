"""The card of a method, like a model card: all that the rest of the package knows about it.

Methods reach it through ``base``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pomona.core.bounds import Stage, Targets
from pomona.core.training_settings import Steps
from pomona.models.settings import LoraPart
from pomona.privacy.accounting import Gradients
from pomona.privacy.settings import RELEASES, Release
from pomona.record.presentation import Presentation

MODELS = frozenset({"model", "core", "head"})
"""Names of a message's entry with the client's model, or a part of it."""


def is_model(entry: str) -> bool:
    """Return whether an entry of a message has a model, also of one of several methods
    ("average_model").
    """
    return entry.rpartition("_")[2] in MODELS


@dataclass(frozen=True)
class Exchange:
    """What a client receives, sends and keeps: for pages, and for consent.

    Attributes:
        down, up: models per client and round.
        private: data that stays with the client.
        keeps: a client's history, i.e. its state from round to round.
        reveals: what the server learns about a client, as a phrase, from each entry of its uplink
            that is not called "model", "core" or "head".
        down_models: maximum models that a client receives in a round, as a function of the number
            of clients; None if ``down`` is a number, or a share of one model.
    """

    down: str
    up: str
    private: str
    keeps: str
    reveals: Mapping[str, str] = field(default_factory=dict)
    down_models: Callable[[int], int] | None = None

    def non_model_entries(self) -> frozenset[str]:
        """Return the entries of an uplink that are not models: counts, losses, changes."""
        return frozenset(name for name in self.reveals if not is_model(name))


@dataclass(frozen=True)
class PrivacyCost:
    """What differential privacy has to account for.

    Attributes:
        gradients: all gradients on training data, from which the cost of privacy is projected.
        releases: information sent besides the noised gradients, to be acknowledged in private
            training.
        not_private: the reason why it cannot train privately, with a remedy; None if it can.
        batchwise: whether its criteria on outputs use only the samples of the batch, so that these
            may be patches.
    """

    gradients: tuple[Gradients, ...]
    releases: tuple[Release, ...] = ()
    not_private: str | None = None
    batchwise: bool = False


@dataclass(frozen=True)
class Needs:
    """What a run must have for the method.

    Attributes:
        cohort: requirements of a round besides any cohort's training data.
        validation: whether every client needs validation samples.
        total_rounds: whether a round depends on the number of rounds, so that a run cannot be
            extended.
        steps: the local steps that the update rule supports.
        without_norms, without_lora: the equivalent method for a network without normalisation
            layers, or without low-rank changes, if any.
        lora: what is trained of low-rank changes.
        model: settings of section ``model`` that make the network the method's.
    """

    cohort: str = "any cohort"
    validation: bool = False
    total_rounds: bool = False
    steps: Steps = "any"
    without_norms: str | None = None
    without_lora: str | None = None
    lora: LoraPart = "both"
    model: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Card:
    """The method's card, like a model card: all that the rest of the package knows about it.

    Attributes:
        presentation: title, and the names for ``info``; stored in records.
        paper: the source, with its equations.
        summary: the method in one line.
        headline: the (model, when) that its paper reports.
        joining: the effect on the method's numbers of clients that join, leave, or never train.
        exchange, privacy, needs: its parts.
        models: names of models that its clients observe besides the headline one and personal,
            global and local.
        tasks: kinds of targets that it is for, e.g. ("classes",); empty for all.
    """

    presentation: Presentation
    paper: str
    summary: str
    headline: tuple[str, Stage]
    joining: str
    exchange: Exchange
    privacy: PrivacyCost
    needs: Needs = Needs()
    models: tuple[str, ...] = ()
    tasks: tuple[Targets, ...] = ()


def reads_outputs(card: Card, key: str, *additional: Gradients) -> Card:
    """Return the card of a method whose training has a criterion on outputs, which noise does not
    cover, unless its setting ``key`` is 0; ``additional`` are its other gradients.
    """
    release = replace(RELEASES["output-criterion"], remedy=f"set method.{key}=0")
    gradients = Gradients(noised=False), *additional
    return replace(card, privacy=replace(card.privacy, gradients=gradients, releases=(release,)))

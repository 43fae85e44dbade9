"""Disclosure by a silo: rounded scores, faults without paths or data, and a statement of all that
will leave it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from errno import EDQUOT, ENOSPC
from math import ceil
from typing import Any

from pomona.config import Config
from pomona.core.bounds import plain, without_paths
from pomona.core.errors import (
    ConfigError,
    DataError,
    OutOfMemoryError,
    PomonaError,
    PrivacyError,
    StorageError,
)
from pomona.federation.exchange import Reply
from pomona.federation.noise_in_sums import noise_adds_up
from pomona.methods.base import Card
from pomona.metrics.metric import Score
from pomona.privacy.settings import Privacy, Release, acknowledged
from pomona_federation.agreement import Federation, StudyAgreement
from pomona_federation.silo.settings import SiloFile
from pomona_federation.study import LEAST_SAMPLES, EvaluationStudy, SearchStudy, TrainingStudy
from pomona_federation.survey.settings import SurveySettings

# significant digits of a loss; a share has one more digit, so that ten thousand samples can be told
# apart
DIGITS = 3
# errors whose lines name cells, columns, classes, own settings, files
QUOTING = (ConfigError, DataError, OutOfMemoryError, PrivacyError, StorageError)


def loss(value: float | None) -> float | None:
    """A mean loss to three significant digits: enough to monitor a run, too few to reveal one
    sample's part in it.
    """
    return None if value is None else float(f"{value:.{DIGITS}g}")


def share(value: float | None) -> float | None:
    """An accuracy to four decimals."""
    return None if value is None else round(value, DIGITS + 1)


def measure(value: float | None) -> float | None:
    """A value of the headline metric: four decimals up to 1, like shares, and three digits of
    larger numbers.
    """
    return loss(value) if value is not None and abs(value) > 1 else share(value)


def rounded(score: Score) -> Score:
    """A score in its disclosed form."""
    low, high = map(measure, score.interval or (None, None))
    return replace(
        score,
        loss=loss(score.loss),
        accuracy=share(score.accuracy),
        value=measure(score.value),
        interval=None if low is None or high is None else (low, high),
    )


def disclosed(reply: Reply, shares: Callable[[str, int], bool]) -> dict[str, Any]:
    """The disclosed fields of an answer about a visit; ``shares(split, samples)``: whether such
    scores are shared, the training loss among them.

    At a model of the server's choice a mean loss says which share of the samples is of a class, or
    whether a record is among them.
    """
    scores_sent = tuple(rounded(s) for s in reply.scores if shares(s.split, s.samples))
    training_loss = loss(reply.loss) if shares("train", 0) else None
    return {"loss": training_loss, "scores": scores_sent, "fault": plain(reply.fault)}


def scrubbed(fault: BaseException) -> str:
    """A fault in its disclosed form: its kind and, for faults of messages or agreements, its line
    without paths.

    For data, settings and files only the kind is disclosed, since the text may describe a cell. A
    full disk is reported.
    """
    if any(
        isinstance(error, OSError) and error.errno in {ENOSPC, EDQUOT}
        for error in (fault, fault.__cause__)
    ):
        return f"{StorageError.label}: its disk is full"
    if not isinstance(fault, PomonaError) or isinstance(fault, QUOTING):
        error_kind = fault.label if isinstance(fault, PomonaError) else f"a {type(fault).__name__}"
        return f"{error_kind}; the silo's log has the rest"
    return f"{fault.label}: {without_paths(str(fault))}"


def departing(
    silo: SiloFile, terms: StudyAgreement, n_parameters: int, samples: int
) -> dict[str, Any]:
    """List of everything that will leave a silo with a model of ``n_parameters`` and this many
    training samples.
    """
    config = terms.config
    card = config.method.method().card
    model_bytes = n_parameters * (2 if terms.run_study.wire == "bf16" else 4)
    return {
        "to": (
            f"the server at {terms.federation.server}, and what the method passes on of it to "
            "the other silos"
        ),
        "every_round": (
            f"{card.exchange.up} of size {model_bytes} bytes each (d = the parameters of a model)"
        ),
        "bytes_per_model": model_bytes,
        "models_down": _received(card, terms.federation.places, model_bytes),
        "models_up": card.exchange.up,
        "sum": _summed(config),
        "stays": card.exchange.private,
        "tells": "; ".join(card.exchange.reveals.values()) or None,
        "trials": f"{len(terms.trials)} settings are tried, each for all rounds"
        if terms.trials
        else None,
        "loss": f"the mean training loss, {DIGITS} digits, every round"
        if _sends_loss(terms)
        else None,
        "uncovered": _past_noise(config.privacy, card.privacy.releases),
        "faults": "the kind of an error, and one line without paths or data, when it happens",
        "presence": "that it is connected, its address, how long it takes",
        "samples": f"the number of training samples, {samples}, once",
        "scores": _scores(terms),
        "most": None
        if silo.max_upload_mb is None
        else f"{silo.max_upload_mb:g} MB a round, else the round is refused",
    }


def _sends_loss(terms: StudyAgreement) -> bool:
    """Whether a silo sends its training loss."""
    privacy = terms.config.privacy
    hidden = privacy and "training-loss" not in privacy.acknowledge
    return not hidden and terms.run_study.shares("train", 0)


def departing_in_survey(
    federation: Federation, survey: SurveySettings, largest_group: int
) -> dict[str, Any]:
    """List of everything that leaves a silo in a survey, by the keys of
    ``outgoing_filter.texts``.

    ``largest_group``: the most training rows of one group.
    """
    noise = survey.noise
    columns = ", ".join(survey.columns) or (
        "those with agreed cells" if noise else "all that every silo has"
    )
    private = ""
    if noise:
        private = f", counted with noise of epsilon {noise.epsilon:g} for all columns together"
    return {
        "to": f"the server at {federation.server}, whose operator sees each silo's answers",
        "columns": f"names and kinds of columns; asked about: {columns}",
        "cells": f"counts of groups of {survey.least} rows or more, {survey.cells} groups a column "
        f"at most, and each group's middle value{private}; of texts, words in as many; once, and "
        "the same in every later survey",
        "faults": "the kind of an error, and one line without paths or data, when it happens",
        "presence": "that it is connected, its address, how long it takes",
        "groups": _rows_of_groups(survey, largest_group),
        "stays": f"every row, every cell of fewer than {survey.least} rows",
    }


def _rows_of_groups(survey: SurveySettings, largest: int) -> str | None:
    """How little a survey protects a group of up to ``largest`` rows, which it counts singly."""
    if largest == 1:
        return None
    noise = f"; its epsilon is {largest * survey.noise.epsilon:.3g}" if survey.noise else ""
    return (
        f"one (data.group_column) has up to {largest} training rows, which count singly: a cell of "
        f"{survey.least} may be of {ceil(survey.least / largest)} alone{noise}"
    )


def _received(card: Card, n_places: int, model_bytes: int) -> str:
    """The models that a silo receives per round, with their number and size where these depend on
    the federation.
    """
    if card.exchange.down_models is None:
        return card.exchange.down
    n_models = card.exchange.down_models(n_places)
    return f"{card.exchange.down}: here at most {n_models}, {n_models * model_bytes / 1e6:.3g} MB"


def _past_noise(settings: Privacy | None, releases: Sequence[Release]) -> str | None:
    """Releases not covered by noise that the study has acknowledged for this silo."""
    past_noise = acknowledged(settings, releases) if settings else ()
    text = "; ".join(
        f"{r.name}: {r.content}{', so that epsilon has no bound' if r.exact else ''}"
        for r in past_noise
    )
    return text or None


def _summed(config: Config) -> str | None:
    """What secure aggregation makes of the models that a silo sends."""
    aggregation = config.secure_aggregation
    if aggregation is None:
        return None
    clipping = "" if noise_adds_up(config) else f" clipped to {aggregation.max_norm:g},"
    return (
        f"the change of the model,{clipping} leaves masked, only in a sum with those of "
        f"{aggregation.minimum - 1} other silos or more; loss and scores are not summed"
    )


def _scores(terms: StudyAgreement) -> str:
    """The scores that leave the silo."""
    content = "accuracy (4 decimals), loss (3 digits) and number of samples of the own"
    study = terms.study
    if isinstance(study, SearchStudy):
        return f"{content} validation data, however few, in each trial; none of test data"
    if isinstance(study, EvaluationStudy):
        return (
            f"of each model {content} validation and test data, with an interval; none of fewer "
            f"than {LEAST_SAMPLES}"
        )
    shared = isinstance(study, TrainingStudy) and study.share_scores
    return f"{content} validation and test data, however few" if shared else "none"


def texts(leaves: dict[str, Any]) -> Iterator[str]:
    """The lines that describe what would leave."""
    labels = {
        "to": "to",
        "columns": "of columns",
        "cells": "of their values",
        "models_down": "receives, models a round",
        "models_up": "sends, models a round",
        "sum": "secure aggregation",
        "bytes_per_model": "bytes of a model",
        "traffic": "models at most",
        "tells": "tells of itself",
        "trials": "trials",
        "loss": "training loss",
        "uncovered": "past the noise",
        "faults": "errors",
        "presence": "the network shows",
        "samples": "also sends",
        "scores": "scores",
        "most": "never more than",
        "stays": "stays in the silo",
        "epsilon": "privacy loss epsilon",
        "alone": "by its own noise alone",
        "groups": "of groups",
        "total": "of all on this data",
    }
    for key, label in labels.items():
        if leaves.get(key) is not None:
            yield f"{label:<24} {leaves[key]}"

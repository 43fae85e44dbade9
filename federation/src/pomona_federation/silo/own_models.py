"""A silo's own personal models: the one that an evaluation uses, and the card beside the one of
this study.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pomona.core.errors import ProtocolError
from pomona.federation.client import ClientRuntime
from pomona.federation.exchange import Reply
from pomona.models.parameter_space import ParameterSpace
from pomona.personal import model_card
from pomona.personal.model_card import Sources
from pomona.record import model_file
from pomona.scenario import Scenario
from pomona_federation.agreement import Federation, StudyAgreement
from pomona_federation.json_store import read_json
from pomona_federation.messages.message_bodies import Task
from pomona_federation.silo import history
from pomona_federation.silo.known_studies import KnownStudies
from pomona_federation.silo.row_provenance import names
from pomona_federation.silo.settings import SiloFile
from pomona_federation.silo.silo_in_study import PINNED, PinnedAgreement
from pomona_federation.study import EvaluateTerms


def judged_model(
    kit: Path, agreed: StudyAgreement, own: Scenario, place: int, start: Tensor | None
) -> Tensor | None:
    """The model (d,) that a silo starts a study with: in an evaluation the evaluated one, if it has
    one.

    Args:
        kit: the silo's.
        agreed: the terms of the evaluation.
        own: the silo's data under these terms, as a scenario of one client.
        place: the silo's.
        start: the starting model otherwise; None for the run's initial model.

    Raises:
        ProtocolError: the model is missing, is another network's, or the silo's data have changed
            since.
        StorageError: its file is damaged.
    """
    terms, file = agreed.evaluate, SiloFile.load(kit / "silo.toml")
    if terms is None or file.name not in terms.models:
        return start
    if terms.models[file.name] != place:
        raise ProtocolError(
            f"the study expects this silo's model at place {terms.models[file.name]}, it has "
            f"{place}"
        )
    source, folder = source_of(kit, terms)
    path = folder / "models" / "personal.safetensors"
    if not path.exists():
        raise ProtocolError(f"the study evaluates models of {terms.of}, but there is no {path}")
    _require_same(source, agreed)
    pinned = read_json(PinnedAgreement, folder / PINNED)
    known = pinned.rows if pinned and source.study.view == agreed.study.view else None
    if known not in {None, own.partition.sha256}:
        raise ProtocolError(
            "this silo's data, or its division, is not what its model was trained on, which might "
            "be evaluated on samples that it has seen; put the data back, or have the study name a "
            "view of other data"
        )
    return ParameterSpace(own.module()).row(model_file.tensors(path))


def source_of(kit: Path, terms: EvaluateTerms) -> tuple[StudyAgreement, Path]:
    """The terms under which evaluated models were trained, and the folder of this silo's files.

    Raises ProtocolError for an unknown study, and for one of another name than people were told.
    """
    federation, studies, agreement = (
        Federation.read(kit / "federation.toml"),
        KnownStudies(kit),
        terms.agreement or "",
    )
    if known := studies.find(agreement):
        source, folder = studies.agreed(federation, known), studies.home(known)
    elif federation.own and federation.agreement == agreement:
        source, folder = federation.own, kit / "state"
    else:
        raise ProtocolError(
            f"this silo knows no study with the hash {agreement[:16]}, whose models are to be "
            "evaluated"
        )
    if (name := source.study.name) != terms.of:
        raise ProtocolError(
            f"the study evaluates models of {terms.of}, but the hash {agreement[:16]} is that of "
            f"{name}; decline it, and ask the server's operator"
        )
    return source, folder


def _require_same(source: StudyAgreement, agreed: StudyAgreement) -> None:
    """Require the same network and preprocessing, without which a model's parameters mean
    nothing.
    """
    trained, judged = source.config, agreed.config
    pairs = {
        "section task": (source.task, agreed.task),
        "run.model": (trained.model, judged.model),
        "run.seed": (trained.seed, judged.seed),
    }
    for key, (one, other) in pairs.items():
        if one != other:
            raise ProtocolError(
                f"{key} is not that of the study whose models are evaluated; give the same"
            )


def write(
    path: Path,
    scenario: Scenario,
    agreed: StudyAgreement,
    task: Task,
    clients: ClientRuntime,
    reply: Reply,
) -> None:
    """Write a card beside the model of a visit; none if a training visit did not evaluate it.

    Intervals take seconds, so they come only with the last round and the closing visit.

    Args:
        path: of the model.
        scenario: the silo's own data at its place.
        agreed: the agreement.
        task: of the visit.
        clients: its runtime.
        reply: its outcome; the visit is already in the silo's history.
    """
    config, place = scenario.config, task.place
    _, when = config.method.method().card.headline
    if reply.fault or (task.trains and when not in task.watched):
        return
    card = model_card.card_of(
        scenario,
        place,
        path,
        _metrics(scenario, clients, reply, task),
        _round_of_model(task, when),
        task.number - (not task.trains),
        _sources(path.parent.parent, scenario, agreed, task),
        clients.epsilon(place) if config.privacy else None,
        {"the agreement of the federation": agreed.agreement},
    )
    model_card.write(card, path)


def _round_of_model(task: Task, when: str) -> int:
    """The round after which the headline model of a visit stood; without training, a trained one is
    the last used.
    """
    if when == "received":
        return task.number - 1
    return task.number if task.trains else task.settled


def _metrics(
    scenario: Scenario, clients: ClientRuntime, reply: Reply, task: Task
) -> Mapping[str, Any]:
    """The model's scores on the silo's own test samples; with intervals in the last round and after
    it.
    """
    judged = (*scenario.config.method.method().card.headline, "test")
    if task.trains and task.number < scenario.config.rounds:
        found = next(
            (s for s in reply.scores if (s.model, s.when, s.split) == judged and s.samples), None
        )
        metric = scenario.choice.metric.name
        return (
            {"loss": found.loss, "accuracy": found.accuracy, metric: found.value} if found else {}
        )
    each = clients.metrics(task.place, judged[:2])
    return next((found for found in each if found["split"] == "test"), {})


def _sources(state: Path, scenario: Scenario, agreed: StudyAgreement, task: Task) -> Sources:
    seen, _ = history.read(state)
    shown = scenario.config.method.method().card.presentation
    return Sources(
        received=any(visit.bytes_down for visit in seen),
        members=[name for _, name in sorted(names(agreed, task).items())],
        weights=model_card.relationships(history.last_info(seen), scenario.names, shown),
    )

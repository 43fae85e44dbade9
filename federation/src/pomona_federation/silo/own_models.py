"""A silo's own personal models: the one that an evaluation uses, and the card next to the one of
this study.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pomona.core.errors import ProtocolError
from pomona.federation import client_queries
from pomona.federation.client import ClientRuntime
from pomona.federation.exchange import Reply
from pomona.models.parameter_space import ParameterSpace
from pomona.personal import model_card
from pomona.personal.model_card import Sources
from pomona.record import model_file
from pomona.scenario import Scenario
from pomona_federation.agreement import Federation, StudyAgreement
from pomona_federation.messages.message_bodies import Task
from pomona_federation.silo import history
from pomona_federation.silo.row_provenance import names
from pomona_federation.silo.settings import SiloFile
from pomona_federation.silo.silo_in_study import same_rows
from pomona_federation.silo.study_decisions import StudyDecisions
from pomona_federation.study_sections import EvaluateTerms


def starting_model(
    kit: Path, terms: StudyAgreement, local: Scenario, member: int, start: Tensor | None
) -> Tensor | None:
    """The model (d,) that a silo starts a study with: in an evaluation the evaluated one, if it has
    one.

    Args:
        kit: the silo's.
        terms: the terms of the evaluation.
        local: the silo's data under these terms, as a scenario of one client.
        member: the silo's.
        start: the starting model otherwise; None for the run's initial model.

    Raises:
        ProtocolError: the model is missing, is another network's, or the silo's data have changed
            since.
        StorageError: its file is damaged.
    """
    evaluate, file = terms.evaluate, SiloFile.load(kit / "silo.toml")
    if evaluate is None or file.name not in evaluate.models:
        return start
    if evaluate.models[file.name] != member:
        raise ProtocolError(
            f"the study expects this silo's model at place {evaluate.models[file.name]}, but it "
            f"has {member}"
        )
    source, folder = source_of(kit, evaluate)
    path = folder / "models" / "personal.safetensors"
    if not path.exists():
        raise ProtocolError(f"the study evaluates models of {evaluate.of}, but there is no {path}")
    _require_same(source, terms)
    if source.study.view == terms.study.view and not same_rows(folder, local):
        raise ProtocolError(
            "this silo's data or its split differs from what its model was trained on, so the "
            "model might be evaluated on its training samples; put the data back, or have the "
            "study name a view of other data"
        )
    return ParameterSpace(local.module()).row(model_file.tensors(path))


def source_of(kit: Path, evaluate: EvaluateTerms) -> tuple[StudyAgreement, Path]:
    """The terms under which evaluated models were trained, and the folder of this silo's files.

    Raises ProtocolError for an unknown study, and for one of another name than people were told.
    """
    federation = Federation.read(kit / "federation.toml")
    studies = StudyDecisions(kit)
    agreement = evaluate.agreement or ""
    if decision := studies.find(agreement):
        source, folder = studies.terms(federation, decision), studies.folder(decision)
    elif federation.kit_terms and federation.agreement == agreement:
        source, folder = federation.kit_terms, kit / "state"
    else:
        raise ProtocolError(f"this silo has no study with the hash {agreement[:16]} to evaluate")
    if (name := source.study.name) != evaluate.of:
        raise ProtocolError(
            f"the study evaluates models of {evaluate.of}, but the hash {agreement[:16]} is that "
            f"of {name}; decline it, and ask the server's operator"
        )
    return source, folder


def _require_same(source: StudyAgreement, terms: StudyAgreement) -> None:
    """Require the same network and preprocessing, without which a model's parameters mean
    nothing.
    """
    trained, evaluated = source.config, terms.config
    pairs = {
        "section task": (source.task, terms.task),
        "run.model": (trained.model, evaluated.model),
        "run.seed": (trained.seed, evaluated.seed),
    }
    for key, (trained_value, evaluated_value) in pairs.items():
        if trained_value != evaluated_value:
            raise ProtocolError(
                f"{key} differs from the study that trained the models; set the same"
            )


def write(
    path: Path,
    scenario: Scenario,
    terms: StudyAgreement,
    task: Task,
    clients: ClientRuntime,
    reply: Reply,
) -> None:
    """Write a card next to the model of a visit; none if a training visit did not evaluate it.

    Intervals take seconds, so they come only with the last round and the closing visit.

    Args:
        path: of the model.
        scenario: the silo's own data at its place.
        terms: the agreement.
        task: of the visit.
        clients: its runtime.
        reply: its outcome; the visit is already in the silo's history.
    """
    config, member = scenario.config, task.place
    _, stage = config.method.method().card.headline
    if reply.fault or (task.trains and stage not in task.watched):
        return
    card = model_card.card_of(
        scenario,
        member,
        path,
        _metrics(scenario, clients, reply, task),
        _round_of_model(task, stage),
        task.number - (not task.trains),
        _sources(path.parent.parent, scenario, terms, task),
        client_queries.epsilon(clients, member) if config.privacy else None,
        {"the agreement of the federation": terms.agreement},
    )
    model_card.write(card, path)


def _round_of_model(task: Task, stage: str) -> int:
    """The round after which the headline model of a visit stood; without training, a trained one is
    the last used.
    """
    if stage == "received":
        return task.number - 1
    return task.number if task.trains else task.settled


def _metrics(
    scenario: Scenario, clients: ClientRuntime, reply: Reply, task: Task
) -> Mapping[str, Any]:
    """The model's scores on the silo's own test samples; with intervals in the last round and after
    it.
    """
    headline = (*scenario.config.method.method().card.headline, "test")
    if task.trains and task.number < scenario.config.rounds:
        score = next(
            (s for s in reply.scores if (s.model, s.when, s.split) == headline and s.samples), None
        )
        metric = scenario.choice.metric.name
        return (
            {"loss": score.loss, "accuracy": score.accuracy, metric: score.value} if score else {}
        )
    splits = client_queries.metrics(clients, task.place, headline[:2])
    return next((score for score in splits if score["split"] == "test"), {})


def _sources(state: Path, scenario: Scenario, terms: StudyAgreement, task: Task) -> Sources:
    visits, _ = history.read(state)
    presentation = scenario.config.method.method().card.presentation
    return Sources(
        received=any(visit.bytes_down for visit in visits),
        members=[name for _, name in sorted(names(terms, task).items())],
        weights=model_card.relationships(history.last_info(visits), scenario.names, presentation),
    )

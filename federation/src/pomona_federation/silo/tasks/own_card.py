"""The card beside a silo's personal model. Both stay at the silo."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pomona.core.errors import DivergedError
from pomona.federation.client_runtime import ClientRuntime
from pomona.federation.exchange import Reply
from pomona.personal import model_card
from pomona.personal.model_card import Sources
from pomona.scenario import Scenario
from pomona_federation.agreement import Federation
from pomona_federation.messages.message_bodies import Task
from pomona_federation.silo import history
from pomona_federation.silo.tasks.row_provenance import names


def write(
    path: Path, scenario: Scenario, federation: Federation, task: Task, clients: ClientRuntime, reply: Reply
) -> None:
    """Write a card beside the model of a visit; none if a training visit did not evaluate it.

    Intervals take seconds, so they come only with the last round and the closing visit.

    Args:
        path: of the model.
        scenario: the silo's own data at its place.
        federation: the agreement.
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
        task.number - (when == "received" or not task.trains),
        task.number - (not task.trains),
        _sources(path.parent.parent, scenario, federation, task),
        clients.spent(place) if config.privacy else None,
        {"the agreement of the federation": federation.agreement},
    )
    model_card.write(card, path)


def _metrics(scenario: Scenario, clients: ClientRuntime, reply: Reply, task: Task) -> Mapping[str, Any]:
    """The model's scores on the silo's own test samples; with intervals in the last round and after it."""
    judged = (*scenario.config.method.method().card.headline, "test")
    if task.trains and task.number < scenario.config.rounds:
        found = next((s for s in reply.scores if (s.model, s.when, s.split) == judged and s.samples), None)
        metric = scenario.choice.metric.name
        return {"loss": found.loss, "accuracy": found.accuracy, metric: found.value} if found else {}
    try:
        each = clients.metrics(task.place, judged[:2])
    except DivergedError:  # the card has no figures; a fault would be visible to others
        return {}
    return next((found for found in each if found["split"] == "test"), {})


def _sources(state: Path, scenario: Scenario, federation: Federation, task: Task) -> Sources:
    seen, _ = history.read(state)
    info = next((visit.info for visit in reversed(seen) if visit.info), {})
    lists = {name: value if isinstance(value, list) else [value] for name, value in info.items()}
    shown = scenario.config.method.method().card.presentation
    return Sources(
        received=any(visit.bytes_down for visit in seen),
        members=[name for _, name in sorted(names(federation, task).items())],
        weights=model_card.relationships(lists, scenario.names, shown),
    )

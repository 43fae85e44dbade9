"""A task done: the visit of the silo's data, and what the silo keeps of it."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor

from pomona import personal
from pomona.federation import client_queries
from pomona.federation.client import ClientRuntime
from pomona.federation.exchange import ClientRequest, Reply
from pomona.federation.recorded_models import ModelChoice
from pomona.federation.round_plan import round_of
from pomona.federation.scoring import IntervalOf, Scoring, no_interval
from pomona.methods.base import Downlink
from pomona.objective.dataset import clustered, groups_of
from pomona.objective.private import PrivateObjective
from pomona.scenario import Scenario
from pomona.tasks.scores import confidence
from pomona_federation.messages.message_bodies import Task
from pomona_federation.silo import history, own_models
from pomona_federation.silo.noise_stores import charge, open_own
from pomona_federation.silo.own_models import starting_model
from pomona_federation.silo.privacy_budget import PrivacyBudget
from pomona_federation.silo.round_store import RoundStore
from pomona_federation.silo.row_provenance import names
from pomona_federation.silo.silo_in_study import Silo
from pomona_federation.silo.silo_scenario import at_member, private_objective, roster_of


@dataclass(frozen=True)
class CheckedTask:
    """A task that this silo agrees to do, with what it includes; nothing after it is checked again.

    Attributes:
        base: the round of this silo that it continues from.
        rows: the bytes of its rows, by hash.
        downlink: the rows as tensors.
        start: the model (d,) that a newcomer starts from; None for the run's initial one.
    """

    task: Task
    base: int
    rows: dict[str, bytes]
    downlink: Downlink
    start: Tensor | None


@dataclass(frozen=True)
class VisitResult:
    """What a visit leaves.

    Attributes:
        reply: as the server gets it.
        fields: of the answer.
        uplink: the bytes to keep with the round: the uplink or, for a sum, the model's change.
        secret: the private key for the sum; "" without one.
        norm: of the change before it was clipped, with secure aggregation.
        bytes_down: size of the rows that came with the task.
    """

    reply: Reply
    fields: dict[str, Any]
    uplink: bytes
    secret: str
    norm: float | None
    bytes_down: int


def scenario_of(silo: Silo, task: Task) -> Scenario:
    """The silo's own data at its place among all."""
    return at_member(silo.local, silo.terms, task.place, names(silo.terms, task))


def visit(silo: Silo, rounds: RoundStore, checked: CheckedTask) -> tuple[ClientRuntime, Reply]:
    """Continue from the state after the task's base; the silo keeps everything that it evaluates.

    Args:
        silo: with its data.
        rounds: its rounds in the study; the visit's is not added.
        checked: the task.

    Returns:
        The runtime with the state after the task, and what the server gets.
    """
    task, base = checked.task, checked.base
    scenario = scenario_of(silo, task)
    config, member, roster = scenario.config, task.place, roster_of(task, scenario.config)
    stores = silo.state / "private" / "dp"
    objective = (
        private_objective(scenario, stores, member, silo.file, task.run)
        if config.privacy
        else scenario.objective()
    )
    metric = scenario.choice.metric
    choice = ModelChoice(config.keep, silo.method.card.headline, metric)
    arguments = (silo.method.client, objective, scenario.initial, ((member,),), config.seed)
    scoring = Scoring(metric, config.threshold_target, _interval(silo))
    clients = ClientRuntime(*arguments, scoring=scoring, choice=choice)
    if isinstance(objective, PrivateObjective):
        rounds.agree(clients, member)
        open_own(stores, objective, member)
        charge(stores, objective, scenario, member, silo.reserve_in_all)
        store = objective.key_store(member)
        PrivacyBudget(silo.folder).require_ledger(task.agreement, store.epsilon())
        store.within(silo.reserved)
    if base:
        rounds.restore(base, clients, member, roster)
    else:
        joining_roster = replace(roster, sizes=task.joined or task.sizes)
        start = starting_model(silo.folder, silo.terms, silo.local, member, checked.start)
        clients.add_clients((member,), joining_roster, start)
    rounds.restore_own_best(task, base, clients)
    round_, watched = round_of(config, task.number), frozenset(task.watched)
    request = ClientRequest(round_, roster, (member,), task.trains, watched, keep_models=True)
    (reply,) = clients.visit(request, checked.downlink)
    clients.commit((member,))
    return clients, reply


def _interval(silo: Silo) -> IntervalOf:
    """Confidence intervals of scores: in an evaluation, which runs once, not in each
    round.
    """
    local = silo.local
    groups = groups_of(local.dataset)
    if not silo.terms.evaluate or ("test", 0) in clustered(groups, local.partition):
        return no_interval
    metric, task, seed = local.choice.metric.name, local.task, local.config.seed
    return lambda answers, client: confidence(metric, answers, task, seed=seed, client=client)


def note(silo: Silo, checked: CheckedTask, clients: ClientRuntime, result: VisitResult) -> None:
    """Record what only this silo may know, and save its headline model. Raises StorageError."""
    task, base, reply = checked.task, checked.base, result.reply
    line = {
        "round": task.number,
        "trained": task.trains,
        "settled": base,
        "task": task.question,
        "names": {str(member): name for member, name in names(silo.terms, task).items()},
        "loss": reply.loss,
        "scores": [asdict(s) for s in reply.scores],
        "diverged": sorted({f"{s.model} on {s.split}" for s in reply.scores if s.broken}),
        "info": {k: v.tolist() for k, v in reply.info.items()},
        "seconds": reply.seconds,
        "bytes_down": result.bytes_down,
        "bytes_up": len(result.uplink),
        "fault": reply.fault,
        **({} if result.norm is None else {"norm": result.norm}),
    }
    history.append(silo.state, line)
    headline = silo.method.card.headline
    models = client_queries.models(clients, task.place)
    if headline in models:
        path = silo.state / "models" / "personal.safetensors"
        personal.save_frozen(path.parent, scenario_of(silo, task).network.frozen)
        personal.save(path, models[headline], scenario_of(silo, task), task.place, headline)
        visit = task.model_copy(update={"settled": base})
        own_models.write(path, scenario_of(silo, task), silo.terms, visit, clients, reply)

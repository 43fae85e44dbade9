"""The clients of a simulation: where their states are stored, and the transport that reaches them:
in this process, in worker processes or on a cluster.
"""

from dataclasses import replace
from functools import partial
from multiprocessing import get_all_start_methods
from pathlib import Path
from typing import Any

from pomona.config import Config
from pomona.core.notes import Note
from pomona.core.round import Roster
from pomona.federation import ray_cluster
from pomona.federation.callbacks import RunNotes
from pomona.federation.client import ClientRuntime
from pomona.federation.client_states import PlaceState, choose, require_training, unchanged
from pomona.federation.exchange import Groups
from pomona.federation.liars import Lying
from pomona.federation.recorded_models import ModelChoice
from pomona.federation.scoring import Scoring
from pomona.federation.stale_models import StaleModels, matrix_bytes
from pomona.federation.transport import Inline, Transport, call_groups
from pomona.federation.worker_process import Processes
from pomona.federation.workers import Workers
from pomona.lifecycle import shared_versions
from pomona.scenario import Scenario
from pomona.storage.row_bank import FileBank


def state_storage(scenario: Scenario, folder: Path | None, notes: RunNotes) -> PlaceState:
    """Return the storage of clients' states, reporting disk use.

    Raises ConfigError if they do not fit anywhere.
    """
    config = scenario.config
    workers, nodes = worker_count(config), ray_cluster.memory() if config.cluster else []
    require_training(config, len(scenario.initial()), workers, nodes)
    client = config.method.method().client
    roster = Roster((1,) * config.clients)
    first = client.start(scenario.initial, roster, (0,), config.seed)
    stale_bytes = matrix_bytes(client.keeps, scenario.initial, roster)
    place_state, lines = choose(config, first, stale_bytes, workers, folder, nodes)
    notes.extend(Note(line, "settings") for line in lines)
    return place_state


def worker_count(config: Config) -> int:
    """Return how many workers train the clients, by the cores of this machine or the connected
    cluster.
    """
    if not config.cluster:
        return config.processes
    return min(config.workers or config.clients, config.clients, ray_cluster.cores())


def attacked(scenario: Scenario, transport: Transport, roster: Roster) -> tuple[Transport, Roster]:
    """Return the transport and the roster that the server sees: with an attack, malicious clients
    change uploads and sizes.
    """
    config, attack = scenario.config, scenario.config.attack
    if attack is None:
        return transport, roster
    claimed = replace(roster, sizes=attack.claimed(roster.sizes))
    return Lying(transport, attack, scenario.initial, config.seed), claimed


def _runtime(
    scenario: Scenario,
    key_stores: Path,
    place_state: PlaceState,
    copies: StaleModels | None,
    groups: Groups,
) -> ClientRuntime:
    """Return the runtime of groups of clients; ``copies``: as ``ClientRuntime``."""
    config = scenario.config
    objective = scenario.private(key_stores) if config.privacy else scenario.objective()
    method, metric = config.method.method(), scenario.choice.metric
    scoring = Scoring(metric, config.threshold_target)
    choice = ModelChoice(config.keep, method.card.headline, metric)
    initial, seed = scenario.initial, config.seed
    return ClientRuntime(
        method.client, objective, initial, groups, seed, place_state, scoring, choice, copies
    )


def _worker(
    scenario: Scenario, key_stores: Path, place_state: PlaceState, groups: Groups
) -> ClientRuntime:
    """Return the runtime of a worker, whose clients' copies are kept for it."""
    return _runtime(
        scenario, key_stores, place_state, StaleModels({}, scenario.initial, {}), groups
    )


def local_transport(
    scenario: Scenario, roster: Roster, key_stores: Path, place_state: PlaceState
) -> Inline | Workers:
    """Return a transport with all clients in this process, or in worker processes if there are
    several on a CPU.
    """
    config, client = scenario.config, scenario.config.method.method().client
    make_runtime = partial(_runtime, scenario, key_stores, place_state)
    workers, in_memory = config.processes, place_state is unchanged
    row, draws = scenario.initial().nbytes, scenario.network.draws
    groups = call_groups(config, roster.sizes, workers, row, draws)
    single_process = workers == 1 or config.device != "cpu" or "fork" not in get_all_start_methods()
    if single_process and in_memory:
        return Inline(partial(make_runtime, None), groups)
    bank = FileBank.in_memory if in_memory else FileBank.on_disk
    copies = StaleModels.banked(client.keeps, scenario.initial, roster, bank)
    if single_process:
        return Inline(partial(make_runtime, copies), groups)
    _ = scenario.resident  # created here once, and shared by all forked processes
    crew = Processes(partial(_worker, scenario, key_stores, place_state))
    return Workers(crew, groups, roster.sizes, workers, copies)


def cluster_transport(
    cores: Any, scenario: Scenario, roster: Roster, key_stores: Path, place_state: PlaceState
) -> Workers:
    """Return a transport with the clients on reserved cores of the connected Ray cluster."""
    config = scenario.config
    client = scenario.config.method.method().client
    workers = cores.bundle_count
    row, memory = scenario.initial().nbytes, sum(ray_cluster.memory())
    groups = call_groups(config, roster.sizes, workers, row, scenario.network.draws, memory)
    banks = {name: ray_cluster.StoreBank() for name in client.keeps}
    copies = StaleModels(client.keeps, scenario.initial, banks)
    make_worker = partial(_worker, scenario, key_stores, place_state)
    crew = ray_cluster.Actors(make_worker, shared_versions, cores)
    return Workers(crew, groups, roster.sizes, workers, copies)

"""Running a configuration from start to record: the simulator behind ``pomona run`` and
``pomona.run``.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from pomona import lifecycle
from pomona.auto_settings import require_engine, with_engine, with_learning_rate
from pomona.config import Config
from pomona.core.errors import ConfigError, WorkerError, explaining_memory_errors
from pomona.core.files import probe, publish, writing
from pomona.core.membership import PlannedMembership
from pomona.core.notes import CallerWarnings, Note
from pomona.core.round import Roster
from pomona.federation import ray_cluster
from pomona.federation.callbacks import CallbackList, NullCallback, RunNotes, require_hooks
from pomona.federation.checkpointing import Checkpointing, identity
from pomona.federation.client_states import PlaceState
from pomona.federation.loop import Loop
from pomona.federation.noise_in_sums import against
from pomona.federation.progress import in_notebook
from pomona.federation.run_checks import caution, cautions, require_possible
from pomona.federation.trackers import tracking
from pomona.final_record import collect_totals
from pomona.personal.collect import (
    ClientModels,
    collect_models,
    newcomers_after_best,
    save_cards,
    save_mask_examples,
    save_models,
)
from pomona.personal.model import metadata
from pomona.privacy.settings import groups_note
from pomona.record.result import Result
from pomona.record.run_folder import RunRecord, committed_events, load, require_free
from pomona.scenario import Scenario
from pomona.scenario.description import about, epsilons, largest_groups, unprotected_groups
from pomona.simulated_clients import (
    attacked,
    cluster_transport,
    local_transport,
    state_storage,
    worker_count,
)
from pomona.storage.lock import locked, require_own
from pomona.storage.run_status import Status, last_round, read_status, write_status

KEY_STORES = Path("private") / "dp"  # keys and ledgers


def run(
    config: Config | None = None,
    out: Path | str | None = None,
    callback: object = None,
    resume: bool = False,
    **settings: Any,
) -> Result:
    """Train, evaluate and record one federation.

    Settings come as a ``Config``, or as the keywords that ``Config`` takes. They are not spelt out
    in the signature: ``Config`` has their types, defaults and descriptions, and refuses others.

    Args:
        config: every setting; or None, and keywords instead.
        out: folder for the record; created if missing. None keeps the result in memory only.
        callback: an object with any of the methods of ``Callback``, such as ``on_round_end``,
            called after every round; a ``StoppingCallback`` also gets the clients' models, and may
            end the run. In a notebook None is a line of progress.
        resume: whether to continue after the last committed round in ``out``; a finished run with
            these settings is unchanged, one of fewer rounds extended. Settings, data and partition
            must be those of the run in ``out``.
        settings: as for ``Config``: method, data (also of ``pomona.data.from_arrays`` and others),
            partition, model, rounds, lr and all others.

    Returns:
        The result, as ``pomona.load(out)`` would read it.

    Warns:
        PomonaWarning: each note on data, partition, settings and training, as ``Result.notes``.

    Raises:
        PomonaError: with the remedy; nothing is written before data and settings have been checked.

    >>> run(method="fedavg-ft", clients=3, rounds=2, lr=0.1)
    <fedavg-ft on digits, iid, 3 clients, 2 rounds
     model personal, received: test accuracy ... % in round 2, mean over clients
     in memory>
    """
    if config is not None and (settings or not isinstance(config, Config)):
        problem = (
            f"not both ({', '.join(settings)})" if settings else f"not {type(config).__name__}"
        )
        raise ConfigError(
            f"pomona.run takes a Config or keywords, {problem}; write "
            'pomona.run(method="apple", clients=3, rounds=2, lr=0.1)'
        )
    config = config or Config(**settings)
    require_hooks(callback)
    scenario, folder = Scenario.prepare(config), None if out is None else Path(out)
    display = in_notebook(scenario.config) if callback is None else None
    # a notebook's display shows the notes
    callbacks = CallbackList(callback, display or CallerWarnings(sys._getframe(1)))
    result = simulate(scenario, folder, callbacks, resume)
    if display:
        display.on_run_end(result)
    return result


@contextmanager
def _as_in_workers() -> Iterator[None]:
    """Compute with one thread, since workers are processes, and with gradients, which a caller's
    ``no_grad`` turns off; the caller's settings are restored.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.enable_grad():
            yield
    finally:
        torch.set_num_threads(threads)


@_as_in_workers()
def simulate(
    scenario: Scenario, folder: Path | None = None, callback: object = None, resume: bool = False
) -> Result:
    """Apply ``run`` to a prepared scenario; the notes are for the callback alone."""
    require_possible(scenario)
    notes = RunNotes(CallbackList(callback), has_callback=callback is not None)
    notes.extend(cautions(scenario))
    if folder is not None:
        return _simulate_in(folder, scenario, notes, resume)
    scenario = _with_auto_settings(scenario, notes)
    with _connected(scenario.config), explaining_memory_errors("training"):
        record = RunRecord(None, scenario.config.tree())
        place_state = state_storage(scenario, None, notes)
        return _train(scenario, record, notes, Checkpointing(None, 1, {}), place_state)


def _simulate_in(folder: Path, scenario: Scenario, notes: RunNotes, resume: bool) -> Result:
    """Run in a folder, or continue what it has."""
    require_own(folder)
    if resume:
        status = read_status(folder)
    else:
        status = None
        require_free(folder)
    if status and status.state == "finished":
        scenario = _with_auto_settings(scenario, notes, folder)
        if lifecycle.complete(scenario.config, *_hashes(scenario), folder):
            notes.pass_on(f"{folder} is finished; nothing to do")
            return load(folder)
        notes.pass_on(f"{folder} is finished after round {status.round}; continuing")
    with _connected(scenario.config):
        place_state = state_storage(scenario, folder, notes)
        with locked(folder), writing(folder):
            if resume and read_status(folder) != status and _finished(scenario, folder):
                notes.pass_on(f"{folder} has been finished by another process")
                return load(folder)
            probe(folder)
            scenario = _with_auto_settings(scenario, notes, folder if resume else None)
            if resume:
                require_engine(scenario, folder)
            return _run_recorded(scenario, folder, notes, resume, place_state)


def _connected(config: Config) -> AbstractContextManager[None]:
    """Connect to the run's cluster, if it has one."""
    if not config.cluster:
        return nullcontext()
    return ray_cluster.connected(config.cluster, config.processes)


def _finished(scenario: Scenario, folder: Path) -> bool:
    """Return whether a folder has a finished run that fulfils the request."""
    status = read_status(folder)
    if not status or status.state != "finished":
        return False
    scenario = _with_auto_settings(scenario, RunNotes(NullCallback()), folder)
    return lifecycle.complete(scenario.config, *_hashes(scenario), folder)


def _with_auto_settings(
    scenario: Scenario, notes: RunNotes, resumed_folder: Path | None = None
) -> Scenario:
    """Return the scenario with ``auto`` engine and learning rate resolved, as in the run to
    resume.
    """
    return with_learning_rate(with_engine(scenario, notes, resumed_folder), notes, resumed_folder)


def _hashes(scenario: Scenario) -> tuple[str, str]:
    """Return the hashes of a run's data and of its partition."""
    return scenario.partition.recipe["fingerprint"], scenario.partition.sha256


def _run_recorded(
    scenario: Scenario, folder: Path, notes: RunNotes, resume: bool, place_state: PlaceState
) -> Result:
    """Run in a locked folder, with its status recorded; lost workers are replaced, once in a
    round.
    """
    lost = None
    with lifecycle.recorded_status(folder), explaining_memory_errors("training"):
        while True:
            try:
                return _attempt(scenario, folder, notes, resume, place_state)
            except WorkerError as fault:
                if lost == (lost := last_round(folder)):
                    raise
                notes.add(f"{fault}; retrying from the last committed round", "training")
                resume = True


def _attempt(
    scenario: Scenario, folder: Path, notes: RunNotes, resume: bool, place_state: PlaceState
) -> Result:
    """Train from the start, or after the last committed round."""
    config, stamp = scenario.config, identity(scenario.config, *_hashes(scenario))
    point = lifecycle.resume_point(folder, stamp) if resume else lifecycle.ResumePoint()
    notes.extend(Note(line, "training") for line in point.notes)
    if point.resume_from and point.valid_to:
        committed_events(folder, point.valid_to)
        lifecycle.require_matching_files(config, scenario.partition.text(), folder)
        # from here on the record is not a finished one
        write_status(folder, Status(state="running", round=point.number))
        _write_settings(scenario, folder)
    with RunRecord(folder, config.tree(), point.valid_to) as record:
        if point.resume_from and (
            line := lifecycle.version_changes(record.events[0][1]["versions"])
        ):
            notes.add(line, "training")
        return _train(
            scenario,
            record,
            notes,
            Checkpointing(folder, config.checkpoint_every, stamp, point.resume_from),
            place_state,
        )


def _train(
    scenario: Scenario,
    record: RunRecord,
    notes: RunNotes,
    checkpoints: Checkpointing,
    place_state: PlaceState,
) -> Result:
    """Run from the start, or after the round in ``checkpoints``, with the tracker that is set."""
    config, folder, resume_from = scenario.config, record.folder, checkpoints.resume_from
    if warning := caution(config):
        notes.add(warning)
    if config.privacy:
        worst, delta = max(epsilons(scenario)), config.privacy.delta
        line = (
            f"this run will cost a client at most epsilon {worst:.3g} at delta {delta:g}, for one "
            f"{config.privacy.unit}"
        )
        if assumption := against(config):
            alone = max(epsilons(scenario, own_noise_only=True))
            line += f", {assumption}; by its own noise alone {alone:.3g}"
        if unprotected_groups(scenario):
            line += f"; {groups_note(largest_groups(scenario), epsilons(scenario, groups=True))}"
        notes.add(f"{line}; {config.void}" if config.void else line)
    if not resume_from:
        if folder:
            _write_settings(scenario, folder)
            write_status(folder, Status(state="running", round=0))
        parameters, frozen = len(scenario.initial()), scenario.network.frozen
        lifecycle.open_record(record, config, parameters, frozen, about(scenario))
    notes.write(record)
    start_event, last_number = record.events[0][1], resume_from.number if resume_from else 0
    with tracking(config, folder, start_event, last_number, notes.failed) as trackers:
        watched = replace(notes, callback=CallbackList(*trackers, notes.callback))
        result = _finished_run(scenario, record, watched, checkpoints, place_state)
        for tracker in trackers:
            tracker.on_run_end(result)
        return result


def _finished_run(
    scenario: Scenario,
    record: RunRecord,
    notes: RunNotes,
    checkpoints: Checkpointing,
    place_state: PlaceState,
) -> Result:
    """Run the rounds, and write the record's views and the models."""
    config, method, folder = scenario.config, scenario.config.method.method(), record.folder
    roster = Roster(tuple(len(c.train) for c in scenario.partition.clients), config.largest_share)
    models_by_client: dict[int, Mapping[str, Tensor]] = {}
    start_time = perf_counter()
    with ExitStack() as stack:
        key_stores = (
            (folder / KEY_STORES) if folder else Path(stack.enter_context(TemporaryDirectory()))
        )
        make_transport = local_transport
        if config.cluster:
            cores = ray_cluster.reserved(worker_count(config), notes.pass_on)
            make_transport = partial(cluster_transport, stack.enter_context(cores))
        transport = make_transport(scenario, roster, key_stores, place_state)
        stack.callback(transport.close)
        server_transport, claimed = attacked(scenario, transport, roster)
        schedule = PlannedMembership(config.membership, claimed)
        arguments = (
            config,
            method.server,
            schedule,
            scenario.initial,
            server_transport,
            record,
            notes.callback,
            checkpoints,
        )
        models = partial(ClientModels, transport, config.clients, method.card.headline)
        names = scenario.names
        metric, client_name = scenario.choice.metric, names.__getitem__
        loop = Loop(*arguments, metric=metric, client_name=client_name, models=models)
        loop.run()
        best = loop.curve.best_round
        if config.keep == "best" and 0 < best < loop.last:
            notes.extend(newcomers_after_best(scenario, record, best))
        if folder:
            with writing(folder):
                save_models(folder, transport, scenario, method.card.headline, best)
                save_mask_examples(folder, transport, scenario, method.card.headline, best)
        totals = collect_totals(scenario, transport, record, method.card.headline, best)
        if not folder:
            models_by_client = collect_models(transport, config.clients, method.card.headline, best)
    notes.write(record)
    result = lifecycle.close_record(record, perf_counter() - start_time, **totals)
    if not folder:
        network = metadata(scenario, 0, method.card.headline), scenario.network.frozen
        return replace(result, models=models_by_client, network=network)
    with writing(folder):
        save_cards(folder, scenario, result, best)
    return result


def _write_settings(scenario: Scenario, folder: Path) -> None:
    """Write the settings and the partition."""
    with writing(folder):
        publish(folder / "config.toml", [scenario.config.toml().encode()])
        publish(folder / "partition.json", [scenario.partition.text().encode()])

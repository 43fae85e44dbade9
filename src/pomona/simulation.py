"""Run a configuration from start to record: the simulator behind ``pomona run`` and ``pomona.run``."""

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from math import isfinite
from multiprocessing import get_all_start_methods
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, time
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from pomona import personal
from pomona.config import Config
from pomona.core.errors import ConfigError, LockedError, StorageError, WorkerError
from pomona.core.membership import Planned
from pomona.core.round import Roster
from pomona.federation.checkpointing import Checkpointing, find, identity
from pomona.federation.client_runtime import ClientRuntime, Groups, grouped
from pomona.federation.loop import Callback, Loop, round_of
from pomona.federation.state_placement import choose
from pomona.federation.state_store import Hold
from pomona.federation.transport import Inline, LocalTransport
from pomona.federation.workers import Workers
from pomona.models.parameter_space import ParameterSpace
from pomona.objective.range_test import Steps, range_test
from pomona.record.reading import load
from pomona.record.record import (
    EVENTS,
    Evaluation,
    Mark,
    Result,
    RoundRow,
    RunRecord,
    committed_events,
    gather,
    require_free,
    writing,
)
from pomona.record.run_summary import summarise
from pomona.resuming import complete, rate, require_own_files
from pomona.scenario import Scenario
from pomona.storage.atomic_io import probe, publish
from pomona.storage.checkpoint import differing
from pomona.storage.committed_rounds import FOLDER
from pomona.storage.committed_rounds import committed as committed_rounds
from pomona.storage.file_hashes import sums
from pomona.storage.lock import locked, require_own
from pomona.storage.status import Status, ended, read_status, write_status

VAULTS = Path("private") / "dp"  # keys and ledgers
BF16 = ("amx_bf16", "avx512_bf16", "bf16")  # the last is ARM's


class NullCallback:
    """A watcher that looks away."""

    def begin(self) -> None:
        """Do nothing."""

    def round(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""


def run(config: Config, out: Path | str | None = None, watcher: Callback | None = None, resume: bool = False) -> Result:
    """Train, evaluate and record one federation.

    Args:
        config: every setting.
        out: folder for the record; made if absent. None keeps the result in memory only.
        watcher: told of every round.
        resume: go on after the last committed round in ``out``; a finished run of these settings is left as it is,
            one of fewer rounds is given more. Settings, data and partition must be those of the run in ``out``.

    Returns:
        The result, as ``pomona.load(out)`` would read it again.

    Raises:
        PomonaError: with the remedy; nothing is written before data and settings have been checked.

    >>> run(Config(method="fedavg-ft", clients=3, rounds=2, lr=0.1))
    <fedavg-ft on digits, iid, 3 clients, 2 rounds
     model personal, received: test accuracy ... % in round 2, mean over clients
     in memory>
    """
    return simulate(Scenario.prepare(config), None if out is None else Path(out), watcher, resume)


def simulate(
    scenario: Scenario, out: Path | None = None, watcher: Callback | None = None, resume: bool = False
) -> Result:
    """``run`` for a scenario that is ready."""
    torch.set_num_threads(1)
    require_possible(scenario)
    watcher = watcher or NullCallback()
    _note_slow(scenario.config, watcher)
    for remark in scenario.remarks:
        watcher.note(remark)
    if scenario.choice.reason:
        watcher.note(scenario.choice.reason)
    _note_unused(scenario, watcher)
    if "\0" in str(out):
        raise StorageError(f"the folder {str(out)!r} has a NUL character in its name; give another folder")
    if out is None:
        scenario = settled(scenario, watcher)
        hold = _kept(scenario, out, watcher)
        return _train(scenario, RunRecord(None, scenario.config.tree()), watcher, Checkpointing(None, 1, {}), hold)
    require_own(out)
    if not resume:
        require_free(out)
    before = read_status(out) if resume else None
    if before and before.state == "finished":
        scenario = settled(scenario, watcher, out)
        if complete(scenario.config, *_what(scenario), out):
            watcher.note(f"{out} is finished; nothing to do")
            return load(out)
        watcher.note(f"{out} is finished after round {before.round}; going on")
    hold = _kept(scenario, out, watcher)
    with locked(out), writing(out):
        probe(out)
        return _recorded(settled(scenario, watcher, out if resume else None), out, watcher, resume, hold)


def _what(scenario: Scenario) -> tuple[str, str]:
    """Hashes of a run's data and of who holds which rows."""
    return scenario.partition.recipe["fingerprint"], scenario.partition.sha256


def _recorded(scenario: Scenario, out: Path, watcher: Callback, resume: bool, hold: Hold) -> Result:
    """A run in a folder that is held for it, with its status kept; a lost worker process is made up for once."""
    try:
        try:
            result = _attempt(scenario, out, watcher, resume, hold)
        except WorkerError as fault:
            watcher.note(f"{fault}; once more from the last committed round")
            result = _attempt(scenario, out, watcher, True, hold)
    except BaseException as fault:
        if not isinstance(fault, LockedError):
            committed = committed_rounds(out / FOLDER)
            with suppress(StorageError):
                write_status(out, ended(fault, committed[-1][0] if committed else 0))
        raise
    write_status(out, ended(None, scenario.config.rounds, sums(out)))
    return result


def _attempt(scenario: Scenario, out: Path, watcher: Callback, resume: bool, hold: Hold) -> Result:
    """Train from the start, or after the last committed round."""
    stamp = identity(scenario.config, *_what(scenario))
    found, notes = find(out, stamp) if resume else (None, [])
    for note in notes:
        watcher.note(note)
    begun = resume and (out / EVENTS).exists()  # perhaps cut short before its first commit
    if scenario.config.privacy:
        worst = max(scenario.epsilons())
        delta = scenario.config.privacy.delta
        watcher.note(f"this run will cost a client at most epsilon {worst:.3g} at delta {delta:g}")
    after = Mark(**found.meta["events"]) if found else Mark() if begun else None
    if found and after:
        committed_events(out, after)
        require_own_files(scenario.config, scenario.partition.text(), out)
        write_status(out, Status(state="running", round=found.number))  # what follows has no finished record
        _settings(scenario, out)
    with RunRecord(out, scenario.config.tree(), after) as record:
        if found:
            _note_moves(record.events[0]["versions"], versions(), watcher)
        commits = Checkpointing(out, scenario.config.checkpoint_every, stamp, found)
        return _train(scenario, record, watcher, commits, hold)


def settled(scenario: Scenario, watcher: Callback, before: Path | None = None) -> Scenario:
    """The scenario with its learning rate as a number: that of the run to go on with, else one that is searched for.

    Args:
        scenario: any.
        watcher: told of the rate, and where it comes from.
        before: folder of the run to go on with, if there is one.

    Raises:
        CheckpointError: all checkpoints of that run are damaged.
        ConfigError: under privacy, where nothing may be tried.
    """
    config = scenario.config
    if config.lr != "auto":
        return scenario
    if config.privacy:
        raise ConfigError("lr = 'auto' looks at training losses, which privacy does not cover; set lr, e.g. lr=0.1")
    known = rate(before) if before else None
    if known is not None:
        watcher.note(f"lr = {known:g}, as {before} was begun with")
        return _at_rate(scenario, known)
    steps = Steps(config.batch_size, config.momentum, config.weight_decay, config.seed)
    sizes = [len(c.train) for c in scenario.partition.clients]
    watcher.note("lr = auto: trying learning rates")
    test = range_test(scenario.objective(), scenario.initial(), sizes, steps)
    watcher.note(str(test))
    return _at_rate(scenario, test.chosen)


def _at_rate(scenario: Scenario, lr: float) -> Scenario:
    """The scenario with this learning rate."""
    return replace(scenario, config=scenario.config.model_copy(update={"lr": lr}))


def bf16_instructions() -> list[str]:
    """The processor's instructions for bf16 arithmetic, by PyTorch's names; without any it is emulated."""
    # The function is younger than the oldest PyTorch that will do.
    known: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    return [name for name in BF16 if known.get(name)]


def _note_slow(config: Config, watcher: Callback) -> None:
    """Say that bf16 costs time where it was chosen to save it."""
    if config.precision == "bf16" and config.device == "cpu" and not bf16_instructions():
        watcher.note("this processor has no bf16 arithmetic (AMX, AVX512-BF16): bf16 is slower than fp32 here")


def _note_unused(scenario: Scenario, watcher: Callback) -> None:
    """Say that averaged statistics were asked for where no model can use them."""
    config = scenario.config
    if scenario.initial.statistics.numel() and not config.method.method().server.global_model:
        watcher.note(
            f"buffers = average: {config.method.name} has no global model, so that each client's models have "
            "BatchNorm statistics of its own data"
        )


def _note_moves(then: Mapping[str, str], now: Mapping[str, str], watcher: Callback) -> None:
    """Say which versions are others than those that a run was begun with: its bits may differ from there on."""
    moved = [f"{name} {then.get(name)}, now {now.get(name)}" for name in differing(then, now)]
    if moved:
        watcher.note(f"begun with {'; '.join(moved)}: the end may differ in its last bits from a run without a break")


def require_possible(scenario: Scenario) -> None:
    """Raise ConfigError for a method, settings and a device that do not go together."""
    config, method = scenario.config, scenario.config.method.method()
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device = 'cuda', but PyTorch sees no GPU; set device=cpu")
    if config.momentum and method.card.plain_steps:
        raise ConfigError(f"momentum = {config.momentum}, but {config.method.name} assumes plain SGD; set momentum=0")


def _kept(scenario: Scenario, out: Path | None, watcher: Callback) -> Hold:
    """Where clients' states go, said if it is the disk. Raises ConfigError if they have room nowhere."""
    config = scenario.config
    client = config.method.method().client
    first = client.start(scenario.initial, Roster((1,) * config.clients), (0,), config.seed)
    hold, notes = choose(config, first, _workers(config), out)
    for note in notes:
        watcher.note(note)
    return hold


def _workers(config: Config) -> int:
    return min(config.workers or len(os.sched_getaffinity(0)), config.clients)


def _train(scenario: Scenario, record: RunRecord, watcher: Callback, commits: Checkpointing, hold: Hold) -> Result:
    """The rounds, the record's views, and the models."""
    config, method, out = scenario.config, scenario.config.method.method(), record.folder
    if said := method.caution(round_of(config, 1)):
        watcher.note(said)
    if not commits.found:
        _open(scenario, record)
    roster = Roster(tuple(len(c.train) for c in scenario.partition.clients), config.largest_share)

    vaults = ExitStack()
    folder = (out / VAULTS) if out else Path(vaults.enter_context(TemporaryDirectory()))

    def make(groups: Groups) -> ClientRuntime:
        objective = scenario.private(folder) if config.privacy else scenario.objective()
        return ClientRuntime(method.client, objective, scenario.initial, groups, config.seed, hold, metric)

    metric = scenario.choice.metric
    began = perf_counter()
    everybody = tuple(range(config.clients))
    workers = _workers(config)
    inline = workers == 1 or config.device != "cpu" or "fork" not in get_all_start_methods()
    groups = grouped(roster.sizes, config.rows)
    transport = Inline(make, groups) if inline else Workers(make, groups, roster.sizes, workers)
    try:
        attendance = Planned(config.membership, roster)
        parts = (config, method.server, attendance, scenario.initial, transport, record, watcher, commits)
        Loop(*parts, metric=metric).run()
        models: dict[int, Mapping[str, Tensor]] = {}
        if out:
            with writing(out):
                save_models(out, transport, scenario, method.card.headline)
        else:
            models = held_models(transport, config.clients, method.card.headline)
        answers = transport.collect(partial(ClientRuntime.answers, of=method.card.headline), everybody)
        record.answers({i: own for i, own in enumerate(answers) if own is not None})
        for metrics in transport.collect(ClientRuntime.metrics, everybody):
            for each in metrics:
                record.event("final", **each)
        spent = transport.collect(ClientRuntime.spent, everybody) if config.privacy else None
        filed = sum(transport.collect(ClientRuntime.filed, everybody))
    finally:
        transport.close()
        vaults.close()
    result = gather(record.events, record.config, None)
    figures = {**summarise(result, perf_counter() - began), "state_files_bytes": filed}
    record.event("end", time=time(), summary={**figures, **privacy(config, spent)})
    made = record.close()
    return made if out else replace(made, models=models)


def privacy(config: Config, spent: Sequence[float] | None) -> dict[str, Any]:
    """What the summary says of privacy: each client's epsilon, None where there is no bound."""
    if not config.privacy or spent is None:
        return {}
    bounded = [e if isfinite(e) else None for e in spent]
    worst = None if None in bounded else max(spent)
    p = config.privacy
    return {"privacy": {"epsilon": worst, "delta": p.delta, "clients": bounded, "void": p.void}}


def _open(scenario: Scenario, record: RunRecord) -> None:
    """Write what a run is before its first round."""
    config, method, out = scenario.config, scenario.config.method.method(), record.folder
    if out:
        _settings(scenario, out)
        write_status(out, Status(state="running", round=0))
    record.event(
        "start",
        time=time(),
        method=config.method.name,
        headline=list(method.card.headline),
        presentation=asdict(method.card.presentation),
        parameters=ParameterSpace(scenario.module(), config.buffers).trained,
        model=config.model.name,
        seed=config.seed,
        versions=versions(),
        privacy=config.privacy.void or "private" if config.privacy else None,
        **scenario.about(),
    )


def _settings(scenario: Scenario, out: Path) -> None:
    """Write what was asked, and who holds which rows."""
    with writing(out):
        publish(out, [scenario.config.toml().encode()], lambda _: "config.toml")
        publish(out, [scenario.partition.text().encode()], lambda _: "partition.json")


def held_models(transport: LocalTransport, clients: int, headline: tuple[str, str]) -> dict[int, Mapping[str, Tensor]]:
    """The model that each client is judged by, of those that have one."""
    each = (transport.collect(ClientRuntime.models, [i])[0] for i in range(clients))
    return {i: {k: t.cpu().clone() for k, t in m[headline].items()} for i, m in enumerate(each) if headline in m}


def save_models(folder: Path, transport: LocalTransport, scenario: Scenario, headline: tuple[str, str]) -> None:
    """One safetensors file a client: the model it is judged by, and apart from it what it keeps to itself.

    One client at a time: a federation's models together need not fit into memory.
    """
    (folder / "models").mkdir(exist_ok=True)
    for i in range(scenario.config.clients):
        (models,) = transport.collect(ClientRuntime.models, [i])
        (private,) = transport.collect(ClientRuntime.private, [i])
        if headline in models:
            personal.save(folder / "models" / f"client-{i:02d}.safetensors", models[headline], scenario, i, headline)
        if private:
            (folder / "private").mkdir(exist_ok=True)
            own = {k: v.cpu().contiguous() for k, v in private.items()}
            save_file(own, folder / "private" / f"client-{i:02d}.safetensors")


def versions() -> dict[str, str]:
    """What the run was made with."""
    packages = {name: version(name) for name in ("pomona", "torch", "numpy", "scipy", "scikit-learn")}
    return {"python": sys.version.split()[0], "platform": platform.platform(), **packages}

"""Run a configuration from start to record: the simulator behind ``pomona run`` and ``pomona.run``."""

import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version
from multiprocessing import get_all_start_methods
from pathlib import Path
from time import perf_counter, time

import torch
from safetensors.torch import save_file

from pomona import personal
from pomona.config import Config
from pomona.errors import ConfigError
from pomona.federation.clients import Clients
from pomona.federation.loop import Loop, Watcher
from pomona.federation.round import Roster
from pomona.metrics.outcome import summarise
from pomona.models.space import ParameterSpace
from pomona.record import Evaluation, Record, Result, RoundRow, gather, writing
from pomona.scenario import Scenario
from pomona.transport.processes import Inline, Workers


class Silent:
    """A watcher that looks away."""

    def begin(self) -> None:
        """Do nothing."""

    def round(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:
        """Do nothing."""


def run(config: Config, out: Path | None = None, watcher: Watcher | None = None) -> Result:
    """Train, evaluate and record one federation.

    Args:
        config: every setting.
        out: folder for the record; made if absent. None keeps the result in memory only.
        watcher: told of every round.

    Returns:
        The result, as ``pomona.load(out)`` would read it again.

    Raises:
        PomonaError: with the remedy; nothing is written before data and settings have been checked.
    """
    return simulate(Scenario.prepare(config), out, watcher)


def simulate(scenario: Scenario, out: Path | None = None, watcher: Watcher | None = None) -> Result:
    """``run`` for a scenario that is ready."""
    torch.set_num_threads(1)
    config, method = scenario.config, scenario.config.method.method()
    space = ParameterSpace(scenario.module(), config.buffers)
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device = 'cuda', but PyTorch sees no GPU; set device=cpu")
    if space.buffers and method.card.mixes:
        raise ConfigError(
            f"buffers = 'average', but {config.method.name} trains mixtures of models, which leave no one model's "
            "BatchNorm statistics behind; set buffers=local"
        )
    if config.momentum and method.card.plain_steps:
        raise ConfigError(f"momentum = {config.momentum}, but {config.method.name} assumes plain SGD; set momentum=0")
    record = Record(out, config.tree())
    if out:
        with writing(out):
            (out / "config.toml").write_text(config.toml(), encoding="utf-8")
            scenario.partition.save(out / "partition.json")
    record.event(
        "start",
        time=time(),
        method=config.method.name,
        headline=list(method.card.headline),
        parameters=space.trained,
        model=config.model.name,
        seed=config.seed,
        versions=versions(),
        **scenario.about(),
    )
    roster = Roster(tuple(len(c.train) for c in scenario.partition.clients))

    def make(ids: tuple[int, ...]) -> Clients:
        return Clients(method.client, scenario.objective(), scenario.initial, ids, config.seed)

    began = perf_counter()
    everybody = tuple(range(config.clients))
    workers = min(config.workers or len(os.sched_getaffinity(0)), config.clients)
    inline = workers == 1 or config.device != "cpu" or "fork" not in get_all_start_methods()
    transport = Inline(make, everybody) if inline else Workers(make, roster.sizes, workers)
    try:
        Loop(config, method.server, roster, scenario.initial, transport, record, watcher or Silent()).run()
        if out:
            with writing(out):
                save_models(out, transport, scenario, method.card.headline)
        for metrics in transport.collect(Clients.metrics, everybody):
            for each in metrics:
                record.event("final", **each)
    finally:
        transport.close()
    result = gather(record.events, record.config, None)
    record.event("end", time=time(), summary=summarise(result, perf_counter() - began))
    return record.close()


def save_models(folder: Path, transport: Inline | Workers, scenario: Scenario, headline: tuple[str, str]) -> None:
    """One safetensors file a client: the model it is judged by, and apart from it what it keeps to itself.

    One client at a time: a federation's models together need not fit into memory.
    """
    (folder / "models").mkdir()
    for i in range(scenario.config.clients):
        (models,) = transport.collect(Clients.models, [i])
        (private,) = transport.collect(Clients.private, [i])
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

"""Files of a rehearsal: the federation's, each client's rows as one silo's data, and the section that reads them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from pomona.core.errors import ConfigError
from pomona.core.samples import SPLITS
from pomona.core.toml import Tree
from pomona.partition.partition import ClientRows
from pomona.scenario import Scenario
from pomona_federation.agreed_config import ELSEWHERE
from pomona_federation.task_settings import of_samples


def federation_file(scenario: Scenario, server: str, **settings: Any) -> str:
    """Return the ``federation.toml`` of a simulation's scenario: one silo per client, and the data's task."""
    if scenario.dataset.kind == "text":
        raise ConfigError("a rehearsal deals out images and tables; take another data set")
    if scenario.config.membership.changes:
        raise ConfigError("a rehearsal has the same silos from the first round to the last; take membership out")
    run = {k: v for k, v in scenario.config.tree().items() if k not in ELSEWHERE}
    run["metric"] = scenario.choice.metric.name
    silos = [{"name": f"silo-{i}"} for i in range(len(scenario.partition.clients))]
    top = {"name": "rehearsal", "server": server, "places": len(silos), **settings}
    return tomli_w.dumps({**top, "run": run, "task": of_samples(scenario.dataset), "silo": silos})


def write_rows(scenario: Scenario, client: int, folder: Path) -> dict[str, Path]:
    """Write a client's rows as NPZ files with arrays x and y, one per non-empty split."""
    rows: ClientRows = scenario.partition.clients[client]
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for part in SPLITS:
        own = getattr(rows, part)
        if len(own):
            files[part] = folder / f"{part}.npz"
            np.savez(files[part], x=scenario.dataset.x[own], y=scenario.dataset.y[own])
    if "test" not in files:
        raise ConfigError(f"client {client} has no test rows; a rehearsal needs some for each: raise data.test_limit")
    return files


def data_section(scenario: Scenario, files: Mapping[str, Mapping[str, Path]]) -> Tree:
    """Return the settings' section data for these files: those of one silo, or of all."""
    clients = [{"name": name, **{k: str(v) for k, v in own.items()}} for name, own in files.items()]
    section: Tree = {"name": "clients", "clients": clients, "validation_share": 0.0}  # empty splits get none
    if scenario.targets != "classes":
        section["targets"] = scenario.targets
    if scenario.dataset.kind == "image" and scenario.dataset.learn:
        # Statistics recomputed from the files would round differently.
        section["normalise"] = {"shift": list(scenario.dataset.shift), "scale": list(scenario.dataset.scale)}
    if scenario.dataset.edges:
        section["time_edges"] = list(scenario.dataset.edges)
    return {**section, "classes": list(scenario.dataset.classes)} if scenario.dataset.classes else section

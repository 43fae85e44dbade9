"""A rehearsal's inputs: its federation's file, and rows, given or synthetic, as each silo's data.

A study is also simulated on data that must fit it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

from pomona.config import Config, resolve
from pomona.core.bounds import SPLITS
from pomona.core.errors import ConfigError, listed, titled
from pomona.core.rng import stream
from pomona.core.toml import Tree, named_file, read_file
from pomona.data.dataset import Dataset, Owners
from pomona.data.settings import DataSettings
from pomona.partition.partition import ClientRows
from pomona.partition.recipe import class_numbers, hold_out
from pomona.scenario import Scenario
from pomona_federation.agreed_config import ELSEWHERE, resolved
from pomona_federation.agreement import SHARE, Federation
from pomona_federation.json_store import read_json
from pomona_federation.server.member_registry import ROSTER, RegistryFile
from pomona_federation.silo.kept_data import agreed_data, conformed
from pomona_federation.study import TrainingStudy, read_study
from pomona_federation.task_settings import TaskSettings, of_samples


def federation_file(scenario: Scenario, server: str, **settings: Any) -> str:
    """Return the ``federation.toml`` of a simulation's scenario: one silo per client, and the
    data's task.
    """
    if scenario.dataset.kind == "text":
        raise ConfigError("a rehearsal takes only images and tables; use another data set")
    if scenario.config.membership.changes:
        raise ConfigError(
            "a rehearsal has the same silos from the first round to the last; remove membership"
        )
    run = {k: v for k, v in scenario.config.tree().items() if k not in ELSEWHERE}
    run["metric"] = scenario.choice.metric.name
    silos = [{"name": f"silo-{i}"} for i in range(len(scenario.partition.clients))]
    top = {"name": "rehearsal", "server": server, "places": len(silos), **settings}
    return tomli_w.dumps({**top, "run": run, "task": of_samples(scenario.dataset), "silo": silos})


def draws_validation(scenario: Scenario) -> bool:
    """Return whether silos with the training and validation rows of the clients in one file would
    draw the same validation rows.

    They do unless the data, or a saved partition, name these rows.
    """
    dataset, seed = scenario.dataset, scenario.config.seed
    if dataset.groups or dataset.times is not None or scenario.partition.targets:
        return False
    labels, share = class_numbers(dataset), scenario.config.data.validation_share

    def drawn_rows(i: int, rows: ClientRows) -> NDArray[np.int64]:
        union = np.union1d(rows.train, rows.validation)
        draws = stream(seed, "partition.validation", i)
        return hold_out(union, labels, share, draws, None, None)

    clients = enumerate(scenario.partition.clients)
    return all(np.array_equal(rows.validation, drawn_rows(i, rows)) for i, rows in clients)


def write_rows(scenario: Scenario, client: int, folder: Path) -> dict[str, Path]:
    """Write a client's rows as NPZ files with arrays x and y, one per non-empty split; validation
    rows are with the training rows if the silo draws the same ones.
    """
    rows: ClientRows = scenario.partition.clients[client]
    if draws_validation(scenario):
        union = np.union1d(rows.train, rows.validation)
        rows = replace(rows, train=union, validation=union[:0])
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for split in SPLITS:
        indices = getattr(rows, split)
        if len(indices):
            files[split] = folder / f"{split}.npz"
            np.savez(files[split], x=scenario.dataset.x[indices], y=scenario.dataset.y[indices])
    if "test" not in files:
        raise ConfigError(
            f"{titled(scenario.names[client])} has no test rows; a rehearsal needs some "
            "for each: raise data.test_limit"
        )
    return files


def data_section(scenario: Scenario, files: Mapping[str, Mapping[str, Path]]) -> Tree:
    """Return the settings' section data for these files: those of one silo, or of all."""
    clients = [
        {"name": name, **{k: str(v) for k, v in paths.items()}} for name, paths in files.items()
    ]
    share = scenario.config.data.validation_share if draws_validation(scenario) else 0.0
    section: Tree = {"name": "arrays", "clients": clients, "validation_share": share}
    if scenario.targets != "classes":
        section["targets"] = scenario.targets
    if scenario.dataset.kind == "image" and scenario.dataset.learn:
        # Statistics recomputed from the files would round differently.
        section["normalise"] = {
            "shift": list(scenario.dataset.shift),
            "scale": list(scenario.dataset.scale),
        }
    if scenario.dataset.edges:
        section["time_edges"] = list(scenario.dataset.edges)
    if scenario.dataset.classes:
        return {**section, "classes": list(scenario.dataset.classes)}
    return section


ROLES = (0, 0, 0, 1, 2)  # of five samples: three for training, one for validation, one for test
SAMPLES = 120  # samples per silo, unless they are large
ROOM = 2**26  # largest bytes of a silo's samples
# default partition of given data
DEALT = {"partition": {"name": "dirichlet", "beta": 1.0, "min_size": 16}}
Array = NDArray[Any]
Prepare = Callable[[Config], Scenario]


def scenario(federation: Federation, overrides: Tree) -> Scenario:
    """The federation's run with its own ``[task]``, on local samples.

    Args:
        federation: its silos, settings and task are rehearsed.
        overrides: keys of a run that override the federation's. If they name data, it is
            partitioned among the silos and must fit the task as a silo's own does; otherwise
            samples are synthetic.

    Raises:
        ConfigError: the model, the method or the settings do not fit the task.
        DataError: the given data does not fit it.
    """
    terms, silos = federation.kit_terms, [silo.name for silo in federation.silo]
    if terms is None:
        raise ConfigError(
            "section task is missing; a rehearsal needs a study: give sections run and task"
        )
    task = terms.task
    if task.kind == "text":
        raise ConfigError(
            "[task] is for texts, but a rehearsal takes only images and tables; try texts with "
            "`pomona run`"
        )
    names_data = "name" in overrides.get("data", {})
    defaults: Tree = (
        DEALT
        if names_data
        else {"data": {"name": f"{__name__}:synthetic"}, "partition": {"name": "natural"}}
    )
    fixed = {"clients": len(silos), "workers": 1, "metric": terms.config.metric}
    agreed_settings = {"largest_share": terms.largest_share, "engine": terms.config.engine}
    config = resolve(defaults, agreed_settings, terms.run_study.run, fixed, overrides)

    def read(settings: DataSettings) -> Dataset:
        return agreed_data(settings, task) if names_data else synthetic(task, silos, config.seed)

    return Scenario.prepare(config, read, agreed_reader=True)


def silos_of(path: Path) -> tuple[str, ...]:
    """The silos of a federation in the order of their places: the founders of a
    ``federation.toml``, or all members that a server's kit has registered.

    Raises ConfigError for an invalid file, and StorageError for a damaged registry.
    """
    kit = path if path.is_dir() else path.parent
    registered = read_json(RegistryFile, kit / "run" / ROSTER) if path.is_dir() else None
    if registered:
        return tuple(entry.name for entry in registered.silos)
    federation = Federation.read(path / "federation.toml" if path.is_dir() else path)
    return tuple(silo.name for silo in federation.silo)


def _for_all_rows(data: DataSettings) -> list[str]:
    """Say which settings look at the rows of all silos together in one table; silos apply their own
    to their own rows.
    """
    keys = [key for key in ("train_limit", "test_limit") if getattr(data, key) is not None]
    keys += ["duplicates"] if data.duplicates == "drop" else []
    return [
        f"data.{key} is applied to the rows of all clients together, and by a silo to its own: the "
        "models are not those of the federation"
        for key in keys
    ]


def in_order(dataset: Dataset, silos: Sequence[str]) -> Dataset:
    """The data with its clients in the order of the silos' places: a client's split and batches
    are drawn by its number, a silo's by its place.

    Clients that are not silos come last, by name. A note says if silos and clients differ, or are
    not known.
    """
    owners = dataset.owners
    if owners is None:
        return dataset
    names = sorted(owners.names, key=[*silos, *owners.names].index)
    number = np.array([names.index(name) for name in owners.names], np.int64)
    ordered = replace(owners, names=tuple(names), client=number[owners.client])
    return replace(dataset, owners=ordered, notes=(*dataset.notes, *_other_silos(names, silos)))


def _other_silos(clients: Sequence[str], silos: Sequence[str]) -> list[str]:
    """Say which clients of the data are other ones than the silos, whose models are then not those
    of the federation.
    """
    if len(clients) > 1 and not silos:
        return [
            f"the clients of the data are numbered by name: {listed(clients, 12)}; silos that have "
            "other places in their federation draw other splits: name its federation.toml, or the "
            "server's kit, with --members"
        ]
    if missing := [silo for silo in silos[: len(clients)] if silo not in clients]:
        return [
            f"the data have no rows of silo {listed(missing, 12)}: the clients after it have other "
            "places than the silos of the federation, and draw other splits"
        ]
    return []


def of_study(path: Path, members: Path | None = None) -> tuple[Tree, Prepare]:
    """A ``STUDY.toml`` or ``federation.toml`` for the simulator: its settings, and a function that
    makes its scenario.

    The settings are section run, completed with the federation's defaults. They name no data; the
    function takes settings with data, whose clients it numbers as the silos of ``members``: a
    ``federation.toml`` or a server's kit; by default those of the file itself, if it names any.

    Raises:
        ConfigError: no federation would run it, or it trains no model; the message names the file.
    """
    names_silos = "silo" in read_file(path)
    study = Federation.load(path).study if names_silos else read_study(path)
    silos = silos_of(members or path) if members or names_silos else ()
    with named_file(path):
        if not isinstance(study, TrainingStudy):
            problem = (
                f"kind = {study.kind!r} trains no model" if study else "section task is missing"
            )
            raise ConfigError(
                f"{problem}; only a study of kind train, with its sections run and task, can be "
                "simulated"
            )
        task = study.task
        resolved_config = resolved(study, task, 1, SHARE, insecure=False)

    def read(data: DataSettings) -> Dataset:
        dataset = in_order(agreed_data(data, task), silos)
        return replace(dataset, notes=(*dataset.notes, *_for_all_rows(data)))

    def prepare(config: Config) -> Scenario:
        if "data" not in config.model_fields_set:
            raise ConfigError(
                f"{path} does not name data, since silos do; add data=table data.path=rows.csv "
                "data.client_column=silo"
            )
        return Scenario.prepare(config, read, agreed_reader=True)

    fixed = {"metric": resolved_config.metric, "engine": resolved_config.engine}
    return {"largest_share": SHARE, **study.run, **fixed}, prepare


def synthetic(task: TaskSettings, silos: list[str], seed: int) -> Dataset:
    """Random samples of a task for each silo: no real person's, and with nothing to learn.

    A table has the features of ``input_shape``, not the columns from which ``preprocessing``
    computes them.
    """
    size = prod(task.input_shape) * np.dtype(task.dtype).itemsize
    per_silo = max(2 * len(ROLES), min(SAMPLES, ROOM // size))
    n, rng = per_silo * len(silos), stream(seed, "rehearsal")
    role = np.array(ROLES, np.int8)[np.arange(n) % len(ROLES)]
    order = np.argsort(role, kind="stable")  # training rows come first
    owners = Owners(tuple(silos), np.arange(n)[order] // per_silo, role[order])
    x, y = _inputs(task, n, rng), _targets(task, n, rng)
    dataset = Dataset(
        "made-up", task.kind, x, y, task.classes, int((role < 2).sum()), owners=owners
    )
    plain = task.model_copy(update={"preprocessing": None})
    return conformed(replace(dataset, target_kind=task.targets), plain)


def _inputs(task: TaskSettings, n: int, rng: np.random.Generator) -> Array:
    """Samples (n, *input_shape) of the task's dtype; the network's inputs are roughly standard
    normal.
    """
    x = rng.standard_normal((n, *task.input_shape), np.float32) * np.array(task.scale, np.float32)
    x += np.array(task.shift, np.float32)
    if task.dtype == "float32":
        return x
    bounds = np.iinfo(task.dtype)
    return x.round().clip(bounds.min, bounds.max).astype(task.dtype)


def _targets(task: TaskSettings, n: int, rng: np.random.Generator) -> Array:
    """Targets of n samples, with every class present if there are enough samples."""
    match task.targets:
        case "classes":
            return rng.permutation(np.arange(n) % len(task.classes))
        case "segmentation":
            return rng.integers(len(task.classes), size=(n, *task.input_shape[:-1]), dtype=np.uint8)
        case "multilabel":
            return rng.integers(2, size=(n, task.outputs)).astype(np.float32)
        case "survival":
            times = rng.uniform(0.1, 1.1, n) * task.time_edges[-1]
            return np.stack([times, rng.integers(2, size=n)], axis=1).astype(np.float32)
        case "regression":
            y = rng.standard_normal((n, task.outputs)) * task.target_scale + task.target_shift
            return y.astype(np.float32)

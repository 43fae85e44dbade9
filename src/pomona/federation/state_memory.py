"""Checks whether the clients' states of a simulation fit on this machine, and where."""

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from pomona.config import Config
from pomona.core.errors import ConfigError
from pomona.core.state import flatten
from pomona.federation.state_store import Hold, as_is, to_file
from pomona.storage.checkpoint import KEEP
from pomona.storage.committed_rounds import FOLDER, committed
from pomona.storage.mapped_array import machine_memory, process_memory


def require_training(config: Config, parameters: int, workers: int) -> None:
    """Raise ConfigError if training on a CPU cannot fit into memory, even without the network's activations.

    Counts what exists at the same time: the initial row, each process's network, and for each client in training its
    row, its gradient and the optimizer's moments. ``parameters``: numbers in a row of float32.
    """
    if config.device != "cpu":
        return
    row = 4 * parameters
    moments = 2 if config.optimizer.name != "sgd" else int(config.momentum > 0)
    cohort = max(1, round(config.participation * config.clients))
    at_once, all_at_once = min(cohort, config.rows), min(cohort, workers * config.rows)
    one, whole = row * (2 + at_once * (2 + moments)), row * (1 + workers + all_at_once * (2 + moments))
    bounds = ((one, at_once, process_memory(), "a process"), (whole, all_at_once, machine_memory(), "this machine"))
    for need, trained, have, where in bounds:
        if need > have:
            held = f"initial row, network, rows, gradients{f', {moments} of moments' if moments else ''}"
            raise ConfigError(
                f"training {parameters:,} parameters needs at least {_gb(need)} ({held} of {trained} at a time), "
                f"and {where} may have {_gb(have)}; take a smaller model{', fewer workers' if workers > 1 else ''}, or "
                "train a part of it (model.train)"
            )


def choose(config: Config, first: object, kept: int, workers: int, out: Path | None) -> tuple[Hold, list[str]]:
    """Choose memory or disk for clients' states, by ``state_memory``.

    Args:
        config: of the run.
        first: a client's initial state; the others' have the same size.
        kept: bytes of a client's copies of other clients' models. A round adds at most one new row per client, shared
            by all that have it.
        workers: number of processes in which clients train at the same time.
        out: the run's folder, for its checkpoints.

    Returns:
        A function that moves a state to its storage, and a line for display unless that is memory.

    Raises:
        ConfigError: neither memory nor the disks have enough space.
    """
    one, have = sum(t.nbytes for t in flatten(first, "state").values()), machine_memory()
    states, copies = config.clients * one, kept * min(config.rounds + 1, config.clients)
    need, share = states + copies, config.state_memory if config.device == "cpu" else 1.0
    if need <= share * have:
        return as_is, []
    need_and_have = (
        f"what {config.clients} clients of {config.method.name} keep takes {_gb(need)}, this machine has {_gb(have)}"
    )
    remedy = "take fewer clients or a smaller model, for apple leave method.budget out"
    if config.device != "cpu":
        raise ConfigError(f"{need_and_have}; {remedy}")
    if (used := min(config.clients, workers * config.rows) * (one + kept)) > have:
        raise ConfigError(f"{need_and_have}, and training takes {_gb(used)} at a time; lower workers, {remedy}")
    if short := "; ".join(_short(_wanted(states, copies, out))):
        fits = "raise state_memory, " if need <= have else ""
        raise ConfigError(
            f"{need_and_have}, and files need {short}; free space, point TMPDIR elsewhere, {fits}{remedy}"
        )
    limit, where = f"{config.state_memory:g} of this machine's {_gb(have)}", tempfile.gettempdir()
    return to_file, [f"the clients' states take {_gb(need)}, more than {limit}: they lie in files in {where}"]


def _wanted(states: int, copies: int, out: Path | None) -> Iterator[tuple[Path, int]]:
    """Yield the bytes that a run will write, by existing folder: copies, states of two rounds, checkpoints."""
    yield Path(tempfile.gettempdir()), 2 * states + copies
    if out:
        there = next(folder for folder in (out, *out.resolve().parents) if folder.is_dir())
        yield there, (KEEP + 1 - min(KEEP, len(committed(out / FOLDER)))) * (states + copies)


def _short(wanted: Iterable[tuple[Path, int]]) -> Iterator[str]:
    """Yield the missing space per disk; folders on the same disk share its space."""
    for _, group in groupby(sorted(wanted, key=_disk), key=_disk):
        folders, sizes = zip(*group, strict=True)
        free = shutil.disk_usage(folders[0]).free
        if sum(sizes) > free:
            yield f"{_gb(sum(sizes))} in {' and '.join(map(str, folders))}, where {_gb(free)} are free"


def _disk(wanted: tuple[Path, int]) -> int:
    return wanted[0].stat().st_dev


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"

"""Committed rounds: one file each, whole or absent, with its own hash for a name.

A round is committed when its file is durable. ``round-000007-<SHA-256>.safetensors`` holds every tensor that the next
round needs, and one note in JSON for everything else. Because the hash of the whole content, header included, is part
of the name, one renaming publishes both, and no damage passes unseen.
"""

import json
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pomona.core.errors import CheckpointError, StorageError
from pomona.core.files import opened, sha256
from pomona.core.lazy_tensors import Lazy, Named, forms
from pomona.storage.atomic_io import publish
from pomona.storage.committed_rounds import NAME, committed
from pomona.storage.mapped_tensor import mapped
from pomona.storage.safetensors_stream import TensorEntry, fill, layout, pieces

SCHEMA = 3
"""Number of the meaning of names and notes in a checkpoint; a change that old readers would get wrong raises it."""
KEEP = 2
"""Rounds that stay."""


@dataclass(frozen=True)
class Checkpoint:
    """A committed round: its number, tensors by dotted path, the rest as JSON holds it, its file.

    The tensors are read from the file whenever they are asked for: together they need not fit into memory.
    """

    number: int
    tensors: Lazy
    meta: dict[str, Any]
    path: Path


def save(
    folder: Path,
    number: int,
    tensors: Named,
    meta: Mapping[str, Any],
    keep: int = KEEP,
    spare: Collection[int] = (),
) -> Path:
    """Commit a round; the newest ``keep`` rounds stay.

    Args:
        folder: made if absent; one run writes in it at a time (``lock.locked``).
        number: of the round, from 0.
        tensors: by dotted path; on any device, empty ones too. Lazy ones are in memory one at a time.
        meta: what JSON can hold, without NaN and infinities.
        keep: at least 1; older files go only after the new one is durable.
        spare: rounds that stay whatever their age, since somebody may still go on from them.

    Returns:
        The file's path.

    Raises:
        StorageError: it cannot be written; what was committed before is untouched.
    """
    note = json.dumps({"round": number, "meta": meta}, allow_nan=False)
    try:
        path = publish(folder, pieces(tensors, note), lambda content: f"round-{number:06d}-{content}.safetensors")
        others = [(n, p) for n, p in committed(folder) if n <= number and p != path]
        older = [(n, p) for n, p in others if n < number]
        aged = {p for n, p in older[: len(older) - (keep - 1)] if n not in spare}
        for stale in {p for n, p in others if n == number} | aged:
            stale.unlink()
    except OSError as fault:
        need = sum(t.nbytes for t in forms(tensors).values())
        rounds = [n for n, _ in committed(folder)]
        raise StorageError(
            f"cannot write round {number} to {folder} ({fault.strerror or fault}; it needs {need / 1e6:.1f} MB"
            f"{_free(folder)}); {f'rounds up to {rounds[-1]} are' if rounds else 'no round is'} kept; "
            "make room or mend the folder, then resume"
        ) from fault
    return path


def read(path: Path) -> Checkpoint:
    """Open one checkpoint, after its content was compared with its name.

    Allocates no tensor. Raises CheckpointError if the file is damaged or cannot be read, then or later.
    """
    name = NAME.fullmatch(path.name)
    if not name:
        raise CheckpointError(f"{path} is no checkpoint by its name; give the folder of a run")
    try:
        if sha256(path) != name[2]:
            raise ValueError("its content does not match the checksum in its name")
        tensors, note = _tensors(path, torch.empty)
        body = json.loads(note)
        if body["round"] != int(name[1]):
            raise ValueError(f"it holds round {body['round']}")
        return Checkpoint(int(name[1]), tensors, body["meta"], path)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as fault:
        raise _unusable(path, fault) from fault


def in_files(found: Checkpoint, folder: Path) -> Checkpoint:
    """The same round, its tensors in scratch files of a folder once they are asked for. Raises CheckpointError."""
    try:
        return replace(found, tensors=_tensors(found.path, partial(mapped, folder=folder))[0])
    except (OSError, ValueError) as fault:
        raise _unusable(found.path, fault) from fault


def newest(folder: Path) -> tuple[Checkpoint | None, dict[Path, str]]:
    """The newest checkpoint that is whole, and those passed over on the way, each with what is wrong with it.

    Returns (None, {}) where nothing was committed yet. Changes nothing; see ``set_aside``.

    Raises:
        CheckpointError: there are checkpoints, but none is whole.
    """
    corrupt: dict[Path, str] = {}
    for _, path in reversed(committed(folder)):
        try:
            return read(path), corrupt
        except CheckpointError as fault:
            corrupt[path] = str(fault)
    if corrupt:
        raise CheckpointError(
            f"all {len(corrupt)} checkpoints in {folder} are damaged; restore one from a backup, or start anew in "
            "another folder"
        )
    return None, corrupt


def set_aside(corrupt: Iterable[Path]) -> None:
    """Rename damaged checkpoints to ``.corrupt``, out of the way of later rounds. Raises StorageError."""
    for path in corrupt:
        try:
            path.replace(path.with_name(path.name + ".corrupt"))
        except OSError as fault:
            raise StorageError(f"cannot rename {path} ({fault.strerror}); mend the folder, then resume") from fault


def differing(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Dotted keys, sorted, of which two nested records say different things, or only one says anything.

    Tuples and lists of the same values are the same, as in JSON.
    """
    return sorted(_differing(json.loads(json.dumps(stored)), json.loads(json.dumps(now)), ""))


def _tensors(path: Path, make: Callable[..., Tensor]) -> tuple[Lazy, str]:
    """The tensors of a file, each read into what ``make(shape, dtype=)`` gives for it; and the note."""
    with opened(path) as file:
        size = path.stat().st_size
        entries, note = layout(file, size, size)
        begin = file.tell()
    shapes = {name: torch.empty(e.shape, dtype=e.dtype, device="meta") for name, e in entries.items()}
    return Lazy(shapes, partial(_tensor, path, begin, entries, make)), note


def _tensor(
    path: Path, begin: int, entries: Mapping[str, TensorEntry], make: Callable[..., Tensor], name: str
) -> Tensor:
    """One tensor of a checkpoint whose tensors' bytes begin at ``begin``."""
    try:
        with opened(path) as file:
            file.seek(begin + entries[name].begin)
            return fill(file, {name: entries[name]}, make)[name]
    except (OSError, ValueError) as fault:
        raise _unusable(path, fault) from fault


def _unusable(path: Path, fault: Exception) -> CheckpointError:
    return CheckpointError(f"{path} cannot be used ({fault}); restore it, or remove it")


def _differing(stored: Mapping[str, Any], now: Mapping[str, Any], prefix: str) -> list[str]:
    keys = []
    for key in stored.keys() | now.keys():
        if isinstance(stored.get(key), dict) and isinstance(now.get(key), dict):
            keys += _differing(stored[key], now[key], f"{prefix}{key}.")
        elif key not in stored or key not in now or stored[key] != now[key]:
            keys.append(prefix + key)
    return keys


def _free(folder: Path) -> str:
    try:
        return f", {shutil.disk_usage(folder).free / 1e6:.1f} MB are free"
    except OSError:
        return ""

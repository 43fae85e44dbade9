"""Checkpoints of committed rounds: one file each, complete or absent, with its own hash in its
name.

A round is committed when its file is durable. ``round-000007-<SHA-256>.safetensors`` holds every
tensor that the next round needs, those with the bytes of another one by reference, and one JSON
note for everything else. The hash in the name covers the whole content including the header, so
that one rename publishes both and any damage is detected.
"""

import json
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pomona.core.errors import CheckpointError, StorageError
from pomona.core.files import opened, publish_by_hash, sha256
from pomona.core.state import Lazy, NamedTensors, meta_tensors, only
from pomona.storage.equal_tensors import repeated
from pomona.storage.mapped_tensor import mapped
from pomona.storage.run_status import NAME, committed
from pomona.storage.safetensors_stream import (
    TensorEntry,
    are_counts,
    fill,
    json_object,
    layout,
    pieces,
    quoted,
)

SCHEMA = 3
"""Version of the names and notes in a checkpoint; increased by changes that older readers would
misinterpret.
"""
KEPT_ROUNDS = 2
"""Number of rounds kept."""
REPEATED = "repeated"
"""Key of a note: by tensor that is stored as numbers of another one, its name, their start, and the
tensor's shape.
"""
_DAMAGE = (OSError, ValueError, RecursionError)


@dataclass(frozen=True)
class Checkpoint:
    """A committed round: number, tensors by dotted path, other state as JSON, and file.

    Tensors are read from the file on each access, so they need not all fit into memory.
    """

    number: int
    tensors: Lazy
    meta: dict[str, Any]
    path: Path


def save(
    folder: Path,
    number: int,
    tensors: NamedTensors,
    meta: Mapping[str, Any],
    keep_rounds: int = KEPT_ROUNDS,
    spare: Collection[int] = (),
) -> Path:
    """Commit a round and delete all but the newest ``keep_rounds`` rounds.

    Args:
        folder: created if missing; only one run may write to it at a time (``lock.locked``).
        number: number of the round, from 0.
        tensors: by dotted path; on any device, may be empty. Lazy tensors are loaded one at a time.
        meta: a JSON value without NaN and infinities.
        keep_rounds: at least 1; older files are deleted only after the new one is durable.
        spare: rounds that are never deleted, because a client may still resume from them.

    Returns:
        The file's path.

    Raises:
        StorageError: it cannot be written; earlier commits are unchanged.
    """
    spans, shapes = repeated(tensors), meta_tensors(tensors)
    references = {name: [*span, list(shapes[name].shape)] for name, span in spans.items()}
    body = {"round": number, "meta": meta} | ({REPEATED: references} if references else {})
    note = json.dumps(body, allow_nan=False)
    stored = only(tensors, lambda name: name not in spans)
    try:
        path = publish_by_hash(
            folder,
            pieces(stored, note),
            lambda content: f"round-{number:06d}-{content}.safetensors",
        )
        for stale in _stale(folder, number, path, keep_rounds, spare):
            stale.unlink()
    except OSError as fault:
        size = sum(t.nbytes for t in meta_tensors(stored).values())
        rounds = [n for n, _ in committed(folder)]
        raise StorageError(
            f"cannot write round {number} to {folder} ({fault.strerror or fault}; it needs "
            f"{size / 1e6:.1f} MB{_free(folder)}); "
            f"{f'rounds up to {rounds[-1]} are' if rounds else 'no round is'} kept; make room or "
            "fix the folder, then resume"
        ) from fault
    return path


def _stale(
    folder: Path, number: int, path: Path, keep_rounds: int, spare: Collection[int]
) -> Iterator[Path]:
    """Yield other files of a round, and those older than the newest ``keep_rounds`` up to it."""
    files = [(n, p) for n, p in committed(folder) if n <= number and p != path]
    older = sum(n < number for n, _ in files)  # they come first
    for k, (n, file) in enumerate(files):
        if n == number or (k < older - (keep_rounds - 1) and n not in spare):
            yield file


def read(path: Path) -> Checkpoint:
    """Open a checkpoint after verifying its content against the hash in its name.

    Allocates no tensors. Raises CheckpointError if the file is damaged or unreadable, now or on
    later access.
    """
    name = NAME.fullmatch(path.name)
    if not name:
        raise CheckpointError(
            f"{path} does not have the name of a checkpoint; give the folder of a run"
        )
    try:
        if sha256(path) != name[2]:
            raise ValueError("its content does not match the checksum in its name")
        tensors, body = _content(path, torch.empty)
        number, meta = int(name[1]), body.get("meta")
        if body.get("round") != number:
            raise ValueError(f"it holds round {body.get('round')}")
        if not isinstance(meta, dict):
            raise ValueError("its meta is not an object")
        return Checkpoint(number, tensors, meta, path)
    except _DAMAGE as fault:
        raise _unusable(path, fault) from fault


def in_files(checkpoint: Checkpoint, folder: Path) -> Checkpoint:
    """Return the checkpoint with tensors that load into scratch files in a folder.

    Raises CheckpointError.
    """
    try:
        return replace(
            checkpoint, tensors=_content(checkpoint.path, partial(mapped, folder=folder))[0]
        )
    except _DAMAGE as fault:
        raise _unusable(checkpoint.path, fault) from fault


def newest(folder: Path) -> tuple[Checkpoint | None, dict[Path, str]]:
    """Return the newest intact checkpoint, and the newer ones that were skipped, each with its
    problem.

    Returns (None, {}) if nothing was committed yet. Changes nothing; see ``set_aside``.

    Raises:
        CheckpointError: there are checkpoints, but none is intact.
    """
    corrupt: dict[Path, str] = {}
    for _, path in reversed(committed(folder)):
        try:
            return read(path), corrupt
        except CheckpointError as fault:
            corrupt[path] = str(fault)
    if corrupt:
        raise CheckpointError(
            f"all {len(corrupt)} checkpoints in {folder} are damaged; restore one from a backup, "
            "or start over in another folder"
        )
    return None, corrupt


def set_aside(corrupt: Iterable[Path]) -> None:
    """Rename damaged checkpoints to ``.corrupt``, so that they do not block later rounds.

    Raises StorageError.
    """
    for path in corrupt:
        try:
            path.replace(path.with_name(path.name + ".corrupt"))
        except OSError as fault:
            raise StorageError(
                f"cannot rename {path} ({fault.strerror}); fix the folder, then resume"
            ) from fault


def differing(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Return the sorted dotted keys in which two nested records differ, including keys that only
    one has.

    Tuples and lists with the same values are equal, as in JSON.
    """
    return sorted(_differing(json.loads(json.dumps(stored)), json.loads(json.dumps(current)), ""))


def _content(path: Path, allocate: Callable[..., Tensor]) -> tuple[Lazy, dict[str, Any]]:
    """Return a file's lazy tensors, each read into ``allocate(shape, dtype=)``, and its note."""
    with opened(path) as file:
        size = path.stat().st_size
        entries, note = layout(file, size, size)
        data_start = file.tell()
    body = json_object(note)
    references = body.get(REPEATED, {})
    if not isinstance(references, dict) or references.keys() & entries.keys():
        raise ValueError(f"{REPEATED!r} is not an object, or has names of stored tensors")
    entries |= {name: _referenced(name, claim, entries) for name, claim in references.items()}
    shapes = {
        name: torch.empty(e.shape, dtype=e.dtype, device="meta") for name, e in entries.items()
    }
    return Lazy(shapes, partial(_tensor, path, data_start, entries, allocate)), body


def _referenced(name: str, claim: Any, stored: Mapping[str, TensorEntry]) -> TensorEntry:
    """Return the entry of a tensor whose numbers are those of a stored one from a start on."""
    match claim:
        case [str(source), start, [*shape]] if source in stored and are_counts([start, *shape]):
            entry = stored[source]
            first = entry.start + start * entry.dtype.itemsize
            end = first + prod(shape) * entry.dtype.itemsize
            if first < end <= entry.end:
                return TensorEntry(entry.dtype, tuple(shape), first, end)
    raise ValueError(f"{quoted(name)} refers to numbers that no stored tensor has")


def _tensor(
    path: Path,
    data_start: int,
    entries: Mapping[str, TensorEntry],
    allocate: Callable[..., Tensor],
    name: str,
) -> Tensor:
    """Read one tensor of a checkpoint whose tensor data starts at ``data_start``."""
    try:
        with opened(path) as file:
            file.seek(data_start + entries[name].start)
            return fill(file, {name: entries[name]}, allocate)[name]
    except (OSError, ValueError) as fault:
        raise _unusable(path, fault) from fault


def _unusable(path: Path, fault: Exception) -> CheckpointError:
    return CheckpointError(f"{path} cannot be used ({fault}); restore it, or remove it")


def _differing(stored: Mapping[str, Any], current: Mapping[str, Any], prefix: str) -> list[str]:
    keys = []
    for key in stored.keys() | current.keys():
        if isinstance(stored.get(key), dict) and isinstance(current.get(key), dict):
            keys += _differing(stored[key], current[key], f"{prefix}{key}.")
        elif key not in stored or key not in current or stored[key] != current[key]:
            keys.append(prefix + key)
    return keys


def _free(folder: Path) -> str:
    try:
        return f", {shutil.disk_usage(folder).free / 1e6:.1f} MB are free"
    except OSError:
        return ""

"""Storage of clients' states: in memory, or one memory-mapped file each; and the choice between the
two.

The system can evict memory that is mapped from a file at any time, after writing it to the disk.
Results are identical to the bit.
"""

import ctypes
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from pomona.config import Config
from pomona.core.errors import ConfigError
from pomona.core.state import apply, flatten, joined
from pomona.federation.round_plan import cohort_size
from pomona.storage.checkpoint import KEEP
from pomona.storage.mapped_array import machine_memory, process_memory, room
from pomona.storage.run_status import FOLDER, committed

S = TypeVar("S")
Hold = Callable[[Any], Any]  # moves a state to its storage
ALIGNED = 64  # bytes, as PyTorch aligns memory of its own


def as_is(state: S) -> S:
    """Keep a state where it is."""
    return state


def to_file(state: S) -> S:
    """Copy a state to an unnamed temporary file, which is deleted with its last tensor.

    Raises:
        StorageError: the temporary folder has too little space.
    """
    sizes = [-(-t.nbytes // ALIGNED) * ALIGNED for t in flatten(state, "state").values()]
    if not sum(sizes):
        return state
    _give_back()
    with room(sum(sizes), "clients' states", "raise state_memory") as file:
        # Not with numpy, whose maps hold a file descriptor each, of which a process has about a
        # thousand.
        whole = torch.from_file(
            f"/dev/fd/{file.fileno()}", shared=True, size=sum(sizes), dtype=torch.uint8
        )
    parts = iter(whole.split(sizes))
    return apply(lambda t: next(parts)[: t.nbytes].view(t.dtype).view(t.shape).copy_(t), state)


def working(states: Sequence[S]) -> S:
    """Join single-client states into one in memory, for a call to change."""
    if any(map(file_bytes, states)):
        _give_back()
    return joined(states)


def in_file(tensor: Tensor) -> bool:
    """Return whether a tensor is in a file."""
    return tensor.untyped_storage().filename is not None


def in_memory(tensor: Tensor) -> Tensor:
    """Return the tensor, copied if it is in a file, since tensors sent to another process must not
    be.
    """
    if not in_file(tensor):
        return tensor
    _give_back()
    return tensor.clone()


def file_bytes(state: object) -> int:
    """Return the bytes of the file with a state; 0 in memory."""
    tensors = flatten(state, "state").values()
    return max((t.untyped_storage().nbytes() for t in tensors if in_file(t)), default=0)


def _give_back() -> None:
    """Return freed memory to the system.

    glibc keeps freed blocks below 32 MB. Small long-lived blocks, such as replies, fragment the
    heap: each freed state leaves a gap too small for the next.
    """
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def require_training(
    config: Config, parameters: int, workers: int, nodes: Sequence[int] = ()
) -> None:
    """Raise ConfigError if training on a CPU cannot fit into memory, even without the network's
    activations.

    Counts what exists at the same time: the initial row, each process's network, and for each
    client in training its row, its gradient and the optimizer's moments. ``parameters``: numbers in
    a row of float32; ``nodes``: as ``choose``.
    """
    if config.device != "cpu":
        return
    row = 4 * parameters
    moments = 2 if config.optimizer.name != "sgd" else int(config.momentum > 0)
    cohort = cohort_size(config, config.clients)
    at_once, all_at_once = min(cohort, config.rows), min(cohort, workers * config.rows)
    one, whole = (
        row * (2 + at_once * (2 + moments)),
        row * (1 + workers + all_at_once * (2 + moments)),
    )
    have, where = _memory(nodes)
    bounds = (
        (one, at_once, max(nodes) if nodes else process_memory(), "a process"),
        (whole, all_at_once, have, where),
    )
    for need, trained, have, where in bounds:
        if need > have:
            held = (
                "initial row, network, rows, "
                f"gradients{f', {moments} of moments' if moments else ''}"
            )
            raise ConfigError(
                f"training {parameters:,} parameters needs at least {_gb(need)} ({held} of "
                f"{trained} at a time), and {where} may have {_gb(have)}; take a smaller "
                f"model{', fewer workers' if workers > 1 else ''}, or train a part of it "
                "(model.train)"
            )


def choose(
    config: Config,
    first: object,
    kept: int,
    workers: int,
    out: Path | None,
    nodes: Sequence[int] = (),
) -> tuple[Hold, list[str]]:
    """Choose memory or disk for clients' states, by ``state_memory``.

    Args:
        config: of the run.
        first: a client's initial state; the others' have the same size.
        kept: bytes of a client's copies of other clients' models. A round adds at most one new row
            per client, shared by all that have it.
        workers: number of processes in which clients train at the same time.
        out: the run's folder, for its checkpoints.
        nodes: bytes of memory of each node of the run's cluster; none: this machine's count.

    Returns:
        A function that moves a state to its storage, and a line for display unless that is memory.

    Raises:
        ConfigError: neither memory nor the disks have enough space.
    """
    one = sum(t.nbytes for t in flatten(first, "state").values())
    have, machine = _memory(nodes)
    states, copies = config.clients * one, kept * min(config.rounds + 1, config.clients)
    need, share = states + copies, config.state_memory if config.device == "cpu" else 1.0
    if need <= share * have:
        return as_is, []
    need_and_have = (
        f"what {config.clients} clients of {config.method.name} keep takes "
        f"{_gb(need)}, {machine} has {_gb(have)}"
    )
    remedy = "take fewer clients or a smaller model, for apple leave method.budget out"
    if config.device != "cpu":
        raise ConfigError(f"{need_and_have}; {remedy}")
    if (used := min(config.clients, workers * config.rows) * (one + kept)) > have:
        raise ConfigError(
            f"{need_and_have}, and training takes {_gb(used)} at a time; lower workers, {remedy}"
        )
    wanted = _wanted(states, copies, out, here=not nodes)
    if short := "; ".join(_short(wanted)):
        fits = "raise state_memory, " if need <= have else ""
        raise ConfigError(
            f"{need_and_have}, and files need {short}; free space, point TMPDIR elsewhere, "
            f"{fits}{remedy}"
        )
    limit = f"{config.state_memory:g} of {machine}'s {_gb(have)}"
    where = "its nodes' temporary folders" if nodes else tempfile.gettempdir()
    return to_file, [
        f"the clients' states take {_gb(need)}, more than {limit}: they lie in files in {where}"
    ]


def _memory(nodes: Sequence[int]) -> tuple[int, str]:
    return (sum(nodes), "the cluster") if nodes else (machine_memory(), "this machine")


def _wanted(states: int, copies: int, out: Path | None, here: bool) -> Iterator[tuple[Path, int]]:
    """Yield the bytes that a run will write, by existing folder: copies and states of two rounds if
    its clients are ``here``, checkpoints.
    """
    if here:
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
            yield (
                f"{_gb(sum(sizes))} in {' and '.join(map(str, folders))}, where {_gb(free)} are "
                "free"
            )


def _disk(wanted: tuple[Path, int]) -> int:
    return wanted[0].stat().st_dev


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"

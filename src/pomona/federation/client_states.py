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
from pomona.core.state import apply, concatenated, flatten
from pomona.federation.round_plan import cohort_size
from pomona.storage.checkpoint import KEPT_ROUNDS
from pomona.storage.mapped_array import machine_memory, process_memory, room
from pomona.storage.mapped_tensor import in_file
from pomona.storage.run_status import FOLDER, committed

S = TypeVar("S")
PlaceState = Callable[[Any], Any]  # moves a state to its storage
ALIGNED = 64  # bytes, as PyTorch aligns memory of its own


def unchanged(state: S) -> S:
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
        buffer = torch.from_file(
            f"/dev/fd/{file.fileno()}", shared=True, size=sum(sizes), dtype=torch.uint8
        )
    chunks = iter(buffer.split(sizes))
    return apply(lambda t: next(chunks)[: t.nbytes].view(t.dtype).view(t.shape).copy_(t), state)


def working(states: Sequence[S]) -> S:
    """Join single-client states into one in memory, for a call to change."""
    if any(map(file_bytes, states)):
        _give_back()
    return concatenated(states)


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
    process_rows, total_rows = min(cohort, config.rows), min(cohort, workers * config.rows)
    process_bytes = row * (2 + process_rows * (2 + moments))
    total_bytes = row * (1 + workers + total_rows * (2 + moments))
    available, machine = _memory(nodes)
    bounds = (
        (process_bytes, process_rows, max(nodes) if nodes else process_memory(), "a process"),
        (total_bytes, total_rows, available, machine),
    )
    for required, rows, available, machine in bounds:
        if required > available:
            contents = (
                "initial row, network, rows, "
                f"gradients{f', {moments} of moments' if moments else ''}"
            )
            raise ConfigError(
                f"training {parameters:,} parameters needs at least {_gb(required)} ({contents} of "
                f"{rows} at a time), and {machine} may have {_gb(available)}; take a smaller "
                f"model{', fewer workers' if workers > 1 else ''}, or train a part of it "
                "(model.train)"
            )


def choose(
    config: Config,
    state: object,
    copies_bytes: int,
    workers: int,
    folder: Path | None,
    nodes: Sequence[int] = (),
) -> tuple[PlaceState, list[str]]:
    """Choose memory or disk for clients' states, by ``state_memory``.

    Args:
        config: of the run.
        state: a client's initial state; the others' have the same size.
        copies_bytes: bytes of a client's copies of other clients' models. A round adds at most one
            new row per client, shared by all that have it.
        workers: number of processes in which clients train at the same time.
        folder: the run's folder, for its checkpoints.
        nodes: bytes of memory of each node of the run's cluster; none: this machine's count.

    Returns:
        A function that moves a state to its storage, and a line for display unless that is memory.

    Raises:
        ConfigError: neither memory nor the disks have enough space.
    """
    state_bytes = sum(t.nbytes for t in flatten(state, "state").values())
    available, machine = _memory(nodes)
    states = config.clients * state_bytes
    copies = copies_bytes * min(config.rounds + 1, config.clients)
    required, share = states + copies, config.state_memory if config.device == "cpu" else 1.0
    if required <= share * available:
        return unchanged, []
    shortage = (
        f"what {config.clients} clients of {config.method.name} keep takes "
        f"{_gb(required)}, {machine} has {_gb(available)}"
    )
    remedy = "take fewer clients or a smaller model, for apple leave method.budget out"
    if config.device != "cpu":
        raise ConfigError(f"{shortage}; {remedy}")
    used = min(config.clients, workers * config.rows) * (state_bytes + copies_bytes)
    if used > available:
        raise ConfigError(
            f"{shortage}, and training takes {_gb(used)} at a time; lower workers, {remedy}"
        )
    demands = _disk_demands(states, copies, folder, local=not nodes)
    if missing := "; ".join(_missing_space(demands)):
        remedy_memory = "raise state_memory, " if required <= available else ""
        raise ConfigError(
            f"{shortage}, and files need {missing}; free space, point TMPDIR elsewhere, "
            f"{remedy_memory}{remedy}"
        )
    limit = f"{config.state_memory:g} of {machine}'s {_gb(available)}"
    location = "its nodes' temporary folders" if nodes else tempfile.gettempdir()
    return to_file, [
        f"the clients' states take {_gb(required)}, more than {limit}: they are in files in "
        f"{location}"
    ]


def _memory(nodes: Sequence[int]) -> tuple[int, str]:
    return (sum(nodes), "the cluster") if nodes else (machine_memory(), "this machine")


def _disk_demands(
    states: int, copies: int, run_folder: Path | None, local: bool
) -> Iterator[tuple[Path, int]]:
    """Yield the bytes that a run will write, by existing folder: copies and states of two rounds if
    its clients are ``local``, checkpoints.
    """
    if local:
        yield Path(tempfile.gettempdir()), 2 * states + copies
    if run_folder:
        candidates = (run_folder, *run_folder.resolve().parents)
        existing = next(folder for folder in candidates if folder.is_dir())
        checkpoints = KEPT_ROUNDS + 1 - min(KEPT_ROUNDS, len(committed(run_folder / FOLDER)))
        yield existing, checkpoints * (states + copies)


def _missing_space(demands: Iterable[tuple[Path, int]]) -> Iterator[str]:
    """Yield the missing space per disk; folders on the same disk share its space."""
    for _, group in groupby(sorted(demands, key=_disk), key=_disk):
        folders, sizes = zip(*group, strict=True)
        free = shutil.disk_usage(folders[0]).free
        if sum(sizes) > free:
            yield (
                f"{_gb(sum(sizes))} in {' and '.join(map(str, folders))}, where {_gb(free)} are "
                "free"
            )


def _disk(demand: tuple[Path, int]) -> int:
    return demand[0].stat().st_dev


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"

"""Storage of clients' states: in memory, or one memory-mapped file each.

The system can evict memory that is mapped from a file at any time, after writing it to the disk. Results are identical
to the bit.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from pomona.core.state import apply, flatten, joined
from pomona.storage.mapped_array import room

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
        # Not with numpy, whose maps hold a file descriptor each, of which a process has about a thousand.
        whole = torch.from_file(f"/dev/fd/{file.fileno()}", shared=True, size=sum(sizes), dtype=torch.uint8)
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
    """Return the tensor, copied if it is in a file, since tensors sent to another process must not be."""
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

    glibc keeps freed blocks below 32 MB. Small long-lived blocks, such as replies, fragment the heap: each freed state
    leaves a gap too small for the next.
    """
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)

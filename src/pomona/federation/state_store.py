"""Storage of clients' states: in memory, or one memory-mapped file each.

Memory that is mapped from a file can be taken back by the system at any time, which writes it to the disk first. What a
method reads and writes is the same to the bit.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from pomona.core.state import apply, flatten, joined
from pomona.storage.mapped_array import room

S = TypeVar("S")
Hold = Callable[[Any], Any]  # a state -> the same state where it is kept
ALIGNED = 64  # bytes, as PyTorch aligns memory of its own


def as_is(state: S) -> S:
    """Keep a state where it is."""
    return state


def to_file(state: S) -> S:
    """A copy of a state in an unnamed temporary file, which goes with its last tensor.

    Raises:
        StorageError: the temporary folder has no room for it.
    """
    sizes = [-(-t.nbytes // ALIGNED) * ALIGNED for t in flatten(state, "state").values()]
    if not sum(sizes):
        return state
    _give_back()
    with room(sum(sizes), "clients' states", "raise state_memory") as file:
        # Not by numpy, whose maps hold a file descriptor each, of which a process has about a thousand.
        whole = torch.from_file(f"/dev/fd/{file.fileno()}", shared=True, size=sum(sizes), dtype=torch.uint8)
    parts = iter(whole.split(sizes))
    return apply(lambda t: next(parts)[: t.nbytes].view(t.dtype).view(t.shape).copy_(t), state)


def working(states: Sequence[S]) -> S:
    """States of one client each as one of all, in memory, for a call to change."""
    if any(map(file_bytes, states)):
        _give_back()
    return joined(states)


def in_file(tensor: Tensor) -> bool:
    """Whether a tensor lies in a file."""
    return tensor.untyped_storage().filename is not None


def in_memory(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy if it lies in a file: what travels to another process must not."""
    if not in_file(tensor):
        return tensor
    _give_back()
    return tensor.clone()


def file_bytes(state: object) -> int:
    """Bytes of the file that a state lies in; 0 in memory."""
    tensors = flatten(state, "state").values()
    return max((t.untyped_storage().nbytes() for t in tensors if in_file(t)), default=0)


def _give_back() -> None:
    """Return freed memory to the system.

    glibc keeps freed blocks below 32 MB. Small long-lived blocks, such as replies, fragment the heap: each freed state
    leaves a gap too small for the next.
    """
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)

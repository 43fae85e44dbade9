"""Large arrays: in memory, or memory-mapped from disk if they are too large."""

import math
import os
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pomona.core.errors import StorageError


def machine_memory() -> int:
    """Bytes of physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def process_memory() -> int:
    """Bytes that one process may have: those of the machine, or of its limit (``ulimit -v``)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return machine_memory() if soft == resource.RLIM_INFINITY else min(soft, machine_memory())


def allocate(shape: tuple[int, ...], dtype: DTypeLike, memory_share: float) -> NDArray[np.generic]:
    """An uninitialised array, memory-mapped if it is larger than ``memory_share`` of the machine's memory.

    The file behind a mapped array lies in the temporary folder, has no name, and goes with the array.

    Raises:
        StorageError: the temporary folder has no room for it.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size <= memory_share * machine_memory():
        return np.empty(shape, dtype)
    return mapped(shape, dtype, "data", "raise data.memory_share")


def mapped(shape: tuple[int, ...], dtype: DTypeLike, what: str, remedy: str) -> NDArray[np.generic]:
    """An uninitialised array in a file of the temporary folder; processes that are forked share it.

    Raises StorageError as ``room``.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if not size:
        return np.empty(shape, dtype)
    with room(size, what, remedy) as file:
        return np.memmap(file, dtype, mode="r+", shape=shape)


def reserve(handle: int, size: int) -> None:
    """Give an empty file its size. Raises OSError: a full disk is an error here, not a bus error at a later write."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, size)
    else:
        os.truncate(handle, size)


@contextmanager
def room(size: int, what: str, remedy: str) -> Iterator[IO[bytes]]:
    """A file of ``size`` bytes in the temporary folder, without a name; it goes with the last that is mapped of it.

    Raises:
        StorageError: there is no room for ``what``; the message ends in the remedy.
    """
    try:
        with tempfile.TemporaryFile() as file:
            reserve(file.fileno(), size)
            yield file
    except OSError as fault:
        raise StorageError(
            f"no room for {size} bytes of {what} in {tempfile.gettempdir()} ({fault}); "
            f"free space, point TMPDIR elsewhere, or {remedy}"
        ) from fault

"""Large arrays: in memory, or memory-mapped from disk if too large."""

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
    """Return the bytes of physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def process_memory() -> int:
    """Return the bytes of memory available to one process: the machine's, or its limit (``ulimit
    -v``).
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return machine_memory() if soft == resource.RLIM_INFINITY else min(soft, machine_memory())


def allocate(shape: tuple[int, ...], dtype: DTypeLike, memory_share: float) -> NDArray[np.generic]:
    """Allocate an uninitialised array, memory-mapped if larger than ``memory_share`` of the
    machine's memory.

    The file of a mapped array is unnamed, lies in the temporary folder, and is deleted with the
    array.

    Raises:
        StorageError: the temporary folder has too little space.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size <= memory_share * machine_memory():
        return np.empty(shape, dtype)
    return mapped(shape, dtype, "data", "raise data.memory_share")


def mapped(
    shape: tuple[int, ...], dtype: DTypeLike, content: str, remedy: str
) -> NDArray[np.generic]:
    """Allocate an uninitialised array in a temporary file that forked processes share.

    Raises StorageError as ``room`` does.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if not size:
        return np.empty(shape, dtype)
    with room(size, content, remedy) as file:
        return np.memmap(file, dtype, mode="r+", shape=shape)


def reserve(handle: int, size: int) -> None:
    """Allocate an empty file's space.

    Raises OSError on a full disk, instead of a bus error on a later write.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, size)
    else:
        os.truncate(handle, size)


@contextmanager
def room(size: int, content: str, remedy: str) -> Iterator[IO[bytes]]:
    """Open an unnamed temporary file of ``size`` bytes, which is deleted with its last mapping.

    Raises:
        StorageError: there is no space for ``content``; the message ends with the remedy.
    """
    try:
        with tempfile.TemporaryFile() as file:
            reserve(file.fileno(), size)
            yield file
    except OSError as fault:
        raise StorageError(
            f"no room for {size} bytes of {content} in {tempfile.gettempdir()} ({fault}); "
            f"free space, point TMPDIR elsewhere, or {remedy}"
        ) from fault

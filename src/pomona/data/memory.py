"""Where large arrays live: in memory, or on disk when they would crowd it out."""

import math
import os
import tempfile

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pomona.errors import StorageError


def machine_memory() -> int:
    """Bytes of physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def allocate(shape: tuple[int, ...], dtype: DTypeLike, memory_share: float) -> NDArray[np.generic]:
    """An uninitialised array, memory-mapped if it is larger than ``memory_share`` of the machine's memory.

    The file behind a mapped array lies in the temporary folder, has no name, and goes with the array.

    Raises:
        StorageError: the temporary folder has no room for it.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size <= memory_share * machine_memory():
        return np.empty(shape, dtype)
    try:
        with tempfile.TemporaryFile() as file:
            if hasattr(os, "posix_fallocate"):  # a full disk is an error here, not a bus error at some later write
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            return np.memmap(file, dtype, mode="r+", shape=shape)
    except OSError as fault:
        raise StorageError(
            f"no room for {size} bytes of data in {tempfile.gettempdir()} ({fault}); "
            "free space, point TMPDIR elsewhere, or raise data.memory_share"
        ) from fault

"""Reading of foreign files in a child process with bounded memory and processor time.

Decoders are large libraries, and a damaged or hostile file may make one of them crash, loop or fill
the memory. All of it happens in a forked child: whatever a file does ends that child alone, and is
one ``DataError`` here. Results come back as JSON and as plain arrays, never as pickled objects.
"""

import faulthandler
import json
import logging
import mmap
import os
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import prod
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pomona.core import errors
from pomona.core.errors import DataError, OutOfMemoryError, PomonaError, StorageError, worded
from pomona.storage.mapped_array import machine_memory, process_memory, reserve

BASE_SECONDS = 120  # of processor time, for libraries to load and for small files
SECONDS_PER_MEGABYTE = 2.0  # ten times what gzip and JPEG 2000 need, the slowest decoders
LEAST_MEMORY = 2 << 30  # bytes: what libraries take before a file is opened, and any usual file
MEMORY_SHARE = 0.5  # of the machine's memory
MOST_FACTS = 1 << 28  # bytes of JSON
ALIGNMENT = 64  # bytes, as Arrow asks for


class CrashError(DataError):
    """A library that crashed on a file, or used up the processor time of its process."""


class Reply(NamedTuple):
    """What the child returns: ``facts`` of JSON's types, and numeric arrays."""

    facts: Any
    arrays: Sequence[NDArray[Any]] = ()


def read_in_child(work: Callable[[], Reply], source: object, size: int = 0) -> Reply:
    """Run ``work`` in a forked child, with limits, and return its reply.

    Args:
        work: reads files; may write into a ``shared_number`` or a ``LateArray``; changes to
            other objects are lost.
        source: what is read, for messages.
        size: bytes of the files, from which the limit of processor time follows.

    Returns:
        The reply, its arrays in memory of their own.

    Raises:
        PomonaError: as ``work`` does.
        OutOfMemoryError: it needs more memory than a reader may have.
        CrashError: the child crashed, or used up its processor time.
        Exception: any other exception of ``work``, as a RuntimeError with its type and text.
    """
    with tempfile.TemporaryFile() as answer:
        with warnings.catch_warnings():
            # the child only reads: it uses no thread, lock or connection of this process
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:
            _answer(work, answer.fileno(), size)
        try:
            _, status = os.waitpid(child, 0)
        except BaseException:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
        if os.WIFSIGNALED(status):
            raise _crash(os.WTERMSIG(status), source)
        return _received(answer.fileno(), source)


def shared_number() -> NDArray[np.int64]:
    """Return an array (1,) of 0 that a child of ``read_in_child`` can change for this process."""
    return np.ndarray((1,), np.int64, mmap.mmap(-1, 8))


class LateArray:
    """An array that a child of ``read_in_child`` allocates as soon as it knows the shape, and that
    this process has afterwards, without a copy.

    It lies in memory, or in a temporary file if larger than ``memory_share`` of the machine's
    memory. Use it as a context manager around ``read_in_child``.
    """

    def __init__(self, memory_share: float) -> None:
        self._most = memory_share * machine_memory()
        self._disk = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        in_memory = hasattr(os, "memfd_create")
        self._memory = os.fdopen(os.memfd_create("array"), "r+b") if in_memory else self._disk

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._disk.close()
        self._memory.close()

    def allocate(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return the array, zeroed, in the child.

        Raises StorageError if the temporary folder has too little space.
        """
        size = prod(shape) * np.dtype(dtype).itemsize
        if not size:
            return np.empty(shape, dtype)
        try:
            if size <= self._most:
                os.truncate(self._memory.fileno(), size)  # pages are taken when they are written
                return np.ndarray(shape, dtype, mmap.mmap(self._memory.fileno(), size))
            reserve(self._disk.fileno(), size)
            return np.memmap(self._disk, dtype, "r+", shape=shape)
        except OSError as fault:
            raise StorageError(
                f"no room for {size} bytes of data in {tempfile.gettempdir()} ({fault}); free "
                "space, point TMPDIR elsewhere, or raise data.memory_share"
            ) from fault

    def received(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return the array that the child allocated in this shape and dtype, in this process.

        In memory, writes stay in this process; on disk, forked processes share them.
        """
        size = prod(shape) * np.dtype(dtype).itemsize
        if not size:
            return np.empty(shape, dtype)
        if size > self._most:
            return np.memmap(self._disk, dtype, "r+", shape=shape)
        pages = mmap.mmap(self._memory.fileno(), size, access=mmap.ACCESS_COPY)
        return np.ndarray(shape, dtype, pages)


def _answer(work: Callable[[], Reply], file: int, size: int) -> None:
    """Run ``work`` and write its reply or its error to the file; ends this process."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
        faulthandler.disable()  # a crash is one line of the parent's
        logging.disable()  # the words of libraries are not the reader's
        sys.unraisablehook = lambda _: None
        _limit(size)
        try:
            reply = work()
            _send(file, {"facts": reply.facts}, reply.arrays)
        except MemoryError as fault:
            _send(file, {"error": "OutOfMemoryError", "lines": [str(fault)]})
        except PomonaError as fault:
            base = next(c for c in type(fault).__mro__ if c.__module__ == errors.__name__)
            _send(file, {"error": base.__name__, "lines": list(map(str, fault.args))})
        except Exception as fault:
            _send(file, {"error": "", "lines": [worded(fault), traceback.format_exc()]})
    finally:
        os._exit(0)


def _limit(size: int) -> None:
    """Limit this process's own memory and its processor time."""
    seconds = BASE_SECONDS + int(size / 1e6 * SECONDS_PER_MEGABYTE)
    _lower(resource.RLIMIT_CPU, seconds)
    memory = max(LEAST_MEMORY, int(MEMORY_SHARE * process_memory()))
    _lower(resource.RLIMIT_DATA, _private_memory() + memory)
    _lower(resource.RLIMIT_CORE, 0)


def _lower(limit: int, value: int) -> None:
    soft, hard = resource.getrlimit(limit)
    for bound in (soft, hard):
        value = value if bound == resource.RLIM_INFINITY else min(value, bound)
    with suppress(OSError, ValueError):  # not every system has every limit
        resource.setrlimit(limit, (value, hard))


def _private_memory() -> int:
    """Return the bytes of writable private memory that this process has already mapped."""
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123 - no bytes of a foreign file
            return int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _send(file: int, facts: dict[str, Any], arrays: Sequence[NDArray[Any]] = ()) -> None:
    """Write facts and arrays: the length of the facts, the facts, then each array's bytes."""
    arrays = [np.ascontiguousarray(array) for array in arrays]
    layouts = [(array.dtype.str, array.shape) for array in arrays]
    text = json.dumps({**facts, "arrays": layouts}, allow_nan=True).encode()
    end = 8 + len(text)
    with os.fdopen(os.dup(file), "wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for array in arrays:
            stream.write(bytes(-end % ALIGNMENT))
            end += -end % ALIGNMENT + array.nbytes
            if array.nbytes:
                stream.write(array.data.cast("B"))


def _received(file: int, source: object) -> Reply:
    """Return what ``_send`` wrote. Raises what the child raised."""
    length = int.from_bytes(os.pread(file, 8, 0), "little")
    total = os.fstat(file).st_size
    if not 0 < length <= min(MOST_FACTS, total):
        raise DataError(f"{source}: its reader process ended without a result; check the file")
    message = json.loads(os.pread(file, length, 8))
    if "error" in message:
        raise _raised(message["error"], message["lines"], source)
    arrays, end = [], 8 + length
    for name, shape in message["arrays"]:
        end += -end % ALIGNMENT
        dtype = np.dtype(name)
        size = prod(shape) * dtype.itemsize
        if dtype.kind not in "biuf" or min(shape, default=0) < 0 or end + size > total:
            raise DataError(f"{source}: its reader process sent a damaged result; check the file")
        arrays.append(_mapped(file, tuple(shape), dtype, end, size))
        end += size
    return Reply(message["facts"], arrays)


def _mapped(
    file: int, shape: tuple[int, ...], dtype: np.dtype[Any], start: int, size: int
) -> NDArray[Any]:
    """Map an array of the file privately: pages are loaded on use, and writes stay here."""
    if not size:
        return np.empty(shape, dtype)
    page = start - start % mmap.ALLOCATIONGRANULARITY
    pages = mmap.mmap(file, start - page + size, access=mmap.ACCESS_COPY, offset=page)
    return np.ndarray(shape, dtype, pages, offset=start - page)


def _raised(class_name: str, lines: Sequence[str], source: object) -> Exception:
    """Return the error of a child."""
    if class_name == "OutOfMemoryError" and len(lines) < 2:
        return OutOfMemoryError(
            f"{source}: reading it takes more memory than a reader process may have; check the "
            "file, store it in smaller files, or take a machine with more memory"
        )
    error = getattr(errors, class_name, None)
    if isinstance(error, type) and issubclass(error, PomonaError):
        return error(*lines)
    return RuntimeError("\n".join(lines))


def _crash(number: int, source: object) -> CrashError:
    """Return the error for a child that a signal ended."""
    if number == signal.SIGXCPU:
        return CrashError(
            f"{source}: reading it takes more processor time than files of this size need; check "
            "the file, or write it again with another program"
        )
    name = signal.Signals(number).name if number in {*signal.Signals} else str(number)
    return CrashError(
        f"{source}: the library that reads it crashed ({name}); write it with another program"
    )

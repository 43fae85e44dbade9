"""One run folder, one process: a lock that the kernel releases, however its holder ends."""

import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pydantic import Field

from pomona.core.bounds import Line
from pomona.core.errors import LockedError, StorageError
from pomona.core.settings import Settings

LOCK = ".lock"
LONGEST = 4096  # bytes that are read of the file
_held: set[int] = set()  # file descriptors; a forked worker must not keep its dead parent's lock alive


class Holder(Settings):
    """Last holder of a lock, and when it was taken."""

    pid: Annotated[int, Field(strict=True, ge=1, lt=2**31)]
    host: Line
    since: Line


def said(handle: int) -> Holder:
    """Holder named in a lock's file. Raises OSError, and ValueError for other content."""
    return Holder.model_validate_json(os.pread(handle, LONGEST, 0))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder for this process alone; its forked children do not hold it.

    The file that carries the lock stays, says who took it last, and means nothing by itself.

    Args:
        folder: made if absent.

    Raises:
        LockedError: another process, or another part of this one, holds it.
        StorageError: the folder cannot be written or its file system has no locks.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as fault:
        raise StorageError(f"cannot write {folder} ({fault.strerror}); give another folder") from fault
    _held.add(handle)
    try:
        _take(handle, folder)
        yield
    finally:
        _held.discard(handle)
        os.close(handle)


@contextmanager
def waiting_lock(path: Path) -> Iterator[None]:
    """Hold a lock file, made if absent, against other processes for a moment; waits for it. Raises OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def require_own(folder: Path) -> None:
    """Raise StorageError unless all in a folder are files and folders of its own.

    Through a symbolic link a file elsewhere would be overwritten; on a pipe a run would wait for ever. The folder
    itself may be a link.
    """
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(place, name)
            if path.is_symlink():
                raise StorageError(f"{path} is a symbolic link, which a run does not follow; put the file itself there")
            if not (path.is_file() or path.is_dir()):
                raise StorageError(f"{path} is a pipe, a socket or a device; remove it")


def _take(handle: int, folder: Path, patience: float = 2.0) -> None:
    """Take the lock, or refuse after ``patience`` seconds: a dead holder's newborn child may still let go of it."""
    until = time.monotonic() + patience
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)
        os.ftruncate(handle, 0)
        since = datetime.now(UTC).isoformat(timespec="seconds")
        os.write(handle, Holder(pid=os.getpid(), host=socket.gethostname(), since=since).model_dump_json().encode())
    except OSError as fault:
        if fault.errno in {errno.EWOULDBLOCK, errno.EACCES}:
            raise LockedError(
                f"{folder} is in use{_holder(handle)}; wait until it ends, or give another folder"
            ) from None
        raise StorageError(f"cannot lock {folder} ({fault.strerror}); give a folder on a local disk") from fault


def _holder(handle: int) -> str:
    try:
        holder = said(handle)
        return f" by process {holder.pid} on {holder.host} since {holder.since}"
    except (OSError, ValueError):
        return ""


def _drop() -> None:
    for handle in _held:
        with suppress(OSError):
            os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_drop)

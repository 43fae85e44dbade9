"""Lock of a run folder, released by the kernel however the process ends."""

import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pydantic import Field

from pomona.core.bounds import Line
from pomona.core.errors import LockedError, StorageError
from pomona.core.files import writing
from pomona.core.settings import Settings

LOCK = ".lock"
LONGEST = 4096  # maximum bytes read from the file
# file descriptors, closed in forked workers so that they do not keep a dead parent's lock
_handles: set[int] = set()


class Holder(Settings):
    """Last holder of a lock, and the time it was taken."""

    pid: Annotated[int, Field(strict=True, ge=1, lt=2**31)]
    host: Line
    since: Line


def read_holder(handle: int) -> Holder:
    """Read the holder from a lock file. Raises OSError, and ValueError for invalid content."""
    return Holder.model_validate_json(os.pread(handle, LONGEST, 0))


@contextmanager
def locked(folder: Path, shared: bool = False) -> Iterator[None]:
    """Lock a run folder for this process; forked children do not hold the lock.

    The lock file is never deleted. It records the last holder; its existence does not mean that the
    lock is held.

    Args:
        folder: created if missing.
        shared: whether others may hold it too, if they share it.

    Raises:
        LockedError: another process, or another part of this one, holds the lock.
        StorageError: the folder is not writable, or its file system has no locks.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(
            folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o664
        )
    except OSError as fault:
        raise StorageError(
            f"cannot write {folder} ({fault.strerror}); give another folder"
        ) from fault
    _handles.add(handle)
    try:
        _acquire(handle, folder, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        _handles.discard(handle)
        os.close(handle)


def in_use(folder: Path) -> bool:
    """Return whether another process holds the lock of a run folder."""
    try:
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # no lock yet; or one that starting the run will report
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


@contextmanager
def waiting_lock(
    path: Path, mode: int = 0o600, waits: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Hold a lock file, creating it if missing, and wait for other processes to release it.

    ``mode``: its permissions, less the umask; ``waits``: called once before a wait.

    Raises StorageError if it cannot be locked.
    """
    with writing(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        with writing(path):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waits()
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def require_own(folder: Path) -> None:
    """Raise StorageError unless a folder contains only regular files and folders.

    A symbolic link would cause a file elsewhere to be overwritten, and a pipe would block the run.
    The folder itself may be a link.
    """
    if "\0" in str(folder):
        raise StorageError(
            f"the folder {str(folder)!r} has a NUL character in its name; give another folder"
        )
    for folder_path, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(folder_path, name)
            if path.is_symlink():
                raise StorageError(
                    f"{path} is a symbolic link, which a run does not follow; put the file itself "
                    "there"
                )
            if not (path.is_file() or path.is_dir()):
                raise StorageError(f"{path} is a pipe, a socket or a device; remove it")


def _acquire(handle: int, folder: Path, operation: int, patience: float = 2.0) -> None:
    """Take the lock within ``patience`` seconds; a dead holder's newly forked child may still
    release it.
    """
    deadline = time.monotonic() + patience
    try:
        while True:
            try:
                fcntl.flock(handle, operation | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        os.ftruncate(handle, 0)
        timestamp = datetime.now(UTC).isoformat(timespec="seconds")
        os.write(
            handle,
            Holder(pid=os.getpid(), host=socket.gethostname(), since=timestamp)
            .model_dump_json()
            .encode(),
        )
    except OSError as fault:
        if fault.errno in {errno.EWOULDBLOCK, errno.EACCES}:
            raise LockedError(
                f"{folder} is in use{_holder(handle)}; wait until it ends, or give another folder"
            ) from None
        raise StorageError(
            f"cannot lock {folder} ({fault.strerror}); give a folder on a local disk"
        ) from fault


def _holder(handle: int) -> str:
    try:
        holder = read_holder(handle)
        return f" by process {holder.pid} on {holder.host} since {holder.since}"
    except (OSError, ValueError):
        return ""


def _drop() -> None:
    for handle in _handles:
        with suppress(OSError):
            os.close(handle)
    _handles.clear()


os.register_at_fork(after_in_child=_drop)

"""Files: reading regular files only, with a known and limited length; writing so that a file is
complete or absent, even after a kill.

A pipe may never end, a device may produce data for ever, and a sparse file of a few kilobytes on
disk may fill the memory. Each can be hidden in a folder from somebody else under the name of a
settings file. All readers open files with this module; a test searches the source for others.
Refusals raise OSError, as a missing file does, with a phrase in ``strerror``; ``writing`` turns
errors of a disk into StorageError.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import BufferedReader
from pathlib import Path, PurePath
from typing import TypeVar

from pomona.core.bounds import MOST_BYTES, plain
from pomona.core.errors import PomonaError, StorageError

MAX_LOG_BYTES = 2**30  # maximum bytes of a log that is read whole
WEIGHTS = 2**34  # maximum bytes of a weights file that is held in memory
BLOCK = 2**20
# opening a pipe may block without the last
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK

E = TypeVar("E", bound=PomonaError)


def expanded(path: str | Path) -> Path:
    """Return a path with ``~`` replaced by the account's folder.

    If that is unknown, of another account or in a container, the path is returned unchanged;
    usually no such file exists.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def opened(path: Path, max_bytes: int | None = None, follow: bool = True) -> BufferedReader:
    """Open a regular file for reading.

    Args:
        path: the file's path, as given by a user.
        max_bytes: maximum length in bytes; None if the caller checks the length itself before it
            allocates memory.
        follow: whether the path may be a symbolic link; its target must be a regular file in any
            case.

    Raises:
        OSError: the file is missing or too long, or the path is a folder, pipe, socket or device.
    """
    handle = _handle(path, follow)
    try:
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file", str(path))
        if not stat.S_ISREG(status.st_mode):
            raise _special(path)
        if max_bytes is not None and status.st_size > max_bytes:
            raise _longer(path, max_bytes, f"{status.st_size}")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _handle(path: Path, follow: bool) -> int:
    try:
        return os.open(path, _FLAGS if follow else _FLAGS | os.O_NOFOLLOW)
    except ValueError:
        raise OSError(errno.EINVAL, "its name holds a NUL", str(path)) from None
    except OSError as fault:
        if fault.errno == errno.ENXIO:
            raise _special(path) from None
        if fault.errno == errno.ELOOP and not follow:
            reason = "it is a symbolic link, not the file itself"
            raise OSError(errno.ELOOP, reason, str(path)) from None
        raise


def content(path: Path, max_bytes: int = MOST_BYTES, follow: bool = True) -> bytes:
    """Read a regular file of at most ``max_bytes`` bytes. Raises OSError as ``opened`` does."""
    with opened(path, max_bytes, follow) as file:
        # a single read would allocate the maximum length in advance
        blocks, remaining = list[bytes](), max_bytes + 1
        while remaining and (block := file.read(min(BLOCK, remaining))):
            blocks.append(block)
            remaining -= len(block)
    data = b"".join(blocks)
    if len(data) > max_bytes:  # the file has grown, or the system does not report its length
        raise _longer(path, max_bytes, f"more than {max_bytes}")
    return data


def text(path: Path, max_bytes: int = MOST_BYTES, follow: bool = True) -> str:
    """Read a regular file as UTF-8.

    Raises OSError as ``opened`` does, and UnicodeDecodeError (a ValueError).
    """
    return content(path, max_bytes, follow).decode("utf-8").replace("\r\n", "\n")


def blocks(file: BufferedReader) -> Iterator[bytes]:
    """Yield the rest of an open file in blocks of one megabyte. Raises OSError."""
    return iter(partial(file.read, BLOCK), b"")


def sha256(path: Path) -> str:
    """Return a regular file's SHA-256 in hex, reading it in blocks.

    Raises OSError as ``opened`` does.
    """
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def regular(path: Path, fault: Callable[[str], E]) -> Path:
    """Return the path after checking that it is a regular file, for libraries that open files by
    name only.

    Args:
        path: the file's path, as given by a user.
        fault: creates the error to raise from a sentence with the path and the problem.

    Raises:
        E: the file is one that ``opened`` refuses.
    """
    try:
        opened(path).close()
    except OSError as error:
        raise fault(f"cannot read {plain(str(path))} ({error.strerror})") from None
    return path


def _special(path: Path) -> OSError:
    return OSError(errno.EINVAL, "it is a pipe, a socket or a device, not a file", str(path))


def _longer(path: Path, max_bytes: int, size: str) -> OSError:
    return OSError(errno.EFBIG, f"it has {size} bytes; the limit is {max_bytes}", str(path))


# one name per folder: the next write overwrites what a killed process left
UNFINISHED = ".unfinished"


def publish(
    path: Path,
    pieces: Iterable[bytes | memoryview],
    unfinished: str = UNFINISHED,
    mode: int = 0o666,
) -> Path:
    """Write a file durably and only then rename it to its final name, replacing any older one.

    Args:
        path: the final name; its folder is created if missing.
        pieces: the content, in order.
        unfinished: temporary file name; no other process may use it in this folder.
        mode: permissions of the file from its creation on, less the umask.

    Returns:
        The path; the file is durable on return.

    Raises:
        OSError: any step failed; it names a file. Before the rename nothing has changed; after it
            the new file is complete.
    """
    return publish_by_hash(path.parent, pieces, lambda _: path.name, unfinished, mode)


def publish_by_hash(
    folder: Path,
    pieces: Iterable[bytes | memoryview],
    name: Callable[[str], str] = str,
    unfinished: str = UNFINISHED,
    mode: int = 0o666,
) -> Path:
    """Write a file as ``publish`` does, under the ``name`` made from its content's SHA-256 in hex,
    the hash itself by default.
    """
    if not folder.is_dir():
        folder.mkdir(parents=True)
        sync(folder.parent)
    temporary, content = folder / unfinished, hashlib.sha256()
    try:
        with open(anew(temporary), "xb", opener=partial(os.open, mode=mode)) as file:
            for piece in pieces:
                content.update(piece)
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        path = temporary.replace(folder / name(content.hexdigest()))
    except BaseException as fault:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)  # frees the space on a full disk
        if isinstance(fault, OSError) and fault.errno and not fault.filename:  # a write or a sync
            fault.filename = str(temporary)
        raise
    sync(folder)
    return path


def anew(path: Path) -> Path:
    """Return the path after removing any file there, so that the next write creates a new file.

    A folder from somebody else may contain links, and writing through one would overwrite a file
    elsewhere. Raises OSError if the path is a folder or cannot be removed.
    """
    path.unlink(missing_ok=True)
    return path


def safe_path(root: Path, *names: str | Path) -> Path:
    """Return a path inside an output folder, with no links below ``root``; ``root`` itself may be a
    link.

    A folder from somebody else may contain links to other folders, whose files would be
    overwritten. Raises StorageError for a link, and for a path outside the folder.
    """
    path = root
    for component in PurePath(*names).parts:
        path = path / component
        if component in {"..", "/"} or path.is_symlink():
            problem = "leads elsewhere; give another name"
            if path.is_symlink():
                problem = "is a link; remove it"
            raise StorageError(f"{path} {problem}; files are written only inside their own folder")
    return path


def sync(folder: Path) -> None:
    """Make a folder's directory entries durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def probe(folder: Path) -> None:
    """Check before any computation that files can be published in a folder; leaves no file behind.

    Raises:
        OSError: writing is not possible.
    """
    publish(folder / ".probe", [b"\0" * 4096]).unlink()


@contextmanager
def reading(
    path: Path, remedy: str, fault: Callable[[str], Exception] = StorageError
) -> Iterator[None]:
    """Turn disk errors into StorageError, or another error, with the path and what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise fault(f"{error.filename or path} cannot be read ({reason}); {remedy}") from None


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn disk errors into StorageError with the path."""
    try:
        yield
    except OSError as fault:
        reason = fault.strerror or str(fault)
        raise StorageError(
            f"cannot write {path} ({reason}); free some space, or give another folder"
        ) from fault

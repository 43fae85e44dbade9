"""The one door through which files are opened for reading: plain files only, of a known and bounded length.

A pipe never ends, a device answers for ever, and a sparse file of a few kilobytes on the disk fills the memory: each
may lie under the name of a settings file in a folder that somebody sent. All readers open their files here; a test
reads the source for others. A refusal is an OSError, as that of a missing file is; its ``strerror`` is half a sentence.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import TypeVar

from pomona.core.bounds import MOST_BYTES, plain
from pomona.core.errors import PomonaError

LONG = 2**30  # bytes of a file that grows by a line an event, and is read whole
WEIGHTS = 2**34  # bytes of a file of weights that is held whole
BLOCK = 2**20
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK  # without the last, opening a pipe may never return

E = TypeVar("E", bound=PomonaError)


def opened(path: Path, most: int | None = None, follow: bool = True) -> BufferedReader:
    """A plain file, open for reading at its start.

    Args:
        path: of a file that somebody named.
        most: bytes that it may have; None for a reader that looks at the length itself before it takes memory.
        follow: whether the name may be a symbolic link; what is opened is a plain file in either case.

    Raises:
        OSError: there is nothing, a folder, a pipe, a socket, a device or a longer file.
    """
    try:
        handle = os.open(path, _FLAGS if follow else _FLAGS | os.O_NOFOLLOW)
    except ValueError:
        raise OSError(errno.EINVAL, "its name holds a NUL", str(path)) from None
    except OSError as fault:
        if fault.errno == errno.ENXIO:
            raise _special(path) from None
        if fault.errno == errno.ELOOP and not follow:
            raise OSError(errno.ELOOP, "it is a symbolic link, not the file itself", str(path)) from None
        raise
    try:
        facts = os.fstat(handle)
        if stat.S_ISDIR(facts.st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file", str(path))
        if not stat.S_ISREG(facts.st_mode):
            raise _special(path)
        if most is not None and facts.st_size > most:
            raise _longer(path, most, f"{facts.st_size}")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def content(path: Path, most: int = MOST_BYTES, follow: bool = True) -> bytes:
    """The bytes of a plain file of at most so many. Raises OSError as ``opened``."""
    with opened(path, most, follow) as file:
        parts, left = list[bytes](), most + 1  # a single read would take memory for all of it beforehand
        while left and (part := file.read(min(BLOCK, left))):
            parts.append(part)
            left -= len(part)
    found = b"".join(parts)
    if len(found) > most:  # it has grown, or is one of those whose length the system does not say
        raise _longer(path, most, f"more than {most}")
    return found


def text(path: Path, most: int = MOST_BYTES, follow: bool = True) -> str:
    """The text of a plain file in UTF-8. Raises OSError as ``opened``, and UnicodeDecodeError, a ValueError."""
    return content(path, most, follow).decode("utf-8").replace("\r\n", "\n")


def blocks(file: BufferedReader) -> Iterator[bytes]:
    """The rest of an open file, a megabyte at a time. Raises OSError."""
    return iter(partial(file.read, BLOCK), b"")


def sha256(path: Path) -> str:
    """SHA-256 in hex of a plain file, which is not held in memory. Raises OSError as ``opened``."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def regular(path: Path, fault: Callable[[str], E]) -> Path:
    """The same path, once it is seen to name a plain file: for a library that opens files by their names alone.

    Args:
        path: of a file that somebody named.
        fault: makes the error to raise from a sentence that names the path and says what is wrong.

    Raises:
        E: what ``opened`` refuses.
    """
    try:
        opened(path).close()
    except OSError as wrong:
        raise fault(f"cannot read {plain(str(path))} ({wrong.strerror})") from None
    return path


def _special(path: Path) -> OSError:
    return OSError(errno.EINVAL, "it is a pipe, a socket or a device, not a file", str(path))


def _longer(path: Path, most: int, found: str) -> OSError:
    return OSError(errno.EFBIG, f"it has {found} bytes, at most {most} are read", str(path))

"""Audit log of a server or a silo: an append-only, hash-chained file of who did what and when.

The format is that of ``storage.hash_chain``. Values are names, numbers, hashes and short reasons: never a key, a path,
or data. To detect that the end was cut off or rewritten, copy the last chain elsewhere from time to time.
"""

import errno
import fcntl
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from pomona.core.errors import StorageError
from pomona.core.files import opened
from pomona.storage.hash_chain import START, chained, parsed

TORN = "torn"
BLOCK = 2**14  # bytes that are read at a time from a file's end on
LINE = 2**20  # bytes of a line at most: a longer one was not written here


class Audit:
    """An audit file, opened for appending; several processes may write it at the same time.

    Args:
        path: made if absent, readable by its owner alone. A last line that a kill cut short stays as it is; the chain
            goes on after it with a line that says so.

    Raises:
        StorageError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._chain, self._end = START, -1  # of what this process has seen of the file; -1 before it has looked
        with _writing(path):
            self._handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def __enter__(self) -> "Audit":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._handle)

    def write(self, event: str, **fields: Any) -> None:
        """Append one line; it is on the disk when this returns. Raises StorageError."""
        with _writing(self.path):
            fcntl.flock(self._handle, fcntl.LOCK_EX)
            try:
                self._catch_up()
                self._append(event, fields)
                os.fsync(self._handle)
            finally:
                fcntl.flock(self._handle, fcntl.LOCK_UN)

    def _catch_up(self) -> None:
        """Take in what others have written since; of what was there before the last whole line alone."""
        size = os.fstat(self._handle).st_size
        if self._end < 0 or size - self._end > BLOCK:
            found = _backwards(self._handle, self.path)
            self._end = next((at for at, text in found if text and parsed(text) is not None), 0)
        news = os.pread(self._handle, size - self._end, self._end)
        self._end += len(news)
        lines = list(_lines(BytesIO(news), self.path))
        chains = [line["chain"] for _, line in lines if line is not None]
        self._chain = chains[-1] if chains else self._chain
        if news and not news.endswith(b"\n"):
            self._end += os.write(self._handle, b"\n")
            text, line = lines[-1]
            if line is None:
                self._append(TORN, {"bytes": len(text)})

    def _append(self, event: str, fields: dict[str, Any]) -> None:
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **fields}
        text, chain = chained(self._chain, line)
        if os.write(self._handle, text) != len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._chain, self._end = chain, self._end + len(text)


def read(path: Path) -> list[dict[str, Any]]:
    """All whole lines, without judging them. Raises StorageError if there is no such file."""
    return list(whole(path))


def whole(path: Path) -> Iterator[dict[str, Any]]:
    """As ``read``, one after the other: logs are long."""
    with _reading(path) as file:
        yield from (line for _, line in _lines(file, path) if line is not None)


def last_line(path: Path, events: Collection[str], agreement: str) -> dict[str, Any] | None:
    """The last line of some events that is about a study's hash, if it follows the line before it in the chain.

    Read from the end until there, and the chain is followed for that line alone: logs are long, and this is asked for
    every message. ``verify`` follows it from the beginning. Raises StorageError.
    """
    if not path.exists():
        return None
    named, said = agreement.encode(), [f'"event": "{event}"'.encode() for event in events]
    with _reading(path) as file:
        texts = (text for _, text in _backwards(file.fileno(), path))
        for text in texts:
            line = parsed(text) if named in text and any(event in text for event in said) else None
            if line and line.get("agreement") == agreement and line.get("event") in events:
                chain = line.pop("chain")
                before = next((found for other in texts if (found := parsed(other)) is not None), {"chain": START})
                return line if chained(str(before["chain"]), line) == (text + b"\n", chain) else None
    return None


def verify(path: Path) -> int | None:
    """The number of the first broken line, from 1; None where the whole file is as it was written.

    A line that a kill cut short is not broken if the next line says that it was: ``event`` is "torn" with its length.
    """
    chain = START
    torn: tuple[int, int] | None = None  # number and length of a piece that the next line must own up to
    with _reading(path) as file:
        for number, (text, line) in enumerate(_lines(file, path), start=1):
            if line is None:
                if torn:
                    return torn[0]
                torn = number, len(text)
                continue
            written = line.pop("chain")
            if torn and (line.get("event"), line.get("bytes")) != (TORN, torn[1]):
                return torn[0]
            if chained(chain, line) != (text + b"\n", written):
                return number
            chain, torn = written, None
    return torn[0] if torn else None


def _lines(file: BinaryIO, path: Path) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Each line and what it holds; None where that is no whole line of an audit file."""
    while text := file.readline(LINE + 1):
        _require_short(text, path)
        yield (text := text.removesuffix(b"\n")), parsed(text)


def _backwards(handle: int, path: Path) -> Iterator[tuple[int, bytes]]:
    """What stands between line feeds, from the end on, each with the byte at which it begins."""
    at = end = os.fstat(handle).st_size
    held = b""  # the end of a line whose beginning is not read yet
    while at:
        at -= (size := min(BLOCK, at))
        held, *texts = (os.pread(handle, size, at) + held).split(b"\n")
        for text in reversed(texts):
            end -= len(text)
            yield end, text
            end -= 1
        _require_short(held, path)
    yield 0, held


def _require_short(text: bytes, path: Path) -> None:
    if len(text) > LINE:
        raise StorageError(
            f"{path} has a line of more than {LINE} bytes: it is not an audit file; restore it from a backup"
        )


@contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    try:
        with opened(path) as file:
            yield file
    except OSError as fault:
        raise StorageError(f"{path} cannot be read ({fault.strerror}); name a folder with an audit file") from None


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as fault:
        raise StorageError(f"cannot write {path} ({fault.strerror}); make room, then go on") from fault

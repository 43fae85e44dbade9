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
from pathlib import Path
from typing import Any

from pomona.core.errors import StorageError
from pomona.core.files import LONG, content
from pomona.storage.hash_chain import START, chained, parsed

TORN = "torn"
BLOCK = 2**14  # bytes of a file's end that are read first


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
        if self._end < 0:
            self._end = self._last_line()
        news = os.pread(self._handle, os.fstat(self._handle).st_size - self._end, self._end)
        self._end += len(news)
        lines = list(_lines(news))
        chains = [line["chain"] for _, line in lines if line is not None]
        self._chain = chains[-1] if chains else self._chain
        if news and not news.endswith(b"\n"):
            self._end += os.write(self._handle, b"\n")
            text, line = lines[-1]
            if line is None:
                self._append(TORN, {"bytes": len(text)})

    def _last_line(self) -> int:
        """Where the last whole line begins; 0 where there is none."""
        size = os.fstat(self._handle).st_size
        length = min(BLOCK, size)
        while length:
            tail, begin = os.pread(self._handle, length, size - length), size - length
            end = len(tail)
            first = (tail.find(b"\n") + 1 or end) if begin else 0  # what comes before is a part of a line
            while first <= (at := tail.rfind(b"\n", 0, max(end - 1, 0)) + 1) < end:
                if parsed(tail[at:end].removesuffix(b"\n")) is not None:
                    return begin + at
                end = at
            length = min(4 * length, size) if begin else 0
        return 0

    def _append(self, event: str, fields: dict[str, Any]) -> None:
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **fields}
        text, chain = chained(self._chain, line)
        if os.write(self._handle, text) != len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._chain, self._end = chain, self._end + len(text)


def read(path: Path) -> list[dict[str, Any]]:
    """All whole lines, without judging them. Raises StorageError if there is no such file."""
    return [line for _, line in _lines(_content(path)) if line is not None]


def last_line(path: Path, events: Collection[str], agreement: str) -> dict[str, Any] | None:
    """The last line of some events that is about a study's hash, if it follows the line before it in the chain.

    Lines about other studies are not read, and the chain is followed for that line alone: logs are long, and this is
    asked for every message. ``verify`` follows it from the beginning. Raises StorageError.
    """
    if not path.exists():
        return None
    texts, named = _content(path).split(b"\n"), agreement.encode()
    for number in range(len(texts) - 1, -1, -1):
        line = parsed(texts[number]) if named in texts[number] else None
        if line and line.get("agreement") == agreement and line.get("event") in events:
            chain = line.pop("chain")
            before = _chain_before(texts[:number])
            return line if chained(before, line) == (texts[number] + b"\n", chain) else None
    return None


def _chain_before(texts: list[bytes]) -> str:
    """The chain of the last whole line."""
    whole = (line for text in reversed(texts) if (line := parsed(text)) is not None)
    return str(next(whole, {"chain": START})["chain"])


def verify(path: Path) -> int | None:
    """The number of the first broken line, from 1; None where the whole file is as it was written.

    A line that a kill cut short is not broken if the next line says that it was: ``event`` is "torn" with its length.
    """
    chain = START
    torn: tuple[int, int] | None = None  # number and length of a piece that the next line must own up to
    for number, (text, line) in enumerate(_lines(_content(path)), start=1):
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


def _lines(content: bytes) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Each line and what it holds; None where that is no whole line of an audit file."""
    *whole, rest = content.split(b"\n")
    for text in whole:
        yield text, parsed(text)
    if rest:
        yield rest, parsed(rest)


def _content(path: Path) -> bytes:
    try:
        return content(path, LONG)
    except OSError as fault:
        raise StorageError(f"{path} cannot be read ({fault.strerror}); name a folder with an audit file") from None


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as fault:
        raise StorageError(f"cannot write {path} ({fault.strerror}); make room, then go on") from fault

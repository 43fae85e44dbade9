"""Audit log of a server or a silo: an append-only, hash-chained file of who did what and when.

The format is that of ``storage.hash_chain``. Values are names, numbers, hashes and short reasons:
never a key, a path, or data. To detect that the end was cut off or rewritten, copy the last chain
elsewhere from time to time.
"""

import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import Field

from pomona.core.bounds import Count, Sha256
from pomona.core.errors import StorageError
from pomona.core.files import opened, reading, writing
from pomona.core.settings import Settings
from pomona.storage.hash_chain import START, chained, parsed
from pomona.storage.lock import waiting_lock
from pomona_federation.json_store import read_json, write_json

TORN = "torn"
BLOCK = 2**14  # bytes per read, from a file's end backwards
LINE = 2**20  # longest line in bytes; a longer one was not written by Audit
LIMITED = "audited.json"  # in the folder state/node/
REFUSED = "refused"
REFUSALS = 20  # an hour
REMEMBERED = 100  # recent lines by their hashes
HOUR = 3600  # seconds


class Audit:
    """An audit file, opened for appending; several processes may write to it at the same time.

    Args:
        path: created if absent, readable only by its owner. A last line cut short by a kill is left
            as it is; the next line continues the chain and records its length.

    Raises:
        StorageError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # bytes of the file seen by this process; -1 before the first look
        self._chain, self._end = START, -1
        with _writing(path):
            self._handle = os.open(
                path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )

    def __enter__(self) -> "Audit":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)

    def write(self, event: str, **fields: Any) -> None:
        """Append one line and sync it to disk. Raises StorageError."""
        with _writing(self.path):
            fcntl.flock(self._handle, fcntl.LOCK_EX)
            try:
                self._catch_up()
                self._append(event, fields)
                os.fsync(self._handle)
            finally:
                fcntl.flock(self._handle, fcntl.LOCK_UN)

    def _catch_up(self) -> None:
        """Read lines appended by other processes; on first use only the last complete line.

        In a file that was cut meanwhile the chain continues from the lines lost, so that ``verify``
        names the place.
        """
        size = os.fstat(self._handle).st_size
        truncated = size < self._end
        if truncated or self._end < 0 or size - self._end > BLOCK:
            self._end = _last_complete_line(self._handle, self.path)
        news = os.pread(self._handle, size - self._end, self._end)
        self._end += len(news)
        lines = list(_lines(BytesIO(news), self.path))
        chains = [line["chain"] for _, line in lines if line is not None]
        self._chain = chains[-1] if chains and not truncated else self._chain
        if news and not news.endswith(b"\n"):
            self._end += os.write(self._handle, b"\n")
            text, line = lines[-1]
            if line is None:
                self._append(TORN, {"bytes": len(text)})

    def _append(self, event: str, fields: dict[str, Any]) -> None:
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "event": event,
            **fields,
        }
        text, chain = chained(self._chain, line)
        if os.write(self._handle, text) != len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._chain, self._end = chain, self._end + len(text)


def write_line(state: Path, event: str, **fields: Any) -> None:
    """Append one line to the audit file in the state folder of a server or a silo. Raises
    StorageError.
    """
    with Audit(state / "audit.jsonl") as audit:
        audit.write(event, **fields)


def complete_lines(path: Path) -> Iterator[dict[str, Any]]:
    """All complete lines, unverified. Raises StorageError if there is no such file."""
    with _reading(path) as file:
        yield from (line for _, line in _lines(file, path) if line is not None)


def restored_from(state: Path) -> str:
    """When the backup was made from which a kit was last restored; "" for none.

    Raises StorageError.
    """
    path = state / "audit.jsonl"
    lines = complete_lines(path) if path.exists() else ()
    backups = [str(line.get("made")) for line in lines if line.get("event") == "restored"]
    return backups[-1] if backups else ""


def tail(path: Path, events: Collection[str], agreement: str) -> dict[str, Any] | None:
    """The last line among some events about an agreement's hash, if it follows the previous line in
    the chain.

    Reads backwards from the end and checks the chain for that line only, because logs are long and
    every message asks for this. ``verify`` checks the chain from the beginning. Raises
    StorageError.
    """
    if not path.exists():
        return None
    with _reading(path) as file:
        texts = (text for _, text in _backwards(file.fileno(), path))
        for text in texts:
            line = parsed(text) if agreement.encode() in text else None
            if line and line.get("agreement") == agreement and line.get("event") in events:
                chain = line.pop("chain")
                previous = next(filter(None, map(parsed, texts)), {"chain": START})
                return (
                    line if chained(str(previous["chain"]), line) == (text + b"\n", chain) else None
                )
    return None


def verify(path: Path) -> int | None:
    """The number of the first broken line, from 1; None if the whole file is intact.

    A line cut short by a kill is not broken if the next line records it: ``event`` is "torn", with
    the length.
    """
    chain = START
    # number and length of a torn piece that the next line must record
    torn: tuple[int, int] | None = None
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
    """Each line with its parsed content; None for what is not a complete line of an audit file."""
    while text := file.readline(LINE + 1):
        _require_short(text, path)
        yield (text := text.removesuffix(b"\n")), parsed(text)


def _backwards(handle: int, path: Path) -> Iterator[tuple[int, bytes]]:
    """The text between line feeds, from the end backwards, each with its start offset."""
    offset = line_start = os.fstat(handle).st_size
    partial = b""  # the tail of a line whose beginning has not been read yet
    while offset:
        offset -= (size := min(BLOCK, offset))
        partial, *texts = (os.pread(handle, size, offset) + partial).split(b"\n")
        for text in reversed(texts):
            line_start -= len(text)
            yield line_start, text
            line_start -= 1
        _require_short(partial, path)
    yield 0, partial


def _last_complete_line(handle: int, path: Path) -> int:
    """The offset of the last line that is not torn; 0 without one."""
    lines = _backwards(handle, path)
    return next((offset for offset, text in lines if text and parsed(text) is not None), 0)


def _require_short(text: bytes, path: Path) -> None:
    if len(text) > LINE:
        raise StorageError(
            f"{path} has a line of more than {LINE} bytes: it is not an audit file; restore it "
            "from a backup"
        )


@contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    with reading(path, "name a folder with an audit file"), opened(path) as file:
        yield file


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    with writing(path):
        yield


class AuditedHour(Settings):
    """One hour of the log: hashes of its last lines, refusals, and lines suppressed since the last
    written one.
    """

    hour: Count = 0
    lines: tuple[Sha256, ...] = Field((), max_length=REMEMBERED)
    refusals: Count = 0
    unwritten: Count = 0


def write_limited(state: Path, event: str, **fields: Any) -> None:
    """Write a line to a silo's audit log, rate-limited so that no server can fill it.

    Raises StorageError.

    Within an hour a repeated line is written once, and refusals a few times; others are counted,
    and the next written line reports their number as ``unwritten``.
    """
    folder, hour = state / "node", int(time.time() // HOUR)
    line = hashlib.sha256(json.dumps([event, fields], sort_keys=True).encode()).hexdigest()
    with writing(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with waiting_lock(folder / ".audited.lock"):
            counts = _read_hour(folder / LIMITED)
            if counts.hour != hour:
                counts = AuditedHour(hour=hour, unwritten=counts.unwritten)
            if line in counts.lines or (event == REFUSED and counts.refusals >= REFUSALS):
                counts = counts.model_copy(update={"unwritten": counts.unwritten + 1})
            else:
                suppressed = {"unwritten": counts.unwritten} if counts.unwritten else {}
                write_line(state, event, **fields, **suppressed)
                lines = (*counts.lines, line)[-REMEMBERED:]
                counts = AuditedHour(
                    hour=hour, lines=lines, refusals=counts.refusals + (event == REFUSED)
                )
            write_json(folder / LIMITED, counts)


def _read_hour(path: Path) -> AuditedHour:
    with suppress(StorageError):  # counting starts anew
        return read_json(AuditedHour, path) or AuditedHour()
    return AuditedHour()

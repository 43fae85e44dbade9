"""Process logs: lines with UTC time, level and round, without colours; each file has one writer and
readers merge them.

A line: ``2026-11-22T06:42:04.123Z INFO     [round 3] text``. At ``LIMIT`` bytes it becomes FILE.1.
"""

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import IO, Generic, Protocol, TypeVar

from pomona.core.bounds import Count, Sha256
from pomona.core.errors import StorageError
from pomona.core.files import MAX_LOG_BYTES, content, opened
from pomona.core.settings import Settings


@dataclass(frozen=True, order=True)
class LogLine:
    """One line; ``time`` in ISO 8601, UTC, "" without a time; ``round`` None if unknown."""

    time: str
    process: str
    level: str = field(compare=False)
    round: int | None = field(compare=False)
    text: str = field(compare=False)


def parsed(process: str, text: str, time: str = "") -> LogLine:
    """One line of a file; ``time`` is that of the previous line, for lines without one."""
    match = LINE.fullmatch(text)
    if not match:
        return LogLine(time, process, "INFO", None, text)
    timestamp, level, number, message = match.groups()
    return LogLine(timestamp, process, level.strip(), int(number) if number else None, message)


@dataclass
class LogReader:
    """Reads all logs of a folder, each line once."""

    folder: Path
    _read: dict[Path, tuple[int, int]] = field(default_factory=dict)  # of each file: inode, bytes

    def new(self) -> list[LogLine]:
        """All complete lines since the last call, by time; lines of one process keep their
        order.
        """
        lines = [line for path in sorted(self.folder.glob("*.log")) for line in self._unread(path)]
        return sorted(lines, key=lambda line: line.time)

    def last(self, count: int) -> list[LogLine]:
        """The last lines of the current and rotated logs, by time."""
        rotated = [
            line
            for path in sorted(self.folder.glob("*.log.1"))
            for line in _lines(path.name.removesuffix(".log.1"), content(path, MAX_LOG_BYTES))
        ]
        lines = sorted([*rotated, *self.new()], key=lambda line: line.time)
        return lines[max(0, len(lines) - count) :]

    def _unread(self, path: Path) -> Iterator[LogLine]:
        with opened(path) as file:
            inode = os.fstat(file.fileno()).st_ino
            last_inode, offset = self._read.get(path, (inode, 0))
            file.seek(
                offset if last_inode == inode and offset <= os.fstat(file.fileno()).st_size else 0
            )
            position = file.tell()
            data = file.read()
            data = data[: data.rfind(b"\n") + 1]
            self._read[path] = inode, position + len(data)
        yield from _lines(path.stem, data)


def _lines(process: str, data: bytes) -> Iterator[LogLine]:
    time = ""
    for text in data.decode(errors="replace").splitlines():
        line = parsed(process, text, time)
        time = line.time
        yield line


LIMIT = 20_000_000  # bytes of a file before it is rotated
LONGEST = 20_000  # characters of a line
SERVER, APP, SUPERVISOR = "server.log", "app.log", "supervisor.log"

COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
# As Flower and uvicorn begin their lines: "INFO :      text", "2026-11-22T06:42:04.123Z INFO
# [uvicorn.error] text".
LEVEL = re.compile(
    r"(?:[\d-]{10}T[\d:.]+Z )?(DEBUG|INFO|WARNING|ERROR|CRITICAL)(?:\s*:|(?= \[))\s*"
)
LINE = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) ([A-Z ]{8}) (?:\[round (\d{1,6})\] )?(.*)", re.DOTALL
)


@dataclass(frozen=True)
class LogFile:
    """A log that only its owner can read. A full disk loses lines and ends nothing.

    Args:
        path: of the file.
    """

    path: Path

    def write(self, text: str, level: str = "INFO", number: int | None = None) -> None:
        """Append text, with the time on each line."""
        timestamp = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3]
        head = f"{timestamp}Z {level:<8} " + ("" if number is None else f"[round {number}] ")
        lines = [plain_line(line) for line in text.splitlines()]
        data = "".join(f"{head}{line}\n" for line in lines if line.strip()).encode(errors="replace")
        with suppress(OSError):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            handle = os.open(self.path, os.O_WRONLY | flags, 0o600)
            try:
                if os.fstat(handle).st_size > LIMIT:
                    self.path.replace(self.path.with_name(f"{self.path.name}.1"))
                os.write(handle, data)
            finally:
                os.close(handle)

    def tee(self, echo: Callable[[str], None]) -> Callable[[str], None]:
        """A function that writes text here, and echoes it with the time."""

        def write(text: str) -> None:
            self.write(text)
            echo(f"{clock()} {text}")

        return write


def clock() -> str:
    """The time now, in UTC, for people."""
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}Z"


def plain_line(text: str) -> str:
    """Text as one line without colours and terminal control sequences."""
    return "".join(c if c.isprintable() else " " for c in COLOURS.sub("", text[:LONGEST])).rstrip()


class OutputLog:
    """Writes the output of a child process and its descendants, until the last of them has
    ended.
    """

    def __init__(self, output: IO[bytes], log: LogFile) -> None:
        self._thread = Thread(target=_copy, args=(output, log), daemon=True)
        self._thread.start()

    def settle(self, seconds: float = 1.0) -> None:
        """Wait until everything is written, at most ``seconds``, as a descendant may still hold the
        output.
        """
        self._thread.join(seconds)


def _copy(output: IO[bytes], log: LogFile) -> None:
    level = "INFO"  # default level of a line: that of the previous line, as in a traceback
    with output:
        while line := output.readline(LONGEST):
            text = plain_line(line.decode(errors="replace"))
            if match := LEVEL.match(text):
                level, text = match[1], text[match.end() :]
            log.write(text, level)


class LogHandler(logging.Handler):
    """Writes log records of this process; ``round`` is the current round."""

    def __init__(self, log: LogFile) -> None:
        super().__init__(logging.INFO)
        self.log = log
        self.round: int | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, with its traceback, if any."""
        with suppress(Exception):  # a fault of the log must not fail the run
            self.log.write(self.format(record), record.levelname, self.round)


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Write this process's log to a file, and any exception that ends the block; only the innermost
    block logs.
    """
    logger, handler = logging.getLogger("pomona"), LogHandler(LogFile(path))
    level, outer = logger.level, [h for h in logger.handlers if isinstance(h, LogHandler)]
    logger.setLevel(logging.INFO)
    for existing in outer:
        logger.removeHandler(existing)
    logger.addHandler(handler)
    try:
        yield
    except Exception:
        logger.exception("this ends the process")
        raise
    finally:
        logger.removeHandler(handler)
        for existing in outer:
            logger.addHandler(existing)
        logger.setLevel(level)


def at_round(number: int) -> None:
    """Set the round of the following lines."""
    for handler in logging.getLogger("pomona").handlers:
        if isinstance(handler, LogHandler):
            handler.round = number


class Mark(Settings):
    """A position in a file: where the last seen line begins and ends, and its SHA-256."""

    begin: Count = 0
    end: Count = 0
    sha256: Sha256 = hashlib.sha256().hexdigest()


class RewrittenError(StorageError):
    """The file no longer has the last seen line in its place."""


def lines_after(path: Path, mark: Mark) -> Iterator[tuple[bytes, Mark]]:
    """Complete lines after a mark, each with the mark after it; a last line without a line feed is
    left for later.

    Args:
        path: of the file; a missing file has no lines.
        mark: ``Mark()`` for the beginning.

    Raises:
        RewrittenError: the marked line has changed or is gone.
        StorageError: the file cannot be read.
    """
    try:
        with opened(path) as file:
            file.seek(mark.begin)
            if hashlib.sha256(file.read(mark.end - mark.begin)).hexdigest() != mark.sha256:
                raise RewrittenError(
                    f"{path} was rewritten: the line that ended at byte {mark.end} is a different "
                    "one now"
                )
            position = mark.end
            for text in file:
                if not text.endswith(b"\n"):
                    return
                following = Mark(
                    begin=position,
                    end=position + len(text),
                    sha256=hashlib.sha256(text).hexdigest(),
                )
                position = following.end
                yield text[:-1], following
    except FileNotFoundError:
        if mark.end:
            raise RewrittenError(f"{path} is gone") from None
    except OSError as fault:
        raise StorageError(
            f"{path} cannot be read ({fault.strerror}); fix its permissions"
        ) from None


class Content(Protocol):
    """What a file's lines add up to."""

    def add_line(self, line: bytes) -> object:
        """Add a line."""


T = TypeVar("T", bound=Content)


@dataclass
class Followed(Generic[T]):
    """A growing file of lines and the content read so far: ``look`` adds new lines.

    Args:
        path: of the file.
        factory: makes the content before the first line.
    """

    path: Path
    factory: Callable[[], T]
    _mark: Mark = field(default_factory=Mark)
    _content: T | None = None

    def read_new(self) -> T:
        """The current content; a rewritten file, as after a resume, is read again.

        Raises StorageError.
        """
        if self._content is None:
            self._content = self.factory()
        try:
            self._read(self._content)
        except RewrittenError:
            self._content, self._mark = self.factory(), Mark()
            self._read(self._content)
        return self._content

    def _read(self, content: T) -> None:
        for line, mark in lines_after(self.path, self._mark):
            content.add_line(line)
            self._mark = mark

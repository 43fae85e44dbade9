"""Process logs: lines with UTC time, level and round, without colours; each file has one writer and readers merge them.

A line: ``2026-11-22T06:42:04.123Z INFO     [round 3] text``. A file that grows over ``LIMIT`` bytes becomes FILE.1.
"""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import IO

LIMIT = 20_000_000  # bytes of a file before it is rotated
LONGEST = 20_000  # characters of a line
SERVER, APP, SUPERVISOR = "server.log", "app.log", "supervisor.log"

COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
# As Flower and uvicorn begin their lines: "INFO :      text", "2026-11-22T06:42:04.123Z INFO [uvicorn.error] text".
LEVEL = re.compile(r"(?:[\d-]{10}T[\d:.]+Z )?(DEBUG|INFO|WARNING|ERROR|CRITICAL)(?:\s*:|(?= \[))\s*")
LINE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) ([A-Z ]{8}) (?:\[round (\d{1,6})\] )?(.*)", re.DOTALL)


@dataclass(frozen=True)
class LogFile:
    """A log that only its owner can read. A full disk loses lines and ends nothing.

    Args:
        path: of the file.
    """

    path: Path

    def write(self, text: str, level: str = "INFO", number: int | None = None) -> None:
        """Append text, with the time on each line."""
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3]
        head = f"{now}Z {level:<8} " + ("" if number is None else f"[round {number}] ")
        lines = [plain_line(line) for line in text.splitlines()]
        data = "".join(f"{head}{line}\n" for line in lines if line.strip()).encode(errors="replace")
        with suppress(OSError):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if os.fstat(handle).st_size > LIMIT:
                    self.path.replace(self.path.with_name(f"{self.path.name}.1"))
                os.write(handle, data)
            finally:
                os.close(handle)


def plain_line(text: str) -> str:
    """Text as one line without colours and terminal control sequences."""
    return "".join(c if c.isprintable() else " " for c in COLOURS.sub("", text[:LONGEST])).rstrip()


class OutputLog:
    """Writes the output of a child process and its descendants, until the last of them has ended."""

    def __init__(self, output: IO[bytes], log: LogFile) -> None:
        self._thread = Thread(target=_copy, args=(output, log), daemon=True)
        self._thread.start()

    def settle(self, seconds: float = 1.0) -> None:
        """Wait until everything is written, at most ``seconds``, as a descendant may still hold the output."""
        self._thread.join(seconds)


def _copy(output: IO[bytes], log: LogFile) -> None:
    level = "INFO"  # default level of a line: that of the previous line, as in a traceback
    with output:
        while line := output.readline(LONGEST):
            text = plain_line(line.decode(errors="replace"))
            if named := LEVEL.match(text):
                level, text = named[1], text[named.end() :]
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
    """Write this process's log to a file, and any exception that ends the block; only the innermost block logs."""
    logger, handler = logging.getLogger("pomona"), LogHandler(LogFile(path))
    level, outer = logger.level, [h for h in logger.handlers if isinstance(h, LogHandler)]
    logger.setLevel(logging.INFO)
    for one in outer:
        logger.removeHandler(one)
    logger.addHandler(handler)
    try:
        yield
    except Exception:
        logger.exception("this ends the process")
        raise
    finally:
        logger.removeHandler(handler)
        for one in outer:
            logger.addHandler(one)
        logger.setLevel(level)


def at_round(number: int) -> None:
    """Set the round of the following lines."""
    for handler in logging.getLogger("pomona").handlers:
        if isinstance(handler, LogHandler):
            handler.round = number

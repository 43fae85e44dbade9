"""Reading of logs: all processes of a server or silo, merged by time."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pomona.core.files import LONG, content, opened
from pomona_federation.supervision.process_logs import LINE


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
    found = LINE.fullmatch(text)
    if not found:
        return LogLine(time, process, "INFO", None, text)
    when, level, number, rest = found.groups()
    return LogLine(when, process, level.strip(), int(number) if number else None, rest)


@dataclass
class LogReader:
    """Reads all logs of a folder, each line once."""

    folder: Path
    _read: dict[Path, tuple[int, int]] = field(default_factory=dict)  # of each file: inode, bytes

    def new(self) -> list[LogLine]:
        """All complete lines since the last call, by time; lines of one process keep their order."""
        lines = [line for path in sorted(self.folder.glob("*.log")) for line in self._since(path)]
        return sorted(lines, key=lambda line: line.time)

    def last(self, count: int) -> list[LogLine]:
        """The last lines of the current and rotated logs, by time."""
        before = [
            line
            for path in sorted(self.folder.glob("*.log.1"))
            for line in _lines(path.name.removesuffix(".log.1"), content(path, LONG))
        ]
        lines = sorted([*before, *self.new()], key=lambda line: line.time)
        return lines[max(0, len(lines) - count) :]

    def _since(self, path: Path) -> Iterator[LogLine]:
        with opened(path) as file:
            inode = os.fstat(file.fileno()).st_ino
            known, at = self._read.get(path, (inode, 0))
            file.seek(at if known == inode and at <= os.fstat(file.fileno()).st_size else 0)
            begun = file.tell()
            data = file.read()
            data = data[: data.rfind(b"\n") + 1]
            self._read[path] = inode, begun + len(data)
        yield from _lines(path.stem, data)


def _lines(process: str, data: bytes) -> Iterator[LogLine]:
    time = ""
    for text in data.decode(errors="replace").splitlines():
        line = parsed(process, text, time)
        time = line.time
        yield line

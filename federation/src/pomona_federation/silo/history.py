"""A silo's history, ``state/rounds.jsonl``: one JSON object a round, with exact scores; and its
last fault.

The fault is ``fault.json`` in a study's state, until the study continues. Neither file leaves the
silo.
"""

import json
import os
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from pomona.core.bounds import Count, Label, Line, Number, Sha256, plain
from pomona.core.errors import worded
from pomona.core.files import MAX_LOG_BYTES, content, reading
from pomona.core.settings import Settings
from pomona.metrics.metric import Score
from pomona_federation.json_store import read_json, write_json
from pomona_federation.supervision.process_logs import clock

FILE = "rounds.jsonl"
FAULT = "fault.json"
TAIL_BYTES = 2**20  # bytes at the end of a history, in which its last line is looked for


class HistoryEntry(BaseModel):
    """One visit.

    Attributes:
        round: its round.
        trained: whether the silo trained in it.
        settled: the last of the silo's rounds that the federation had used by then, 0 for none.
        task: hash of its question; "" if it is not known.
        scores: of the silo's models.
        names: the silos by place.
        info: the method's own quantities.
        bytes_down, bytes_up: what was received and sent.
    """

    round: Number
    trained: bool
    settled: Number
    task: Sha256 | Literal[""] = ""
    scores: list[Score]
    names: dict[str, Line] = {}
    info: dict[Label, float | list[float]] = {}
    bytes_down: Count = 0
    bytes_up: Count = 0


def append(state: Path, line: dict[str, Any]) -> None:
    """Append one visit, durably, after ending a line cut short by a kill or a full disk.

    It replaces the last line if that is of the same task, which failed later and is done again.

    Raises OSError.
    """
    handle = os.open(
        state / FILE, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    with os.fdopen(handle, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        tail = os.pread(handle, TAIL_BYTES, max(0, size - TAIL_BYTES))
        last = tail.removesuffix(b"\n").rpartition(b"\n")[2]
        torn = tail != b"" and not tail.endswith(b"\n")
        if (visit := _visit(last)) and visit.task and visit.task == line.get("task"):
            file.truncate(size - len(last) - (not torn))
            torn = False
        file.write(b"\n" * torn + json.dumps(line).encode() + b"\n")
        file.flush()
        os.fsync(handle)


def read(state: Path) -> tuple[list[HistoryEntry], int]:
    """All visits, oldest first, and the number of skipped incomplete lines. Raises StorageError."""
    path = state / FILE
    if not path.exists():
        return [], 0
    with reading(path, "restore it from a backup"):
        lines = [line for line in content(path, MAX_LOG_BYTES).split(b"\n") if line.strip()]
    visits = [visit for visit in map(_visit, lines) if visit]
    return visits, len(lines) - len(visits)


def confirmed(visits: Sequence[HistoryEntry]) -> list[HistoryEntry]:
    """Return the visits without the scores of models that the federation has not used.

    The next visit names the last round that it has used; of the newest visit this is not known yet.
    """
    updated = []
    for visit, following in zip_longest(visits, visits[1:]):
        used = not visit.trained or following is None or following.settled == visit.round
        scores = [score for score in visit.scores if used or score.when == "received"]
        updated.append(visit.model_copy(update={"scores": scores}))
    return updated


def last_info(visits: Sequence[HistoryEntry]) -> dict[str, list[float]]:
    """The method's own quantities of the last visit that has some."""
    info = next((visit.info for visit in reversed(visits) if visit.info), {})
    return {name: value if isinstance(value, list) else [value] for name, value in info.items()}


def _visit(line: bytes) -> HistoryEntry | None:
    try:
        return HistoryEntry.model_validate_json(line)
    except ValidationError:
        return None


class LastFault(Settings):
    """A fault in one line, and when it ended a message. It never leaves the silo."""

    when: Line
    fault: Line

    def __str__(self) -> str:
        return f"{self.when}: {self.fault}"


def note_fault(state: Path, fault: Exception) -> None:
    """Record a fault as the study's last one. Raises OSError."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_json(state / FAULT, LastFault(when=clock(), fault=plain(worded(fault), 400)))


def clear_fault(state: Path) -> None:
    """Remove the fault, as the study continues. Raises OSError."""
    (state / FAULT).unlink(missing_ok=True)


def last_fault(state: Path) -> LastFault | None:
    """The last fault; None if the study continues.

    Raises StorageError for a file that cannot be read.
    """
    return read_json(LastFault, state / FAULT)

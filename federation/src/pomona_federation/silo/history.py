"""A silo's history, ``state/rounds.jsonl``: one JSON object a round, with exact scores. It never leaves the silo."""

import json
import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from pomona.core.bounds import Count, Line, Number
from pomona.core.errors import StorageError
from pomona.core.files import LONG, content
from pomona_federation.messages.message_bodies import ReportedScore

FILE = "rounds.jsonl"


class HistoryEntry(BaseModel):
    """One visit; ``names`` of the silos by place, ``info`` the method's own quantities."""

    round: Number
    scores: list[ReportedScore]
    names: dict[str, Line] = {}
    info: dict[str, float | list[float]] = {}
    bytes_down: Count = 0
    bytes_up: Count = 0


def append(state: Path, line: dict[str, Any]) -> None:
    """Append one visit, durably, after ending a line cut short by a kill or a full disk. Raises OSError."""
    handle = os.open(state / FILE, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        torn = end > 0 and os.pread(handle, 1, end - 1) != b"\n"
        file.write(b"\n" * torn + json.dumps(line).encode() + b"\n")
        file.flush()
        os.fsync(handle)


def read(state: Path) -> tuple[list[HistoryEntry], int]:
    """All visits, oldest first, and the number of skipped incomplete lines. Raises StorageError."""
    path = state / FILE
    try:
        lines = [line for line in content(path, LONG).split(b"\n") if line.strip()]
    except FileNotFoundError:
        return [], 0
    except OSError as fault:
        raise StorageError(f"{path} cannot be read ({fault.strerror}); restore it from a backup") from None
    visits = [visit for visit in map(_visit, lines) if visit]
    return visits, len(lines) - len(visits)


def _visit(line: bytes) -> HistoryEntry | None:
    try:
        return HistoryEntry.model_validate_json(line)
    except ValidationError:
        return None

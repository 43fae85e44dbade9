"""What processes leave in their folders for people to look at, as records with bounds: a torn file is one error line.

``live.json`` is the server's, after each round; ``node.json`` is a silo's.
"""

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from pomona.core.bounds import Count, Line, Number, Seconds, plain
from pomona.core.errors import StorageError

LIVE, NODE = "live.json", "node.json"
LARGEST = 2**28  # bytes of a file


Few = Annotated[tuple[Line, ...], Field(max_length=10**4)]


class StatusReader(BaseModel):
    """The base: unknown keys are left out, so that another version's file can be looked at."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class LiveStatus(StatusReader):
    """A server's last round: names of silos, why some were not used, bytes, the lines that its operator should see."""

    round: Number = 0
    rounds: Number | None = None
    present: Few = ()
    absent: Few = ()
    rejected: Few = ()
    metric: Line = ""
    why: dict[Line, Line] = Field({}, max_length=10**4)
    bytes_down: Count | None = None
    bytes_up: Count | None = None
    seconds: Seconds | None = None
    means: dict[Line, FiniteFloat | None] = Field({}, max_length=10**4)
    notes: Few = ()
    since: FiniteFloat = 0.0


class NodeStatus(StatusReader):
    """A silo's node: "starting", "connected", "waiting" (for the server), "restarting" or "stopped"; and why."""

    state: Line | None = None
    since: Line | None = None
    restarts: Count = 0
    reason: Line = ""
    code: int | None = Field(None, gt=-(10**6), lt=10**6)


L = TypeVar("L", bound=StatusReader)


def look(kind: type[L], path: Path) -> L:
    """A file's record; one of defaults where there is no file.

    Raises StorageError, in one line, for a file that is too large, torn, or holds something else.
    """
    try:
        return kind.model_validate_json(_content(path) or b"{}")
    except ValidationError as fault:
        raise StorageError(f"{path} cannot be read ({_first(fault)}); remove it, it is written again") from None


def _content(path: Path) -> bytes:
    """A file's bytes; none where there is no file."""
    try:
        if path.is_file() and path.stat().st_size > LARGEST:
            raise StorageError(f"{path} has more than {LARGEST} bytes; restore it from a backup")
        return path.read_bytes() if path.is_file() else b""
    except OSError as fault:
        raise StorageError(f"{path} cannot be read ({fault.strerror}); restore it from a backup") from None


def _first(fault: ValidationError) -> str:
    first = fault.errors(include_url=False, include_input=False)[0]
    where = plain(".".join(map(str, first["loc"])), 80)
    return plain(f"{where}: {first['msg']}" if where else first["msg"], 200)

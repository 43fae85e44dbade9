"""Status files for people to look at: ``live.json`` of a server, after each round, and ``node.json`` of a silo."""

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from pomona.core.bounds import Count, Line, Number, Seconds
from pomona.deploy.json_store import read_json

LIVE, NODE = "live.json", "node.json"

Few = Annotated[tuple[Line, ...], Field(max_length=10**4)]


class StatusFile(BaseModel):
    """The base: unknown keys are left out, so that another version's file can be looked at."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class LiveStatus(StatusFile):
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


class NodeStatus(StatusFile):
    """A silo's node: "starting", "connected", "waiting" (for the server), "restarting" or "stopped"; and why."""

    state: Line | None = None
    since: Line | None = None
    restarts: Count = 0
    reason: Line = ""
    code: int | None = Field(None, gt=-(10**6), lt=10**6)


L = TypeVar("L", bound=StatusFile)


def read_status_file(kind: type[L], path: Path) -> L:
    """Return a file's record; one of defaults where there is no file. Raises StorageError, in one line."""
    return read_json(kind, path, remedy="remove it, it is written again") or kind()

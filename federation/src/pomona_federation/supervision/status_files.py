"""Status files for people to read: ``live.json`` and ``waiting.json`` of a server, and
``node.json`` of a silo.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from pomona.core.bounds import Count, Line, Number, Seconds
from pomona.core.errors import listed
from pomona_federation.json_store import read_json
from pomona_federation.unused_uplinks import UnusedUplink

LIVE, WAITING, NODE = "live.json", "waiting.json", "node.json"
MAX_SILOS = 12  # most silos named in one line

SiloNames = Annotated[tuple[Line, ...], Field(max_length=10**4)]


class StatusFile(BaseModel):
    """Base of status files: unknown keys are ignored, so that another version's file can be
    read.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class LiveStatus(StatusFile):
    """A server's last committed round, and why uplinks were not used.

    Attributes:
        round, rounds: its number, and that of all rounds.
        present: the silos whose uplinks it used.
        unused: the last record of each silo, and of nodes that are no silo's, by name.
    """

    round: Number = 0
    rounds: Number | None = None
    present: SiloNames = ()
    unused: dict[Line, UnusedUplink] = Field({}, max_length=10**4)
    bytes_down: Count | None = None
    bytes_up: Count | None = None
    seconds: Seconds | None = None


class WaitingStatus(StatusFile):
    """The silos that a server waits for.

    Attributes:
        stage: the current part of the run.
        since, until: start of the stage and its latest end, in seconds since 1970.
        asked: silos whose answers are expected in this stage, by name.
        answered: those that have answered.
        missing: those still awaited, each with what is known of it.
    """

    stage: Line = ""
    since: FiniteFloat = 0.0
    until: FiniteFloat = 0.0
    asked: SiloNames = ()
    answered: SiloNames = ()
    missing: dict[Line, Line] = Field({}, max_length=10**4)

    @property
    def line(self) -> str:
        """The whole status in one line, times in UTC."""
        progress = (
            f"{self.stage}: {len(self.answered)} of {len(self.asked)} have answered since "
            f"{clock(self.since)}"
        )
        if not self.missing:
            return progress
        silos = listed([f"{name} ({reason})" for name, reason in self.missing.items()], MAX_SILOS)
        return f"{progress}; waiting until {clock(self.until)} for {silos}"


class NodeStatus(StatusFile):
    """A silo's node, with the reason for its state.

    The state is "starting", "connected", "waiting" (for the server), "restarting", "revoked" or
    "stopped".
    """

    state: Line | None = None
    since: Line | None = None
    restarts: Count = 0
    reason: Line = ""
    code: int | None = Field(None, gt=-(10**6), lt=10**6)


L = TypeVar("L", bound=StatusFile)


def read_status_file(model: type[L], path: Path) -> L:
    """Return a file's record, or defaults if there is no file. Raises StorageError, in one line."""
    return read_json(model, path, remedy="remove it; it is rewritten") or model()


def clock(seconds: float) -> str:
    """A time in seconds since 1970 as text, in UTC."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}Z"
    except (OverflowError, ValueError, OSError):
        return "an unknown time"

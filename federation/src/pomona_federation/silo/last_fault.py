"""The last fault in a silo's work for a study, ``fault.json`` in the study's state, until the study continues."""

from datetime import UTC, datetime
from pathlib import Path

from pomona.core.bounds import Line, plain
from pomona.core.errors import worded
from pomona.core.settings import Settings
from pomona_federation.json_store import read_json, write_json

FILE = "fault.json"


class LastFault(Settings):
    """A fault in one line, and when it ended a message. It never leaves the silo."""

    when: Line
    fault: Line

    def __str__(self) -> str:
        return f"{self.when}: {self.fault}"


def note(state: Path, fault: Exception) -> None:
    """Record a fault as the study's last one. Raises OSError."""
    when = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}Z"
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_json(state / FILE, LastFault(when=when, fault=plain(worded(fault), 400)))


def clear(state: Path) -> None:
    """Remove the fault, as the study continues. Raises OSError."""
    (state / FILE).unlink(missing_ok=True)


def read(state: Path) -> LastFault | None:
    """The last fault; None if the study continues. Raises StorageError for a file that cannot be read."""
    return read_json(LastFault, state / FILE)

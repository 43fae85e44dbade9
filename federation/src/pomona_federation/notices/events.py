"""What is worth a notice, as a server or a silo finds it in its audit log and on its machine."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from pydantic import Field

from pomona.core.bounds import PLACES, Count, Line
from pomona.core.settings import Settings
from pomona_federation.notices.settings import Event
from pomona_federation.study import KIT


class Message(NamedTuple):
    """What a notice says."""

    event: Event
    text: str
    study: str = ""
    silo: str = ""


class Progress(Settings):
    """What is remembered of the log's earlier lines.

    Attributes:
        study: the study that the next lines are about.
        reported_begin: the last study whose begin was reported.
        last_code: the code of the last study that ended; 0 after a start.
        absent: rounds in a row without a silo, by name.
        reported: the disk and the certificate as last reported.
    """

    study: Line = KIT
    reported_begin: Line = ""
    last_code: int = 0
    absent: dict[Line, Count] = Field({}, max_length=PLACES)
    reported: dict[Line, Line] = Field({}, max_length=10)


class Events(Protocol):
    """Finds what is worth a notice."""

    def read(
        self, lines: Iterable[Mapping[str, Any]], progress: Progress
    ) -> tuple[Progress, list[Message]]:
        """What lines of the audit log report, and the progress after them."""

    def conditions(self, progress: Progress) -> tuple[Progress, list[Message]]:
        """What the machine's state reports."""

"""For whom the server waits: ``waiting.json`` while silos are gathered and during a round, and lines of the log."""

import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, time

from pomona_federation.json_store import write_json
from pomona_federation.supervision.status_files import WAITING, WaitingStatus

REMIND = 60.0  # seconds between lines of the log while nothing else happens
logger = logging.getLogger("pomona")


@dataclass
class WaitingFile:
    """Tells people for whom is being waited; a disk that is full does not end the run.

    Args:
        folder: of the file.
    """

    folder: Path
    _now: WaitingStatus = field(default_factory=WaitingStatus)
    _due: float = 0.0  # when the log is told again, by the monotonic clock

    def begin(self, stage: str, seconds: float) -> None:
        """Begin a stage that lasts ``seconds`` at the longest."""
        began = time()
        self._now, self._due = WaitingStatus(stage=stage, since=began, until=began + seconds), 0.0

    def tell(self, answered: Collection[str], missing: Mapping[str, str], given_up: Collection[str] = ()) -> None:
        """Write down who has answered, for whom is being waited and why, and for whom no longer."""
        asked = (*answered, *missing, *given_up)
        now = self._now.model_copy(update={"asked": asked, "answered": tuple(answered), "missing": dict(missing)})
        if now != self._now:
            self._now = now
            with suppress(OSError):
                write_json(self.folder / WAITING, now)
        if now.missing and monotonic() >= self._due:
            self._due = monotonic() + REMIND
            logger.info("%s", now.line)

"""The report page of a run while it goes on: one more watcher, which writes the page again after rounds."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

from pomona.federation.callbacks import Callback
from pomona.record.reading import load
from pomona.record.rows import Evaluation, RoundRow
from pomona.results.web.page_data import LiveProgress
from pomona.results.web.report_page import refresh

SECONDS = 3
"""The page is written, and reads itself again, at most this often."""
SHARE = 0.05
"""The part of a run's time that its page may take."""
PATIENCE = 10
"""A page older than so many of its longest times between two writings was left by a run that ended."""
LEAST = 60
"""But it is never given up before so many seconds."""


class LivePageCallback:
    """Writes the page of the run in a folder when a round is committed and the last page is old enough."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._due = 0.0
        self._wrote, self._longest = monotonic(), 0.0

    def begin(self) -> None:
        """Nothing is written before the first round."""

    def note(self, text: str) -> None:
        """Notes are for people who look on."""

    def round(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:  # noqa: ARG002 - all is on record
        """Write the page, if it is due."""
        begun = monotonic()
        if begun >= self._due:
            self._wrote, self._longest = begun, max(self._longest, begun - self._wrote)
            live = LiveProgress(SECONDS, datetime.now(UTC), max(LEAST, PATIENCE * self._longest))
            refresh(load(self.folder), self.folder, live)
            self._due = begun + max(SECONDS, (monotonic() - begun) / SHARE)

    def close(self) -> None:
        """Leave a page that reads itself no more, where there was one."""
        if self._due:
            refresh(load(self.folder), self.folder, None)


@contextmanager
def following(folder: Path | None) -> Iterator[tuple[Callback, ...]]:
    """The watcher that keeps the page in a run's folder up to date; none without a folder."""
    if folder is None:
        yield ()
        return
    follower = LivePageCallback(folder)
    try:
        yield (follower,)
    finally:
        follower.close()

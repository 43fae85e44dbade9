"""The report page of a running run: a callback that rewrites the page after rounds."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

from pomona.federation.callbacks import Callback, NullCallback
from pomona.record.rows import Evaluation, RoundRow
from pomona.record.run_folder import load
from pomona.results.web.report_page import LiveProgress, refresh

SECONDS = 3
"""Minimum seconds between two updates of the page."""
SHARE = 0.05
"""Maximum share of a run's time for its page."""
PATIENCE = 10
"""Multiple of the longest interval between two updates after which a page's run counts as ended."""
MIN_PATIENCE = 60
"""Minimum seconds before this."""


class LivePageCallback(NullCallback):
    """Writes the page of the run in a folder when a round is committed and the last page is old
    enough.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._due = 0.0
        self._wrote, self._longest = monotonic(), 0.0

    def on_round_end(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:  # noqa: ARG002 - all is on record
        """Write the page, if it is due."""
        start = monotonic()
        if start >= self._due:
            self._wrote, self._longest = start, max(self._longest, start - self._wrote)
            live = LiveProgress(
                SECONDS, datetime.now(UTC), max(MIN_PATIENCE, PATIENCE * self._longest)
            )
            refresh(load(self.folder), self.folder, live)
            self._due = start + max(SECONDS, (monotonic() - start) / SHARE)

    def close(self) -> None:
        """Write a final page that no longer refreshes, if there was one."""
        if self._due:
            refresh(load(self.folder), self.folder, None)


@contextmanager
def following(folder: Path | None) -> Iterator[tuple[Callback, ...]]:
    """Yield the callback that updates the page in a run's folder; none without a folder."""
    if folder is None:
        yield ()
        return
    follower = LivePageCallback(folder)
    try:
        yield (follower,)
    finally:
        follower.close()

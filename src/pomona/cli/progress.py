"""Progress of a run: one line redrawn on a terminal, otherwise a new line every few seconds; and a
report page that is written again after rounds.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.live import Live
from rich.text import Text

from pomona.cli.output import EVERY, console, echo_stderr, printable
from pomona.config import Config
from pomona.federation.callbacks import Callback, NullCallback
from pomona.federation.progress import RunProgress, clock, line
from pomona.record.result import Result
from pomona.record.rows import Evaluation, RoundRow
from pomona.record.run_folder import load
from pomona.results.web.report_page import LiveProgress, refresh
from pomona.results.wording import counted


class ProgressLine(NullCallback):
    """The line on a terminal, with notes printed above it."""

    def __init__(self, progress: RunProgress, terminal: Console, *, stays: bool) -> None:
        self._progress, self._console = progress, terminal
        draw = lambda: Text(printable(line(progress, terminal.width)), no_wrap=True)  # noqa: E731 - what Live asks for
        self._live = Live(
            get_renderable=draw, console=terminal, transient=not stays, refresh_per_second=4
        )

    def on_run_begin(self) -> None:
        """Show the line; before this, only errors are shown."""
        self._progress.start_clock()
        self._live.start()

    def on_round_end(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:
        """Advance by a round."""
        self._progress.update(row, evaluations)

    def on_run_end(self, result: Result) -> None:
        """Show the final values."""
        self._progress.finish(result)

    def on_note(self, text: str) -> None:
        """Print a line above."""
        self._console.print(f"note: {printable(text)}", markup=False, highlight=False)

    def close(self) -> None:
        """Leave the terminal in its original state."""
        if self._live.is_started:
            self._live.stop()


class Lines(NullCallback):
    """Lines at the start, after a round every few seconds, and at the end, each flushed
    immediately.
    """

    def __init__(self, progress: RunProgress) -> None:
        self._progress, self._last_printed = progress, -1.0

    def on_run_begin(self) -> None:
        """Print the start."""
        self._progress.start_clock()
        echo_stderr(f"{self._progress.method}: training, {counted(self._progress.total, 'round')}")
        self._last_printed = 0.0

    def on_round_end(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:
        """Print the progress, if it is due."""
        s = self._progress
        s.update(row, evaluations)
        if s.elapsed - self._last_printed >= EVERY and s.round < s.total:
            self._last_printed = s.elapsed
            scores = f"; {s.metrics}" if s.metrics else ""
            echo_stderr(
                f"{s.method}: round {s.round} of {s.total} after {clock(s.elapsed)}, {s.remaining} "
                f"left{scores}"
            )

    def on_run_end(self, result: Result) -> None:
        """Print the final values."""
        s = self._progress
        s.finish(result)
        echo_stderr(
            f"{s.method}: {counted(s.round, 'round')} done in {clock(s.elapsed)}"
            + (f"; {s.metrics}" if s.metrics else "")
        )

    def on_note(self, text: str) -> None:
        """Print a note."""
        echo_stderr(f"note: {printable(text)}")

    def close(self) -> None:
        """Do nothing."""


@contextmanager
def progress_display(*, stays: bool = True) -> Iterator[Callable[[Config], ProgressLine | Lines]]:
    """Yield a function that creates a run's progress display; ``stays``: whether its line is left
    on the terminal.
    """
    displays: list[ProgressLine | Lines] = []

    def create(config: Config) -> ProgressLine | Lines:
        for display in displays:
            display.close()
        progress = RunProgress.of_run(config)
        displays.append(
            ProgressLine(progress, console, stays=stays) if console.is_terminal else Lines(progress)
        )
        return displays[-1]

    try:
        yield create
    finally:
        for display in displays:
            display.close()


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

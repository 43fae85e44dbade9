"""Progress of a run: one line redrawn on a terminal, otherwise a new line every few seconds."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from pomona.cli.output import EVERY, console, echo_stderr, printable
from pomona.config import Config
from pomona.federation.callbacks import NullCallback
from pomona.federation.progress import Standing, clock, line
from pomona.record.result import Result
from pomona.record.rows import Evaluation, RoundRow


class ProgressLine(NullCallback):
    """The line on a terminal, with notes printed above it."""

    def __init__(self, progress: Standing, terminal: Console, *, stays: bool) -> None:
        self._standing, self._console = progress, terminal
        draw = lambda: Text(printable(line(progress, terminal.width)), no_wrap=True)  # noqa: E731 - what Live asks for
        self._live = Live(
            get_renderable=draw, console=terminal, transient=not stays, refresh_per_second=4
        )

    def begin(self) -> None:
        """Show the line; before this, only errors are shown."""
        self._standing.begin()
        self._live.start()

    def round(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:
        """Advance by a round."""
        self._standing.round(row, evaluations)

    def end(self, result: Result) -> None:
        """Show the final values."""
        self._standing.end(result)

    def note(self, text: str) -> None:
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

    def __init__(self, progress: Standing) -> None:
        self._standing, self._last_printed = progress, -1.0

    def begin(self) -> None:
        """Print the start."""
        self._standing.begin()
        echo_stderr(f"{self._standing.method}: training, {self._standing.total} rounds")
        self._last_printed = 0.0

    def round(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:
        """Print the progress, if it is due."""
        s = self._standing
        s.round(row, evaluations)
        if s.elapsed - self._last_printed >= EVERY and s.done < s.total:
            self._last_printed = s.elapsed
            scores = f"; {s.seen}" if s.seen else ""
            echo_stderr(
                f"{s.method}: round {s.done} of {s.total} after {clock(s.elapsed)}, {s.left} "
                f"left{scores}"
            )

    def end(self, result: Result) -> None:
        """Print the final values."""
        s = self._standing
        s.end(result)
        echo_stderr(
            f"{s.method}: {s.done} rounds done in {clock(s.elapsed)}"
            + (f"; {s.seen}" if s.seen else "")
        )

    def note(self, text: str) -> None:
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

    def watcher(config: Config) -> ProgressLine | Lines:
        for display in displays:
            display.close()
        progress = Standing.of(config)
        displays.append(
            ProgressLine(progress, console, stays=stays) if console.is_terminal else Lines(progress)
        )
        return displays[-1]

    try:
        yield watcher
    finally:
        for display in displays:
            display.close()

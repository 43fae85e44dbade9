"""What a command is doing, for all but runs: with the time left where its work can be counted."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from time import monotonic

from rich.live import Live
from rich.text import Text

from pomona.cli.output import EVERY, console, echo_stderr, printable

SILENT = 2.0
"""Seconds after which a command without a count says what it is doing."""


class TimeLeft:
    """Estimated remaining time at the rate since the start."""

    def __init__(self) -> None:
        self._start, self._completed_before = monotonic(), -1  # completed before the start

    def __call__(self, completed: int, total: int) -> str:
        """Return a clause for "5 of 12 runs done"; empty before this start's first is completed,
        and at the end.
        """
        if self._completed_before < 0:
            self._completed_before = completed
        if completed in (self._completed_before, total):
            return ""
        rate = (monotonic() - self._start) / (completed - self._completed_before)
        return about(rate * (total - completed))


def about(seconds: float) -> str:
    """Return a clause: about how much time is left."""
    time = f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"
    return f", about {time} left"


class StatusLine:
    """A text that is redrawn on a terminal; elsewhere a line every few seconds if it changed."""

    def __init__(self) -> None:
        self._text, self._time = "", -EVERY
        self._left: dict[str, TimeLeft] = {}
        self._live = Live(console=console, transient=True, refresh_per_second=4)

    def __enter__(self) -> "StatusLine":
        if console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, text: str, completed: int, total: int, stage: str = "") -> None:
        """Show a text and the time left, which alone is no reason for another line; each stage has
        a rate of its own.
        """
        remaining = self._left.setdefault(stage, TimeLeft())(completed, total)
        if console.is_terminal:
            self._live.update(Text(text + remaining))
        elif text != self._text and (completed == total or monotonic() - self._time >= EVERY):
            self._text, self._time = text, monotonic()
            echo_stderr(text + remaining)


@contextmanager
def activity(text: str) -> Iterator[None]:
    """Show what a block does that cannot be counted: on a terminal at once, elsewhere in a line if
    it takes long. The text may have names of other people's files.
    """
    text = printable(text)
    if console.is_terminal:
        with console.status(Text(text)):
            yield
        return
    timer = Timer(SILENT, echo_stderr, [f"{text} ..."])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()

"""Shared by the commands: output for people and programs, and what a command is doing."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from datetime import date
from pathlib import Path, PurePath
from threading import Timer
from time import monotonic
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from pomona.core.bounds import plain
from pomona.core.table import Table
from pomona.results import wording

Flag = Annotated[bool, Parameter(negative="")]
"""An option without a value, ``--NAME``, and without its opposite, ``--no-NAME``."""
Json = Annotated[bool, Parameter(name="--json", negative="", help="machine-readable output")]
"""The option ``--json`` of every command that prints."""
Figures = Annotated[
    str,
    Parameter(
        name="--figures",
        help="also write each figure as a file: svg, pdf, png, csv, or several with commas",
    ),
]
"""The option ``--figures`` of every command that writes a page; see
``pomona.results.figures.plot.parse_formats``.
"""
size = wording.size
EVERY = 5.0
"""Seconds between two lines of progress without a terminal."""
console = Console(stderr=True)
stdout = Console(width=None if sys.stdout.isatty() else 160)  # width for a file or a pipe


def emit(value: Any) -> None:
    """Print JSON on standard output: records as objects, paths as text, functions as
    ``module:name``.
    """
    print(json.dumps(value, indent=2, allow_nan=False, default=_plain))


def _plain(value: Any) -> Any:
    """Convert a value for JSON. Raises TypeError if it has no JSON form."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, date):
        return value.isoformat()
    if callable(value):
        return f"{value.__module__}:{value.__qualname__}"
    raise TypeError(f"no JSON for {type(value).__name__}")


def echo_stderr(text: str) -> None:
    """Print a text on standard error, for a service's journal; a closed pipe is ignored."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def printable(text: str) -> str:
    """Return text that may contain other people's words as one line of the same width, without
    control sequences.
    """
    return "".join(c if c.isprintable() else " " for c in text)


def echo(*lines: str) -> None:
    """Print lines on standard output, each as ``printable``."""
    for line in lines:
        print(printable(line))


def laid_out(table: Table) -> Group:
    """Lay out a table for the terminal, marked cells in bold, with its title and notes as lines.

    Control sequences in texts are escaped.
    """
    grid = Grid(header_style="bold", box=None, pad_edge=False)
    for k, heading in enumerate(table.header):
        grid.add_column(
            Text(plain(heading)), justify="left" if k in table.words else "right", overflow="fold"
        )
    for k, row in enumerate(table.rows):
        grid.add_row(
            *(
                Text(plain(text), style="bold" if (k, j) in table.marked else "")
                for j, text in enumerate(row)
            )
        )
    title = [Text(printable(table.title), style="italic")] if table.title else []
    notes = [Text(printable(" ".join(table.notes)), style="dim")] if table.notes else []
    return Group(*title, *([grid] if table.rows else []), *notes)


def print_table(table: Table) -> None:
    """Print a table on standard output."""
    stdout.print(laid_out(table))


def respond(as_json: bool, value: Any, *lines: str | Table | Path) -> None:
    """Print the answer of a command: ``value`` for programs, or lines and tables for people; paths,
    which go into other commands, as they are.
    """
    if as_json:
        emit(value)
        return
    for line in lines:
        if isinstance(line, Table):
            print_table(line)
        elif isinstance(line, Path):
            print(line)
        else:
            echo(line)


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

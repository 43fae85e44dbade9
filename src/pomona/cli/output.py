"""What the commands share: reading their words, and writing results for people or for programs."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pomona.core.bounds import plain
from pomona.core.toml import Tree, read_file

if TYPE_CHECKING:
    from pomona.config import Config

console = Console(stderr=True)
out = Console(width=None if sys.stdout.isatty() else 160)  # a file or a pipe has no width of its own


def config_of(words: Iterable[str], *options: Mapping[str, Any]) -> "Config":
    """The Config of a command line: TOML files, then the options that were given, then key=value words."""
    from pomona.config import read_overrides, resolve

    pairs = [word for word in words if "=" in word and Path(word).suffix != ".toml"]
    files = [read_file(Path(word)) for word in words if word not in pairs]
    return resolve(*files, *options, read_overrides(pairs))


def option(section: str, key: str, value: Any) -> Tree:
    """The tree of one option, empty when it was not given."""
    return {} if value is None else {section: {key: value}}


def emit(value: Any) -> None:
    """JSON for programs, on standard output."""
    print(json.dumps(value, indent=2, allow_nan=False, default=str))


def talk(text: str) -> None:
    """Say it on standard error, where a service's journal takes it up; a reader that left is no fault."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def shown(text: str) -> str:
    """Text that may hold other people's words as one line of the same width, with nothing that a terminal obeys."""
    return "".join(c if c.isprintable() else " " for c in text)


def say(*lines: str) -> None:
    """Lines on standard output, each as ``shown``."""
    for line in lines:
        print(shown(line))


def table(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> Table:
    """A terminal table of equal records; numbers to the right. Text from elsewhere is shown and never obeyed."""
    above = Text(shown(title)) if title else None
    drawn = Table(title=above, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for name in rows[0] if rows else ():
        numeric = all(isinstance(r[name], int | float | None) for r in rows)
        heading = Text(plain(name.replace("_", " ") if name.isidentifier() else name))
        drawn.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(plain(_text(v))) for v in row.values()))
    return drawn


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def standing(rows: Sequence[dict[str, Any]]) -> Table:
    """A terminal table of what ``pomona.results.table`` says of runs, the judged models bold."""
    from pomona.results.tables.runs import standing as made

    sheet = made(rows)
    drawn = Table(title=sheet.title, title_justify="left", caption_justify="left", box=None, pad_edge=False)
    drawn.caption = sheet.note
    for place, name in enumerate(sheet.header):
        drawn.add_column(name, justify="left" if place < sheet.words else "right")
    for place, row in enumerate(sheet.rows):
        drawn.add_row(*(Text(plain(cell)) for cell in row), style="bold" if (place, 0) in sheet.marked else "")
    return drawn


def size(n: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000 or unit == "GB":
            return f"{n:.3g} {unit}"
        n /= 1000
    raise AssertionError

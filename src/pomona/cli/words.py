"""What the commands share: reading their words, and writing results for people or for programs."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pomona.config import Config, Tree, read_file, read_overrides, resolve

console = Console(stderr=True)
out = Console(soft_wrap=True)


def config_of(words: Iterable[str], *options: Mapping[str, Any]) -> Config:
    """The Config of a command line: TOML files, then key=value words, then the options that were given."""
    files: Tree = {}
    pairs = []
    layers = []
    for word in words:
        if "=" not in word or Path(word).suffix == ".toml":
            layers.append(read_file(Path(word)))
        else:
            pairs.append(word)
    return resolve(files, *layers, read_overrides(pairs), *options)


def option(section: str, key: str, value: Any) -> Tree:
    """The tree of one option, empty when it was not given."""
    return {} if value is None else {section: {key: value}}


def emit(value: Any) -> None:
    """JSON for programs, on standard output."""
    print(json.dumps(value, indent=2, allow_nan=False, default=str))


def table(rows: list[Mapping[str, Any]], title: str | None = None) -> Table:
    """A terminal table of equal records; numbers to the right."""
    drawn = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for name in rows[0] if rows else ():
        numeric = all(isinstance(r[name], int | float | None) for r in rows)
        drawn.add_column(name.replace("_", " "), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(_text(v) for v in row.values()))
    return drawn


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def percent(value: float | None) -> str:
    """A share as papers print it."""
    return "-" if value is None else f"{100 * value:.2f}"


def size(n: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000 or unit == "GB":
            return f"{n:.3g} {unit}"
        n /= 1000
    raise AssertionError

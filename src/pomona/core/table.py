"""The table type, with Markdown and CSV output; LaTeX, the terminal and pages render it too."""

import csv
import io
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")
PLACEHOLDER = "-"
"""Placeholder for an undefined value."""
MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\|<`["})
"""Escapes for cells and titles, which may contain other people's names: no HTML, no link."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Characters at the start of a text that make a spreadsheet read it as a formula."""


@dataclass(frozen=True)
class Table:
    """A table of texts.

    Attributes:
        name: file name without suffix, also the id of its section on a page.
        title: heading.
        notes: notes on how to read the table.
        header: headings of the columns.
        rows: one text for each column; the first is the row's label.
        words: text columns, aligned left; the others hold numbers.
        marked: (row, column) of cells in bold.
    """

    name: str
    title: str
    notes: Sequence[str]
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Container[int] = (0,)
    marked: frozenset[tuple[int, int]] = frozenset()


def of_records(
    records: Sequence[Mapping[str, Any]], title: str = "", notes: Sequence[str] = ()
) -> Table:
    """Build a table of uniform records: floats to four digits, a dash for None, keys with spaces
    for underscores.
    """
    names = list(records[0]) if records else []
    text_columns = {
        k
        for k, name in enumerate(names)
        if not all(isinstance(r[name], int | float | None) for r in records)
    }
    header = [name.replace("_", " ") if name.isidentifier() else name for name in names]
    return Table(
        "",
        title,
        notes,
        header,
        [[_text(v) for v in record.values()] for record in records],
        text_columns,
    )


def _text(value: Any) -> str:
    if value is None:
        return PLACEHOLDER
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def markdown(table: Table) -> str:
    """Render a heading, the table if it has rows, and its notes as Markdown."""
    title, *notes = (text.translate(MARKDOWN) for text in (table.title, *table.notes))
    grid = [markdown_grid(table)] if table.rows else []
    return "\n\n".join([f"## {title}", *grid, *notes]) + "\n"


def markdown_grid(table: Table) -> str:
    """Render only the header and the rows as Markdown."""
    rules = ["---" if column in table.words else "---:" for column in range(len(table.header))]
    rows = _emphasised(table)
    escaped = ([text.translate(MARKDOWN) for text in line] for line in (table.header, rules, *rows))
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def _emphasised(table: Table) -> list[list[str]]:
    """Return the rows, with the marked cells in bold."""
    return [
        [f"**{text}**" if text and (i, j) in table.marked else text for j, text in enumerate(row)]
        for i, row in enumerate(table.rows)
    ]


def csv_text(records: Sequence[Mapping[str, Any]]) -> str:
    """Return uniform records as CSV with their keys; texts that look like formulas get a leading
    apostrophe.
    """
    lines = [list(records[0]) if records else [], *(list(record.values()) for record in records)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [_harmless(cell) for cell in line] for line in lines
    )
    return text.getvalue()


def _harmless(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    # the csv module writes it without quotes, which its own reader then rejects
    text = cell.replace("\r", " ")
    return f"'{text}" if cell.startswith(FORMULA) and not reads_as_number(cell) else text


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, keys and values in their order."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def reads_as_number(text: str) -> bool:
    """Return whether a cell reads as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True

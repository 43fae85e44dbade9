"""What every table format gives: Arrow columns with their names, before anything is interpreted."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a table as a file or frame holds them.

    Attributes:
        names: the columns' names in order, NFC and stripped; their numbers as text if the source
            names none. May repeat: roles refuse that where it matters.
        arrays: one ``pyarrow.ChunkedArray`` a column, all (n,): strings where the format stores
            text (CSV, spreadsheets), else the format's own type (numbers, booleans, dates); null is
            a gap.
        row_word: what a row is called in messages: "line" or "row".
        first_row: the number of the first row in messages.
        named: whether the source, or the settings, name the columns.
        notes: remarks of the adapter (dropped, guessed, converted), one line each.
    """

    names: tuple[str, ...]
    arrays: tuple[Any, ...]
    row_word: str = "row"
    first_row: int = 1
    named: bool = True
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arrays[0]) if self.arrays else 0

"""What every table format gives: Arrow columns with their names, before anything is interpreted.

Arrays are built without ``pyarrow.array``, which would load pandas, where it is installed, in each
child process that reads a file.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from pomona.core.errors import listed

MOST_COLUMNS = 10**5
MOST_ROWS = 10**7
# columns of exports with names, and with labels
REDCAP = {"redcap_event_name", "redcap_repeat_instrument", "redcap_repeat_instance"} | {
    "event name", "repeat instrument", "repeat instance"
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a table as a file or frame holds them.

    Attributes:
        names: the columns' names in order; their numbers as text if the source names none. May
            repeat: ``named_once`` numbers those that do.
        arrays: one ``pyarrow.ChunkedArray`` a column, all (n,): strings where the format stores
            text (CSV, spreadsheets), else the format's own type (numbers, booleans, dates); null is
            a gap.
        row_word: what a row is called in messages: "line" or "row".
        first_row: the number of the first row in messages.
        has_names: whether the source, or the settings, name the columns.
        free_commas: whether a comma in a text may be a decimal mark, as in CSV files whose cells
            are divided by another character.
        notes: remarks of the adapter (dropped, guessed, converted), one line each.
    """

    names: tuple[str, ...]
    arrays: tuple[Any, ...]
    row_word: str = "row"
    first_row: int = 1
    has_names: bool = True
    free_commas: bool = False
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arrays[0]) if self.arrays else 0

    def headed(self) -> "Columns":
        """Return the columns with the names that the first row has."""
        return replace(
            self,
            names=tuple(self.first_cells()),
            arrays=tuple(array.slice(1) for array in self.arrays),
            first_row=self.first_row + 1,
            has_names=True,
        )

    def first_cells(self) -> list[str]:
        """Return the first row of texts, as names."""
        return [normalize("NFC", str(array[0].as_py()).strip()) for array in self.arrays]

    def named_once(self, source: object) -> "Columns":
        """Return the columns with NFC names, in which each further column of a name has a number
        behind it, as programs write them that put one column into each form: ``Complete? (2)``.
        """
        names = [normalize("NFC", name.strip()) for name in self.names]
        if not self.has_names or len(set(names)) == len(names):
            return replace(self, names=tuple(names))
        counts, distinct = Counter[str](), list[str]()
        for name in names:
            counts[name] += 1
            numbered = f"{name} ({counts[name]})" if counts[name] > 1 else name
            while counts[name] > 1 and numbered in {*names, *distinct}:
                counts[name] += 1
                numbered = f"{name} ({counts[name]})"
            distinct.append(numbered)
        repeated = [name for name, count in counts.items() if count > 1]
        example = next(name for name, old in zip(distinct, names, strict=True) if name != old)
        note = (
            f"{source}: several columns are named {listed(repeated, 8)}; from the second on "
            f"they have a number behind the name: {example!r}"
        )
        return replace(self, names=tuple(distinct), notes=(*self.notes, note))


def repeating_records(names: Sequence[str], records: pa.ChunkedArray) -> list[str]:
    """Advise on an export of REDCap with several rows for each record, its first column."""
    repeats = [name for name in names if name.casefold() in REDCAP]
    if not repeats or compute.count_distinct(records).as_py() == len(records):
        return []
    return [
        f"several rows for each {names[0]}, as REDCap exports instruments ({listed(repeats)}): "
        "export one event or instrument, or keep its rows by data.unlabelled=drop where they have "
        f"the label; rows of a record stay together by data.group_column='{names[0]}'"
    ]


def cell_text(value: Any) -> str:
    """Format a value as in CSV: empty for null and NaN, ISO for dates, True and False."""
    if value is None or value != value:  # noqa: PLR0124 - NaN
        return ""
    return value.isoformat() if isinstance(value, date) else str(value)


def text_array(cells: Iterable[str | None]) -> pa.Array:
    """Return texts (n,) as Arrow; None is a gap."""
    builder = pa.lib.StringBuilder()
    builder.append_values(cells)
    return builder.finish()


def number_array(values: NDArray[Any], missing: NDArray[np.bool_]) -> pa.Array:
    """Return numbers, dates or moments (n,) as Arrow, with gaps where they are missing."""
    numpy_type = pa.from_numpy_dtype(values.dtype)
    if pa.types.is_date32(numpy_type):
        values = values.astype(np.int64).astype(np.int32)
    buffers = [np.packbits(~missing, bitorder="little"), np.ascontiguousarray(values)]
    return pa.Array.from_buffers(numpy_type, len(values), [*map(pa.py_buffer, buffers)])


Reader = Callable[[Path, object], Columns]
"""Reads a file with the settings of its data."""

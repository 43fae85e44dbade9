"""What every table format gives: Arrow columns with their names, before anything is interpreted."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any
from unicodedata import normalize

from pomona.core.errors import listed

MOST_COLUMNS = 10**5
MOST_ROWS = 10**7


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
        named: whether the source, or the settings, name the columns.
        free_commas: whether a comma in a text may be a decimal mark, as in CSV files whose cells
            are divided by another character.
        notes: remarks of the adapter (dropped, guessed, converted), one line each.
    """

    names: tuple[str, ...]
    arrays: tuple[Any, ...]
    row_word: str = "row"
    first_row: int = 1
    named: bool = True
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
            named=True,
        )

    def first_cells(self) -> list[str]:
        """Return the first row of texts, as names."""
        return [normalize("NFC", str(array[0].as_py()).strip()) for array in self.arrays]

    def named_once(self, source: object) -> "Columns":
        """Return the columns with NFC names, in which each further column of a name has a number
        behind it, as programs write them that put one column into each form: ``Complete? (2)``.
        """
        if not self.named:
            return self
        names = [normalize("NFC", name.strip()) for name in self.names]
        taken, counts, each = set(names), dict[str, int](), list[str]()
        for name in names:
            new, counts[name] = name, counts.get(name, 0) + 1
            while counts[name] > 1 and (new := f"{name} ({counts[name]})") in taken:
                counts[name] += 1
            taken.add(new)
            each.append(new)
        repeated = [name for name, count in counts.items() if count > 1]
        note = (
            f"{source}: several columns are named {listed(repeated, 8)}; from the second on "
            f"they have a number behind the name: {each[_second(names)]!r}"
            if repeated
            else ""
        )
        return replace(self, names=tuple(each), notes=(*self.notes, *filter(None, [note])))


def _second(names: Sequence[str]) -> int:
    """Return the index of the first name that was there before."""
    return next(k for k, name in enumerate(names) if name in names[:k])


def cell_text(value: Any) -> str:
    """Format a value as in CSV: empty for null and NaN, ISO for dates, True and False."""
    if value is None or value != value:  # noqa: PLR0124 - NaN
        return ""
    return value.isoformat() if isinstance(value, date | datetime) else str(value)

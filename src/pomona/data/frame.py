"""A pandas frame in the place of a table's file: its records, with the cells that Parquet has."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pomona.core.errors import DataError
from pomona.data.parquet import cell


@dataclass(frozen=True, eq=False)
class Frame:
    """A pandas DataFrame; ``name`` for messages."""

    table: Any
    name: str

    @classmethod
    def of(cls, table: Any, name: str) -> "Frame":
        """Return a frame. Raises DataError for anything else."""
        if not (hasattr(table, "iloc") and getattr(table, "ndim", 0) == 2):
            raise DataError(
                f"{name} is a {type(table).__name__}; give a pandas DataFrame, or arrays by "
                "from_arrays"
            )
        return cls(table, name)

    def __str__(self) -> str:
        return self.name

    @property
    def parent(self) -> str:
        """The name of several frames."""
        return "frames"

    def records(self) -> Iterator[list[str]]:
        """Yield the names of the columns, then each row's cells as texts; gaps are empty.

        Raises DataError for a cell that is too long.
        """
        yield [str(name) for name in self.table.columns]
        columns = [self.table.iloc[:, k] for k in range(self.table.shape[1])]
        try:
            yield from map(list, zip(*map(_cells, columns), strict=True))
        except ValueError as fault:
            raise DataError(f"{self.name}: {fault}; leave its column out") from None


def _cells(column: Any) -> list[str]:
    gaps = column.isna().tolist()
    return ["" if gap else cell(value) for value, gap in zip(column.tolist(), gaps, strict=True)]


Source = Path | Frame
"""Where a table comes from."""

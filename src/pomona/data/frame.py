"""A frame of pandas, polars or Arrow in the place of a table's file: its records, with the cells
that Parquet has.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pomona.core.errors import DataError
from pomona.data.parquet import cell

ARROW = ("__arrow_c_stream__", "__arrow_c_array__")


def is_frame(values: Any) -> bool:
    """Return whether values are a table with named columns: of pandas, polars, pyarrow, DuckDB."""
    return hasattr(values, "columns") and (
        hasattr(values, "iloc") or any(hasattr(values, name) for name in ARROW)
    )


def column_cells(column: Any) -> list[str]:
    """Return the cells of a column of pandas, polars or Arrow as texts; gaps are empty.

    Raises ValueError for a cell that is too long.
    """
    if hasattr(column, "isna"):
        gaps = column.isna().tolist()
        values = column.tolist()
        return ["" if gap else cell(value) for value, gap in zip(values, gaps, strict=True)]
    values = column.to_pylist() if hasattr(column, "to_pylist") else column.to_list()
    return [cell(value) for value in values]


@dataclass(frozen=True, eq=False)
class Frame:
    """A table in memory.

    Attributes:
        table: of pandas or pyarrow.
        name: for messages.
        added: cells of further columns, by their names.
    """

    table: Any
    name: str
    added: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, table: Any, name: str, added: Mapping[str, Sequence[str]] | None = None) -> "Frame":
        """Return a frame. Raises DataError for anything else."""
        if not is_frame(table):
            raise DataError(
                f"{name} is a {type(table).__name__}; give a frame of pandas, polars or pyarrow, "
                "or arrays by from_arrays"
            )
        if not hasattr(table, "iloc"):
            import pyarrow as pa

            table = pa.table(table)
        return cls(table, name, added or {})

    def __str__(self) -> str:
        return self.name

    def __len__(self) -> int:
        return len(self.table)

    @property
    def parent(self) -> str:
        """The name of several frames."""
        return "frames"

    @property
    def names(self) -> list[str]:
        """The names of the table's columns, without those added."""
        arrow = hasattr(self.table, "column_names")
        return list(map(str, self.table.column_names if arrow else self.table.columns))

    def cells(self) -> list[Sequence[str]]:
        """Return the cells of each column as texts; gaps are empty.

        Raises DataError for a cell that is too long.
        """
        pandas = hasattr(self.table, "iloc")
        columns = (
            [self.table.iloc[:, k] for k in range(self.table.shape[1])]
            if pandas
            else self.table.columns
        )
        try:
            return [*map(column_cells, columns), *self.added.values()]
        except ValueError as fault:
            raise DataError(f"{self.name}: {fault}; leave its column out") from None

    def records(self) -> Iterator[list[str]]:
        """Yield the names of the columns, then each row's ``cells``."""
        yield [*self.names, *self.added]
        yield from map(list, zip(*self.cells(), strict=True))


Source = Path | Frame
"""Where a table comes from."""

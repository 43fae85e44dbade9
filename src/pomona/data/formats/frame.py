"""Frames of a Python program: pandas, and all that give Arrow columns (polars, pyarrow, DuckDB)."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar
from unicodedata import normalize

import pyarrow as pa

from pomona.core.errors import DataError
from pomona.data.formats.arrow import clock_notes, common
from pomona.data.formats.columns import Columns, cell_text, text_array

ARROW = ("__arrow_c_stream__", "__arrow_c_array__")


def is_frame(values: Any) -> bool:
    """Return whether values are a table with named columns: of pandas, polars, pyarrow, DuckDB."""
    return hasattr(values, "columns") and (
        hasattr(values, "iloc") or any(hasattr(values, name) for name in ARROW)
    )


@contextmanager
def _converting(name: str) -> Iterator[None]:
    """Raise DataError for a column that Arrow refuses."""
    try:
        yield
    except (pa.ArrowException, TypeError, ValueError) as fault:
        reason = str(fault).partition("\n")[0]
        raise DataError(f"{name}: {reason}; leave the column out") from None


@dataclass(frozen=True, eq=False)
class Frame:
    """A table in memory.

    Attributes:
        table: of pandas or pyarrow.
        name: for messages.
        added: cells of further columns, by their names.
        parent: the name of several frames.
    """

    table: Any
    name: str
    added: Mapping[str, Sequence[str]] = field(default_factory=dict)
    parent: ClassVar[str] = "frames"

    @classmethod
    def from_table(
        cls, table: Any, name: str, added: Mapping[str, Sequence[str]] | None = None
    ) -> "Frame":
        """Return a frame. Raises DataError for anything else."""
        if not is_frame(table):
            raise DataError(
                f"{name} is a {type(table).__name__}; give a frame (of pandas, say), or from_arrays"
            )
        with _converting(name):
            return cls(table if hasattr(table, "iloc") else pa.table(table), name, added or {})

    def __str__(self) -> str:
        return self.name

    def __len__(self) -> int:
        return len(self.table)

    @property
    def names(self) -> list[str]:
        """The names of the table's columns as those of files are read, without those added."""
        arrow = hasattr(self.table, "column_names")
        names = self.table.column_names if arrow else self.table.columns
        return [normalize("NFC", str(name).strip()) for name in names]

    @cached_property
    def columns(self) -> Columns:
        """The columns, by name; rows count from 0. Raises DataError for one that Arrow refuses."""
        table = self.table
        with _converting(self.name):
            if hasattr(table, "iloc"):
                arrays = [_pandas_array(table.iloc[:, k]) for k in range(table.shape[1])]
            else:
                arrays = list(table.columns)
            types = [array.type for array in arrays]
            arrays = [common(array) for array in arrays]
        added = [pa.chunked_array([text_array(cells)]) for cells in self.added.values()]
        notes = [f"{self.name}: {note}" for note in clock_notes(self.names, types)]
        names = (*self.names, *self.added)
        return Columns(names, (*arrays, *added), first_row=0, notes=tuple(notes))

    def cells(self) -> list[list[str]]:
        """Return the cells of each column as texts; gaps are empty."""
        return [column_cells(array) for array in self.columns.arrays]


def column_cells(column: Any) -> list[str]:
    """Return the cells of a column of pandas, polars or Arrow as texts; gaps are empty."""
    values = common(_pandas_array(column)) if hasattr(column, "isna") else column
    cells = values.to_pylist() if hasattr(values, "to_pylist") else values.to_list()
    return [cell_text(cell) for cell in cells]


def _pandas_array(column: Any) -> Any:
    """Return a pandas column as an Arrow array; objects of several types as their texts, and dates,
    since Arrow would give all the form and zone of the first; periods as the dates on which they
    begin, and intervals, also those of ``pandas.cut``, as pandas writes them to CSV.
    """
    dtype = getattr(column.dtype, "categories", column).dtype
    if str(dtype).startswith("period"):
        column = column.astype(dtype).dt.start_time
    if str(dtype).startswith("interval"):
        column = column.astype(object)
    try:
        array = pa.array(column, from_pandas=True)
        is_dates = pa.types.is_timestamp(array.type) or pa.types.is_date(array.type)
        as_texts = column.dtype == object and is_dates
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        as_texts = True
    if as_texts:
        gaps = column.isna()
        array = text_array(
            None if gap else cell_text(cell) for cell, gap in zip(column, gaps, strict=True)
        )
    return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])

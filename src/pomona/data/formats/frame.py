"""Frames of a Python program: pandas, and all that give Arrow columns (polars, pyarrow, DuckDB)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from unicodedata import normalize

import pyarrow as pa

from pomona.core.errors import DataError
from pomona.data.formats.arrow import common
from pomona.data.formats.columns import Columns, cell_text

ARROW = ("__arrow_c_stream__", "__arrow_c_array__")


def is_frame(values: Any) -> bool:
    """Return whether values are a table with named columns: of pandas, polars, pyarrow, DuckDB."""
    return hasattr(values, "columns") and (
        hasattr(values, "iloc") or any(hasattr(values, name) for name in ARROW)
    )


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
        return cls(table if hasattr(table, "iloc") else pa.table(table), name, added or {})

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
        """The names of the table's columns as those of files are read, without those added."""
        arrow = hasattr(self.table, "column_names")
        names = self.table.column_names if arrow else self.table.columns
        return [normalize("NFC", str(name).strip()) for name in names]

    @cached_property
    def columns(self) -> Columns:
        """The columns, by name; rows count from 0. Raises DataError for one that Arrow refuses."""
        pandas = hasattr(self.table, "iloc")
        try:
            each = (
                [_pandas_array(self.table.iloc[:, k]) for k in range(self.table.shape[1])]
                if pandas
                else self.table.columns
            )
            arrays = [common(array) for array in each]
        except (pa.ArrowException, TypeError, ValueError) as fault:
            reason = str(fault).partition("\n")[0]
            raise DataError(f"{self.name}: {reason}; leave the column out") from None
        arrays += [pa.chunked_array([pa.array(c, pa.string())]) for c in self.added.values()]
        return Columns((*self.names, *self.added), tuple(arrays), first_row=0)

    def cells(self) -> list[list[str]]:
        """Return the cells of each column as texts; gaps are empty."""
        return [texts(array) for array in self.columns.arrays]


def column_cells(column: Any) -> list[str]:
    """Return the cells of a column of pandas, polars or Arrow as texts; gaps are empty."""
    if hasattr(column, "isna"):
        return texts(common(_pandas_array(column)))
    values = column.to_pylist() if hasattr(column, "to_pylist") else column.to_list()
    return [cell_text(value) for value in values]


def texts(array: Any) -> list[str]:
    """Return the cells of a ``pyarrow.ChunkedArray`` as texts; gaps are empty."""
    return [cell_text(value) for value in array.to_pylist()]


def _pandas_array(column: Any) -> Any:
    """Return a pandas column as an Arrow array; objects of several types as their texts."""
    try:
        array = pa.array(column, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        gaps = column.isna()
        cells = [None if gap else str(cell) for cell, gap in zip(column, gaps, strict=True)]
        return pa.chunked_array([pa.array(cells, pa.large_string())])
    return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])

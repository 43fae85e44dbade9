"""Parquet files as records of text: the same cells that the table has as CSV, so that both are read by one road."""

from collections.abc import Iterator
from datetime import date, datetime
from importlib import import_module
from importlib.util import find_spec
from math import isnan
from pathlib import Path
from typing import Any

from pomona.core.errors import ConfigError, DataError, with_extra
from pomona.core.files import opened
from pomona.data.array_file import file, reading

SUFFIX = ".parquet"
ROWS = 1 << 12  # in memory at once
LONGEST = 1 << 16  # characters of a cell: a dictionary repeats it in every row for nothing


def is_parquet(path: Path) -> bool:
    """Whether a file is taken for Parquet: by its name."""
    return path.suffix.lower() == SUFFIX


def records(path: Path, most: int) -> Iterator[list[str]]:
    """The names of the columns, then the cells of each row: empty for null and NaN, ISO for dates, True and False.

    Columns of lists, structures or bytes have their cells written as Python does, which no reader takes for a number.

    Raises:
        ConfigError: pyarrow is not installed.
        DataError: a file that cannot be read, or is no Parquet, or has more than ``most`` rows: a few kilobytes of a
            dictionary may promise any number of them.
    """
    if not find_spec("pyarrow"):
        raise ConfigError(f"{path}: Parquet needs pyarrow; {with_extra('tables')}, or save the table as CSV")
    parquet = import_module("pyarrow.parquet")
    with reading(path), opened(file(path)) as raw:
        try:
            table = parquet.ParquetFile(raw, page_checksum_verification=True)
            if table.metadata.num_rows > most:
                raise DataError(f"{path} has {table.metadata.num_rows} rows, at most {most} are read; take a part")
            _require_modest(table.metadata)
            yield list(map(str, table.schema_arrow.names))
            for batch in table.iter_batches(ROWS, use_threads=False):
                columns = [[_cell(value) for value in column.to_pylist()] for column in batch.columns]
                yield from map(list, zip(*columns, strict=True))
        except (
            OSError,
            ValueError,
            OverflowError,
            NotImplementedError,
            MemoryError,
        ) as fault:
            why = str(fault).strip().partition("\n")[0]
            raise DataError(f"{path}: no Parquet that can be read ({why}); save it again") from fault


def _require_modest(about: Any) -> None:
    """Raise ValueError for a column that unpacks to more than its cells may have: before anything is unpacked."""
    for group in map(about.row_group, range(about.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            size, most = column.total_uncompressed_size, 4 * LONGEST * (column.num_values + 1)  # UTF-8: 4 bytes
            if size > most:
                raise ValueError(
                    f"column {column.path_in_schema} unpacks to {size} bytes, its cells have at most {most}"
                )


def _cell(value: Any) -> str:
    """A value as CSV has it."""
    if value is None or (isinstance(value, float) and isnan(value)):
        return ""
    text = value.isoformat() if isinstance(value, date | datetime) else str(value)
    if len(text) > LONGEST:
        raise ValueError(f"a cell has {len(text)} characters, at most {LONGEST} are read")
    return text

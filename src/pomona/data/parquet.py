"""Parquet files as records of text with the same cells as CSV, so that both share one reader."""

from collections.abc import Callable, Iterator
from datetime import date, datetime
from importlib import import_module
from importlib.util import find_spec
from math import isnan
from pathlib import Path
from typing import IO, Any

from pomona.core.errors import ConfigError, DataError, with_extra
from pomona.core.files import opened
from pomona.data.array_file import file, reading
from pomona.data.parquet_pages import groups, largest_page

SUFFIX = ".parquet"
ROWS = 1 << 12  # in memory at once
LONGEST = 1 << 16  # characters of a cell
MOST = 1 << 29  # maximum bytes decompressed at once
MOST_IN_ALL = 1 << 32  # characters: a dictionary can repeat a cell in every row at no cost
CELL = 1 << 7  # bytes of a cell as a Python object


def cell(value: Any) -> str:
    """Format a value as in CSV: empty for null and NaN, ISO for dates, True and False; a picture as
    its path.

    Other structures and bytes are written in Python's notation, which no reader parses as a number.
    """
    if value is None or (isinstance(value, float) and isnan(value)):
        return ""
    if picture(value):
        value = (value["path"] if isinstance(value, dict) else None) or "picture"
    text = value.isoformat() if isinstance(value, date | datetime) else str(value)
    if len(text) > LONGEST:
        raise ValueError(f"a cell has {len(text)} characters, at most {LONGEST} are read")
    return text


def picture(value: Any) -> bytes:
    """Return the bytes of a cell with a picture, which may have its path beside it, as the Hugging
    Face Hub stores them; none for others.
    """
    if isinstance(value, dict) and value.keys() == {"bytes", "path"}:
        value = value["bytes"]
    return value if isinstance(value, bytes) else b""


def records(
    path: Path, most: int, read: Callable[[Any], str | bytes] = cell
) -> Iterator[list[Any]]:
    """Yield the column names, then what ``read`` makes of each row's values.

    Raises:
        ConfigError: pyarrow is not installed.
        DataError: the file cannot be read, is not Parquet, has more than ``most`` rows or
            ``MOST_IN_ALL`` characters, or exceeds a limit of ``_rows_at_once``; a few kilobytes may
            declare any number of them.
    """
    if not find_spec("pyarrow"):
        raise ConfigError(
            f"{path}: Parquet needs pyarrow; {with_extra('tables')}, or save the table as CSV"
        )
    parquet = import_module("pyarrow.parquet")
    with reading(path), opened(file(path)) as raw:
        try:
            table = parquet.ParquetFile(raw, page_checksum_verification=True)
            if table.metadata.num_rows > most:
                raise DataError(
                    f"{path} has {table.metadata.num_rows} rows, at most {most} are read; take a "
                    "part"
                )
            rows, left, missing = _rows_at_once(table, raw), MOST_IN_ALL, table.metadata.num_rows
            yield list(map(str, table.schema_arrow.names))
            for batch in table.iter_batches(rows, use_threads=False):
                columns = [
                    [read(value) for value in column.to_pylist()] for column in batch.columns
                ]
                left -= sum(sum(map(len, column)) for column in columns)
                if left < 0:
                    raise DataError(
                        f"{path} has more than {MOST_IN_ALL} characters, the limit; read a part "
                        "of it"
                    )
                missing -= batch.num_rows
                yield from map(list, zip(*columns, strict=True))
            if missing:
                raise ValueError(f"{missing} of its {table.metadata.num_rows} rows are missing")
        except (
            OSError,
            ValueError,
            OverflowError,
            NotImplementedError,
            LookupError,
            TypeError,
            MemoryError,
        ) as fault:
            why = str(fault).strip().partition("\n")[0]
            raise DataError(
                f"{path}: not a readable Parquet file ({why}); save it again"
            ) from fault


def note(path: Path, key: str) -> bytes:
    """Return a note of a file whose ``records`` have been read; empty if there is none."""
    with reading(path), opened(file(path)) as raw:
        found = import_module("pyarrow.parquet").ParquetFile(raw).schema_arrow.metadata or {}
        noted: bytes = found.get(key.encode(), b"")
        return noted


def _rows_at_once(table: Any, raw: IO[bytes]) -> int:
    """Return the number of rows to read at a time: as many as fit ``MOST`` bytes with cells of
    maximum length.

    The pages' own headers are read, since they determine the decompressed size; the sizes in the
    metadata may be false. A text is at most as long as the largest page of its column, and a
    dictionary may repeat it in every row.

    Raises:
        ValueError: the dictionaries and the largest pages of a row group's columns decompress to
            more than ``MOST`` bytes, one row may exceed it, or a column holds lists, which may have
            any length in a row.
    """
    columns, rows = list(map(table.schema.column, range(len(table.schema)))), ROWS
    if lists := [column.path for column in columns if column.max_repetition_level]:
        raise ValueError(f"column {lists[0]} holds lists; leave it out")
    for group in groups(raw):
        held = row = 0
        for column, chunk in zip(columns, group, strict=True):
            largest = largest_page(chunk, raw)
            held += 2 * largest  # a dictionary, and one page of rows
            row += max(
                CELL, largest if column.physical_type == "BYTE_ARRAY" else column.length or 0
            )
            if max(held, row) > MOST:
                raise ValueError(
                    f"up to column {column.path} {max(held, row)} bytes are unpacked at once, at "
                    f"most {MOST} are; write row groups of fewer rows"
                )
        rows = min(rows, MOST // max(row, 1))
    raw.seek(0)
    return rows

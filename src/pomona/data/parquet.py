"""Parquet files as records of text with the same cells as CSV, so that both share one reader."""

from collections.abc import Callable, Iterator
from datetime import date, datetime
from importlib import import_module
from importlib.util import find_spec
from math import isnan
from os import SEEK_CUR, SEEK_END
from pathlib import Path
from typing import IO, Any

from pomona.core.errors import ConfigError, DataError, with_extra
from pomona.core.files import opened
from pomona.data.array_file import file, reading

SUFFIX = ".parquet"
ROWS = 1 << 12  # in memory at once
LONGEST = 1 << 16  # characters of a cell
MOST = 1 << 29  # maximum bytes decompressed at once
MOST_IN_ALL = 1 << 32  # characters: a dictionary can repeat a cell in every row at no cost
DEEPEST = 8  # maximum nesting of structures
CELL = 1 << 7  # bytes of a cell as a Python object
# Thrift type codes
TRUTHS, I8, I32, I64, DOUBLE, BYTES, LIST, STRUCTURE = (
    {1, 2},
    3,
    5,
    6,
    7,
    8,
    9,
    12,
)
# lists in parquet.thrift: pyarrow reads their elements as this type, whatever the file declares
LISTS: dict[tuple[int, ...], int] = {
    **dict.fromkeys(
        ((2,), (4,), (5,), (7,), (4, 1), (4, 4), (4, 1, 3, 8), (4, 1, 3, 13)), STRUCTURE
    ),
    **dict.fromkeys(((4, 1, 3, 3), (4, 1, 8, 2, 1)), BYTES),
    **dict.fromkeys(((4, 1, 3, 2), (4, 1, 3, 17, 2)), I32),
    **dict.fromkeys(((4, 1, 3, 16, 2), (4, 1, 3, 16, 3)), I64),
}


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
    for group in _groups(raw):
        held = row = 0
        for column, chunk in zip(columns, group, strict=True):
            largest = _largest_page(chunk, raw)
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


def _groups(raw: IO[bytes]) -> list[list[dict[Any, Any]]]:
    """Return each row group's columns as Thrift structures: ``ColumnMetaData`` of parquet.thrift.

    Parsed here because pyarrow crashes the process when it accesses a column with damaged metadata,
    or writes it.
    """
    end = raw.seek(-8, SEEK_END)
    raw.seek(-8 - int.from_bytes(raw.read(4), "little"), SEEK_END)
    about = _structure(raw)
    if raw.tell() != end:
        raise _damaged()
    return [[chunk[3, STRUCTURE] for chunk in group[1, LIST]] for group in about[4, LIST]]


def _largest_page(chunk: dict[Any, Any], raw: IO[bytes]) -> int:
    """Return the decompressed bytes of a column's largest page.

    Raises ValueError for pages outside the file.
    """
    if not chunk[5, I64]:  # pyarrow reads no page of a column without values, and there may be none
        return 0
    start, dictionary = chunk[9, I64], chunk.get((11, I64), 0)
    start = dictionary if 0 < dictionary < start else start  # as pyarrow does
    end, largest = start + chunk[7, I64], 0
    if not 0 <= start <= end <= raw.seek(0, SEEK_END):
        raise ValueError("a column does not lie in the file")
    raw.seek(start)
    while raw.tell() < end:
        header = _structure(raw)
        unpacked, packed = header.get((2, I32), -1), header.get((3, I32), -1)
        if unpacked < 0 or not 0 <= packed <= end - raw.tell():
            raise ValueError("a page does not lie in its column")
        largest = max(largest, unpacked)
        raw.seek(packed, SEEK_CUR)
    return largest


def _structure(raw: IO[bytes], at: tuple[int, ...] = ()) -> dict[tuple[int, int], Any]:
    """Parse a structure in Thrift's compact protocol by field and type, without booleans and bytes.

    Anything that another reader might interpret differently is rejected: a repeated field, a field
    number that does not fit 16 bits, or lists with element types that Parquet does not use. Such
    differences could hide a page of gigabytes.

    Source: Apache Thrift, "Thrift compact protocol encoding".

    Args:
        raw: positioned at the structure's first byte; left after its last.
        at: the path of fields to it.
    """
    found: dict[tuple[int, int], Any] = {}
    field = 0
    while kind := (head := _byte(raw)) & 15:
        before, field = field, field + (head >> 4) if head >> 4 else _signed(raw)
        if not before < field < 1 << 15 or len(at) > DEEPEST:
            raise _damaged()
        if kind not in TRUTHS:
            found[field, kind] = _value(raw, kind, (*at, field))
    return found


def _value(raw: IO[bytes], kind: int, at: tuple[int, ...]) -> Any:
    if kind in {I32, I64}:
        return _signed(raw)
    if kind == BYTES:
        return raw.seek(_unsigned(raw), SEEK_CUR)
    if kind == STRUCTURE:
        return _structure(raw, at)
    if kind == LIST:
        return _list(raw, at)
    if kind in {*TRUTHS, I8}:
        return _byte(raw)
    if kind == DOUBLE:  # not skipped: a list of 2^60 could take no bytes
        return [_byte(raw) for _ in range(8)]
    raise _damaged()


def _list(raw: IO[bytes], at: tuple[int, ...]) -> list[Any]:
    head = _byte(raw)
    of, length = head & 15, head >> 4 if head < 240 else _unsigned(raw)
    if length and (of == LIST or LISTS.get(at, of) != of):
        raise _damaged()
    return [_value(raw, of, at) for _ in range(length)]


def _damaged() -> ValueError:
    return ValueError("its metadata or a page's header are damaged")


def _byte(raw: IO[bytes]) -> int:
    if not (one := raw.read(1)):
        raise ValueError("the file ends within a page's header")
    return one[0]


def _unsigned(raw: IO[bytes]) -> int:
    value = 0
    for shift in range(0, 63, 7):
        value |= ((byte := _byte(raw)) & 127) << shift
        if byte < 128:
            return value
    raise _damaged()


def _signed(raw: IO[bytes]) -> int:
    value = _unsigned(raw)
    return value >> 1 ^ -(value & 1)

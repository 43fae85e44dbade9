"""Parquet, Arrow (Feather) and ORC by pyarrow, and the types of Arrow that later steps know.

Arrays are built without ``pyarrow.array``, which would load pandas, where it is installed, in each
child process that reads a file.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import orc as arrow_orc
from pyarrow import parquet as arrow_parquet

from pomona.core.errors import DataError
from pomona.core.files import opened
from pomona.data.formats.columns import Columns
from pomona.data.formats.transfer import spooled

ROWS = 1 << 14  # read at once


def parquet(path: Path, settings: object) -> Columns:
    """Read a Parquet file. Raises DataError if rows are missing, as after a cut."""
    with opened(path) as raw:
        file = arrow_parquet.ParquetFile(raw, page_checksum_verification=True)
        batches = file.iter_batches(ROWS, use_threads=False)
        columns = columns_of(spooled(path, file.schema_arrow, batches))
        if len(columns) < file.metadata.num_rows:
            missing = file.metadata.num_rows - len(columns)
            raise DataError(f"{path}: {missing} of its rows are missing; save it again")
    return columns


def ipc(path: Path, settings: object) -> Columns:
    """Read an Arrow file or stream, or a Feather file."""
    with opened(path) as raw:
        start = raw.read(6)
        raw.seek(0)
        if start == b"ARROW1":
            file = pa.ipc.open_file(pa.PythonFile(raw, "r"))
            batches = (file.get_batch(k) for k in range(file.num_record_batches))
            return columns_of(spooled(path, file.schema, batches))
        stream = pa.ipc.open_stream(pa.PythonFile(raw, "r"))
        return columns_of(spooled(path, stream.schema, stream))


def orc(path: Path, settings: object) -> Columns:
    """Read an ORC file."""
    with opened(path) as raw:
        file = arrow_orc.ORCFile(pa.PythonFile(raw, "r"))
        batches = (file.read_stripe(k) for k in range(file.nstripes))
        return columns_of(spooled(path, file.schema, batches))


def metadata(path: Path, key: str) -> bytes:
    """Return a note of a Parquet file's schema; empty if it has none."""
    with opened(path) as raw:
        notes = arrow_parquet.ParquetFile(raw).schema_arrow.metadata or {}
    value: bytes = notes.get(key.encode(), b"")
    return value


def columns_of(table: Any, **known: Any) -> Columns:
    """Return the columns of a ``pyarrow.Table``; ``known``: further attributes."""
    return Columns(tuple(table.column_names), tuple(map(common, table.columns)), **known)


def common(array: Any) -> Any:
    """Return a column in a type that later steps know.

    Texts that a writer stored as bytes become texts, if every cell is valid UTF-8; so do views.
    """
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return common(
            pa.chunked_array([chunk.storage for chunk in array.chunks], kind.storage_type)
        )
    if pa.types.is_string_view(kind):
        return array.cast(pa.large_string())
    if pa.types.is_dictionary(kind):
        return common(array.cast(kind.value_type))
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_binary_view(kind):
        return common(array.cast(pa.large_binary()))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        try:
            return array.cast(pa.large_string())
        except pa.ArrowInvalid:
            return array
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return array.cast(pa.timestamp("us", kind.tz), safe=False)
    return array


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

"""Parquet, Arrow (Feather) and ORC by pyarrow, and the types of Arrow that later steps know."""

import re
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyarrow import compute
from pyarrow import orc as arrow_orc
from pyarrow import parquet as arrow_parquet

from pomona.core.errors import DataError, listed
from pomona.core.files import opened
from pomona.data.formats.columns import Columns
from pomona.data.formats.transfer import spooled

ROWS = 1 << 14  # read at once
ROW_NAMES = re.compile(r"__index_level_\d+__")  # of an index without a name
TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # of a second
BYTES = {"binary", "large_binary", "fixed_size_binary", "binary_view"}


def parquet(path: Path, settings: object) -> Columns:
    """Read a Parquet file. Raises DataError if rows are missing, as after a cut."""
    with opened(path) as raw:
        file = arrow_parquet.ParquetFile(raw, page_checksum_verification=True)
        batches = file.iter_batches(ROWS, use_threads=False)
        columns = columns_of(spooled(path, file.schema_arrow, batches))
        columns = replace(columns, notes=(*columns.notes, *_counted_durations(file)))
        if len(columns) < file.metadata.num_rows:
            missing = file.metadata.num_rows - len(columns)
            raise DataError(f"{path}: {missing} of its rows are missing; save it again")
    return columns


def _counted_durations(file: arrow_parquet.ParquetFile) -> list[str]:
    """Return a note on the columns of durations that Arrow wrote as categories, and reads as whole
    numbers.
    """
    if not (stored := (file.metadata.metadata or {}).get(b"ARROW:schema")):
        return []
    written = pa.ipc.read_schema(pa.py_buffer(b64decode(stored)))
    pairs = zip(written, file.schema_arrow.types, strict=False)
    counted = [f.name for f, kind in pairs if _is_clock(f.type) and not _is_clock(kind)]
    line = f"durations are read as whole numbers of their unit: {listed(counted, 8)}"
    return [line] if counted else []


def ipc(path: Path, settings: object) -> Columns:
    """Read an Arrow file or stream, or a Feather file."""
    with opened(path) as raw:
        start = raw.read(6)
        raw.seek(0)
        if start == b"ARROW1":
            file = pa.ipc.open_file(pa.PythonFile(raw, "r"))
            batches = (file.get_batch(k) for k in range(file.num_record_batches))
            return columns_of(spooled(path, file.schema, batches))
        if start[:4] == b"FEA1":
            raise DataError(f"{path} is Feather of version 1; save it as version 2, or Parquet")
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


def columns_of(table: pa.Table) -> Columns:
    """Return the columns of a table in types that later steps know, without pandas' row names."""
    index = [name for name in table.column_names if ROW_NAMES.fullmatch(name)]
    notes = [f"row names of pandas are left out: {listed(index)}"] if index else []
    table = table.drop_columns(index)
    if counted := [field.name for field in table.schema if _is_period(field)]:
        notes.append(
            f"periods of pandas are read as numbers of months, days or the like since 1970: "
            f"{listed(counted)}; store the dates on which they begin"
        )
    names = tuple(table.column_names)
    notes += clock_notes(names, table.schema.types)
    return Columns(names, tuple(map(common, table.columns)), notes=tuple(notes))


def clock_notes(names: Sequence[str], types: Sequence[pa.DataType]) -> list[str]:
    """Return a note on the columns of times of day and durations, if there are any."""
    clocks = [name for name, kind in zip(names, types, strict=True) if _is_clock(kind)]
    line = f"times and durations are read in seconds, without a zone: {listed(clocks, 8)}"
    return [line] if clocks else []


def _is_clock(arrow_type: pa.DataType) -> bool:
    arrow_type = arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type
    return bool(pa.types.is_time(arrow_type) or pa.types.is_duration(arrow_type))


def _is_period(field: pa.Field) -> bool:
    """Return whether a column has periods of pandas: numbers, unless pandas is loaded."""
    name = (field.metadata or {}).get(b"ARROW:extension:name", b"").decode()
    arrow_type = getattr(field.type, "value_type", field.type)  # of a dictionary
    return bool(getattr(arrow_type, "extension_name", name) == "pandas.period")


def common(array: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column in a type that later steps know.

    Texts that a writer stored as bytes become texts, if every cell is valid UTF-8; so do views.
    """
    arrow_type = array.type
    if isinstance(arrow_type, pa.BaseExtensionType):
        chunks = [chunk.storage for chunk in array.chunks]
        return common(pa.chunked_array(chunks, arrow_type.storage_type))
    if pa.types.is_dictionary(arrow_type):
        if pa.types.is_string_view(arrow_type.value_type):  # of polars; Arrow does not cast it
            array = array.cast(pa.dictionary(arrow_type.index_type, pa.large_string()))
        return common(array.cast(array.type.value_type))
    if pa.types.is_string_view(arrow_type):
        return array.cast(pa.large_string())
    if pa.types.is_timestamp(arrow_type) and arrow_type.unit == "ns":
        return array.cast(pa.timestamp("us", arrow_type.tz), safe=False)
    if _is_clock(arrow_type):
        return _seconds(array)
    if pa.types.is_decimal(arrow_type) and arrow_type.bit_width < 128:  # Arrow lacks functions
        return array.cast(pa.decimal128(arrow_type.precision, arrow_type.scale))
    return _decoded(array) if str(arrow_type).partition("[")[0] in BYTES else array


def _seconds(array: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return times of day or durations in seconds."""
    ticks = array.cast(pa.int32() if array.type.bit_width == 32 else pa.int64())
    return compute.divide(ticks.cast(pa.float64(), safe=False), TICKS[array.type.unit])


def _decoded(array: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return bytes as texts, if every cell is valid UTF-8 without NUL, which intervals have."""
    array = array.cast(pa.large_binary())
    try:
        texts = array.cast(pa.large_string())
    except pa.ArrowInvalid:
        return array
    return array if compute.any(compute.match_substring(texts, "\0")).as_py() else texts

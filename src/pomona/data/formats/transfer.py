"""Tables read in a child process, whose columns come as a stream of Arrow in a temporary file.

A table may be several files of one folder, as Spark, DuckDB and polars write them. A folder
``site=Nord`` gives its rows a column ``site`` with the text ``Nord`` (Hive's partitions).
"""

import mmap
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from pomona.core.errors import DataError, listed
from pomona.core.table import reads_as_number
from pomona.data.array_file import workbook
from pomona.data.formats.columns import MOST_ROWS, Columns, Reader, text_array
from pomona.data.reader_process import Reply, read_in_child
from pomona.data.table_settings import Columns as ColumnSettings
from pomona.data.table_settings import CsvHeading

MOST_BYTES = 1 << 36  # of all columns of a file as Arrow; a few kilobytes may unpack to any number
GAP = "__HIVE_DEFAULT_PARTITION__"
FACTS = ("names", "row_word", "first_row", "has_names", "free_commas", "notes")


class Work(NamedTuple):
    """A table to read: its path, its files, and the reader and title of their format."""

    path: Path
    files: Sequence[Path]
    reader: Reader
    title: str


def read_columns(work: Sequence[Work], settings: object) -> list[Columns]:
    """Read tables in one child process, and return their columns.

    The arrays lie in a temporary file that is mapped, so that they need no memory of this process.

    Raises as ``read_in_child`` does, and DataError as the readers do.
    """
    size = sum(workbook(file)[0].stat().st_size for table in work for file in table.files)
    source = work[0].path if len(work) == 1 else f"{work[0].path} and {len(work) - 1} more"
    with tempfile.TemporaryFile() as answer:
        reply = read_in_child(partial(_read, work, settings, answer.fileno()), source, size)
        content = pa.py_buffer(_mapped(answer.fileno()))
    columns, start = [], 0
    for facts, length in reply.facts:
        table = pa.ipc.open_stream(content.slice(start, length)).read_all()
        facts |= {"names": tuple(facts["names"]), "notes": tuple(facts["notes"])}
        columns.append(Columns(arrays=tuple(table.columns), **facts))
        start += length
    return columns


def spooled(path: Path, schema: Any, batches: Iterable[Any]) -> Any:
    """Return batches of rows as one ``pyarrow.Table``, mapped from a temporary file.

    A reader may so give more rows than the memory of its process holds. Raises DataError for more
    than ``MOST_ROWS`` rows or ``MOST_BYTES``.
    """
    rows = size = 0
    with tempfile.TemporaryFile() as file:
        with pa.ipc.new_stream(file, schema) as stream:
            for batch in batches:
                rows, size = rows + batch.num_rows, size + batch.nbytes
                if rows > MOST_ROWS + 1 or size > MOST_BYTES:
                    limit = f"{MOST_ROWS} rows" if size <= MOST_BYTES else f"{MOST_BYTES} bytes"
                    raise DataError(f"{path} has more than the limit of {limit}; read a part of it")
                stream.write_batch(batch)
        file.flush()
        return pa.ipc.open_stream(pa.py_buffer(_mapped(file.fileno()))).read_all()


def _mapped(file: int) -> mmap.mmap:
    return mmap.mmap(file, 0, access=mmap.ACCESS_READ)


def _read(work: Sequence[Work], settings: object, answer: int) -> Reply:
    """Read each table and append its columns to the answer; returns facts and lengths."""
    facts = []
    with os.fdopen(os.dup(answer), "wb") as stream:
        for task in work:
            start = stream.tell()
            try:
                columns = _table(task, settings)
                numbers = [str(k) for k in range(len(columns.arrays))]
                table = pa.table(list(columns.arrays), names=numbers)
                table.validate(full=True)
            except MemoryError:  # some of Arrow's are ArrowException, too
                raise
            except (pa.ArrowException, OSError, ValueError, LookupError, SyntaxError) as fault:
                reason = str(fault).strip().partition("\n")[0]
                raise DataError(
                    f"{task.path}: not a readable {task.title} file ({reason}); save it again"
                ) from fault
            with pa.ipc.new_stream(stream, table.schema) as writer:
                writer.write_table(table)
            facts.append(({name: getattr(columns, name) for name in FACTS}, stream.tell() - start))
    return Reply(facts)


def _table(work: Work, settings: object) -> Columns:
    """Return the columns of a file, or of all files of a folder, which are matched by name.

    Raises DataError for files with different columns.
    """
    path, files = work.path, work.files
    if not path.is_dir():
        return work.reader(path, settings)
    tables = [_with_keys(path, file, work.reader(file, settings), settings) for file in files]
    first = tables[0]
    if not first.has_names and _has_header(first, settings):
        further = zip(files[1:], tables[1:], strict=True)
        tables[1:] = [_below(first, file, table) for file, table in further]
    _require_same_names(files, tables)
    joint = pa.concat_tables(map(_arrow_table, tables), promote_options="permissive")
    keys = [name for name, _ in _keys(path, files[0])]
    origin = f", and its folders give {listed(keys)}" if keys else ""
    note = f"{path}: {len(files)} files are read as one table{origin}"
    notes = (note, *(note for table in tables for note in table.notes))
    return replace(first, arrays=tuple(joint.columns), row_word="row", notes=notes)


def _require_same_names(files: Sequence[Path], tables: Sequence[Columns]) -> None:
    """Raise DataError for a file with columns that the first one lacks, or without one of its."""
    for file, table in zip(files, tables, strict=True):
        if different := {*tables[0].names} ^ {*table.names}:
            raise DataError(
                f"{file} and {files[0]} have different columns (only one has "
                f"{listed(sorted(different), 4)}); give both the same, or set data.path to one file"
            )


def _arrow_table(columns: Columns) -> pa.Table:
    """Return columns as a table of Arrow."""
    return pa.table(list(columns.arrays), names=list(columns.names))


def _keys(path: Path, file: Path) -> list[tuple[str, str]]:
    """Return the names and values that the folders between ``path`` and a file have."""
    folders = file.relative_to(path).parts[:-1]
    pairs = (folder.partition("=") for folder in folders if "=" in folder)
    return [(unquote(name), unquote(value)) for name, _, value in pairs]


def _has_header(columns: Columns, settings: object) -> bool:
    """Return whether the first row of columns without names has their names: as set; else if a
    column is given by name, or no cell of the row is a number.
    """
    if isinstance(settings, CsvHeading) and (settings.header is not None or settings.columns):
        return bool(settings.header)
    if isinstance(settings, ColumnSettings) and settings.gives_names:
        return True
    return len(columns) > 0 and not any(map(reads_as_number, columns.first_cells()))


def _with_keys(path: Path, file: Path, columns: Columns, settings: object) -> Columns:
    """Return the columns of a file with those of its folders, whose names go into a first row of
    names too.
    """
    names, arrays = list(columns.names), list(columns.arrays)
    has_header = not columns.has_names and _has_header(columns, settings)
    for name, value in _keys(path, file):
        if name not in names:
            cells = [None if value == GAP else value] * len(columns)
            if has_header:
                cells[:1] = [name]
            names.append(name if columns.has_names else str(len(names)))
            arrays.append(pa.chunked_array([text_array(cells)]))
    return replace(columns, names=tuple(names), arrays=tuple(arrays))


def _require_a_row(file: Path, cells: Sequence[str], names: Sequence[str]) -> None:
    """Raise DataError for a first row that has some of another file's names."""
    if {cell.casefold() for cell in cells} & {name.casefold() for name in names}:
        raise DataError(
            f"{file} names its columns {listed(cells)}, and another file of the folder "
            f"{listed(names)}; give both the same names, or set data.path to one file"
        )


def _below(first: Columns, file: Path, table: Columns) -> Columns:
    """Return a further file without a first row that has the first file's names, in its order.

    Raises DataError for a first row that has some of the names only.
    """
    if not len(table) or not len(first):
        return table
    header, cells = first.first_cells(), table.first_cells()
    order = [*range(len(cells))]
    if len({*header}) == len(header) and not any(map(reads_as_number, header)):
        if sorted(cells) != sorted(header):
            _require_a_row(file, cells, header)
            return table
        order = [cells.index(name) for name in header]
    elif cells != header:
        return table
    return replace(table, arrays=tuple(table.arrays[k].slice(1) for k in order))

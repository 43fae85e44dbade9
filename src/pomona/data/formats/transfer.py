"""Columns from the child process that reads files: as a stream of Arrow in a temporary file."""

import mmap
import os
import tempfile
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from pomona.core.errors import DataError
from pomona.data.formats.columns import MOST_ROWS, Columns
from pomona.data.formats.folder import Reader, read_folder
from pomona.data.reader_process import Reply, read_in_child

MOST_BYTES = 1 << 36  # of all columns of a file as Arrow; a few kilobytes may unpack to any number
FACTS = ("names", "row_word", "first_row", "named", "free_commas", "notes")


class Work(NamedTuple):
    """A table to read: its path, the title of its format, and its files, each with its reader."""

    path: Path
    title: str
    files: Sequence[tuple[Path, Reader]]


def read_columns(work: Sequence[Work], settings: object) -> list[Columns]:
    """Read tables in one child process, and return their columns.

    The arrays lie in a temporary file that is mapped, so that they need no memory of this process.

    Raises as ``read_in_child`` does, and DataError as the readers do.
    """
    size = sum(file.stat().st_size for table in work for file, _ in table.files)
    source = work[0].path if len(work) == 1 else f"{work[0].path} and {len(work) - 1} more"
    with tempfile.TemporaryFile() as answer:
        reply = read_in_child(partial(_read, work, settings, answer.fileno()), source, size)
        content = pa.py_buffer(_mapped(answer.fileno()))
    columns, start = [], 0
    for facts, length in reply.facts:
        table = pa.ipc.open_stream(content.slice(start, length)).read_all()
        known: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in facts.items()
        }
        columns.append(Columns(arrays=tuple(table.columns), **known))
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
                    raise DataError(f"{path} has more than {limit}, the limit; read a part of it")
                stream.write_batch(batch)
        file.flush()
        return pa.ipc.open_stream(pa.py_buffer(_mapped(file.fileno()))).read_all()


def _mapped(file: int) -> mmap.mmap:
    return mmap.mmap(file, 0, access=mmap.ACCESS_READ)


def _read(work: Sequence[Work], settings: object, answer: int) -> Reply:
    """Read each table and append its columns to the answer; returns facts and lengths."""
    facts = []
    with os.fdopen(os.dup(answer), "wb") as out:
        for path, title, files in work:
            start = out.tell()
            try:
                columns = (
                    read_folder(path, settings, files)
                    if path.is_dir()
                    else files[0][1](path, settings)
                )
                numbers = [str(k) for k in range(len(columns.arrays))]
                table = pa.table(list(columns.arrays), names=numbers)
                table.validate(full=True)
            except MemoryError:
                raise
            except (pa.ArrowException, OSError, ValueError) as fault:
                reason = str(fault).strip().partition("\n")[0]
                raise DataError(
                    f"{path}: not a readable {title} file ({reason}); save it again"
                ) from fault
            with pa.ipc.new_stream(out, table.schema) as stream:
                stream.write_table(table)
            facts.append(({name: getattr(columns, name) for name in FACTS}, out.tell() - start))
    return Reply(facts)

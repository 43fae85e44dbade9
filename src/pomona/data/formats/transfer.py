"""Columns from the child process that reads files: as a stream of Arrow in a temporary file."""

import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from pomona.core.errors import DataError
from pomona.data.formats.columns import Columns
from pomona.data.reader_process import Reply, read_in_child

FACTS = ("names", "row_word", "first_row", "named", "notes")


def read_columns(
    work: Sequence[tuple[Path, Callable[[Path, object], Columns]]], settings: object
) -> list[Columns]:
    """Read files in one child process, each by its function, and return their columns.

    The arrays lie in a temporary file that is mapped, so that they need no memory of this process.

    Raises as ``read_in_child`` does, and DataError as the functions do.
    """
    paths = [path for path, _ in work]
    size = sum(path.stat().st_size for path in paths if path.is_file())
    with tempfile.TemporaryFile() as answer:
        reply = read_in_child(partial(_read, work, settings, answer.fileno()), paths[0], size)
        if not os.fstat(answer.fileno()).st_size:
            return []
        content = pa.py_buffer(mmap.mmap(answer.fileno(), 0, access=mmap.ACCESS_READ))
    columns, start = [], 0
    for facts, length in reply.facts:
        table = pa.ipc.open_stream(content.slice(start, length)).read_all()
        columns.append(_columns(table, facts))
        start += length
    return columns


def _columns(table: Any, facts: dict[str, Any]) -> Columns:
    facts["names"], facts["notes"] = tuple(facts["names"]), tuple(facts["notes"])
    return Columns(arrays=tuple(table.columns), **facts)


def _read(
    work: Sequence[tuple[Path, Callable[[Path, object], Columns]]], settings: object, answer: int
) -> Reply:
    """Read each file and append its columns to the answer; returns facts and lengths."""
    facts = []
    with os.fdopen(os.dup(answer), "wb") as out:
        for path, read in work:
            start = out.tell()
            try:
                columns = read(path, settings)
                table = pa.table(
                    list(columns.arrays), names=[str(k) for k in range(len(columns.arrays))]
                )
                table.validate(full=True)
            except pa.ArrowMemoryError:
                raise
            except (pa.ArrowException, OSError) as fault:
                reason = str(fault).strip().partition("\n")[0]
                raise DataError(f"{path}: {reason}; check the file, or save it again") from fault
            with pa.ipc.new_stream(out, table.schema) as stream:
                stream.write_table(table)
            facts.append(({name: getattr(columns, name) for name in FACTS}, out.tell() - start))
    return Reply(facts)

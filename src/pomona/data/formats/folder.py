"""A table in several files of one folder, as Spark, DuckDB and polars write them.

A folder ``site=Nord`` gives its rows a column ``site`` with the text ``Nord`` (Hive's partitions).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa

from pomona.core.errors import DataError, listed
from pomona.data.formats.columns import Columns

GAP = "__HIVE_DEFAULT_PARTITION__"
Reader = Callable[[Path, object], Columns]


def read_folder(path: Path, settings: object, files: Sequence[tuple[Path, Reader]]) -> Columns:
    """Read the files of a folder as one table; their columns are matched by name.

    Raises DataError for files with different columns.
    """
    tables = [_table(path, file, read(file, settings)) for file, read in files]
    first = tables[0]
    for (file, _), table in zip(files, tables, strict=True):
        if odd := {*first.names} ^ {*table.names}:
            raise DataError(
                f"{file} and {files[0][0]} have different columns (only one has "
                f"{listed(sorted(odd), 4)}); give both the same, or set data.path to one file"
            )
    headed = [_without_header(table, first) for table in tables[1:]]
    whole = pa.concat_tables(
        [pa.table(list(table.arrays), names=list(table.names)) for table in (first, *headed)],
        promote_options="permissive",
    )
    keys = [name for name, _ in _keys(path, files[0][0])]
    origin = f", and its folders give {listed(keys)}" if keys else ""
    note = f"{path}: {len(files)} files are read as one table{origin}"
    notes = (note, *(note for table in tables for note in table.notes))
    return replace(first, arrays=tuple(whole.columns), row_word="row", notes=notes)


def _keys(path: Path, file: Path) -> list[tuple[str, str]]:
    """Return the names and values that the folders between ``path`` and a file have."""
    folders = file.relative_to(path).parts[:-1]
    pairs = (folder.partition("=") for folder in folders if "=" in folder)
    return [(unquote(name), unquote(value)) for name, _, value in pairs]


def _table(path: Path, file: Path, columns: Columns) -> Columns:
    """Return the columns of a file with those of its folders; unnamed ones get a first row too."""
    names, arrays = list(columns.names), list(columns.arrays)
    for name, value in _keys(path, file):
        if name in names:
            continue
        cells = [None if value == GAP else value] * len(columns)
        names.append(name if columns.named else str(len(names)))
        arrays.append(
            pa.chunked_array([[name, *cells[1:]] if not columns.named else cells], pa.string())
        )
    return replace(columns, names=tuple(names), arrays=tuple(arrays))


def _without_header(table: Columns, first: Columns) -> Columns:
    """Return a further file without a first row that repeats the first file's."""
    if (
        table.named
        or not len(table)
        or not len(first)
        or table.first_cells() != first.first_cells()
    ):
        return table
    return replace(table, arrays=tuple(array.slice(1) for array in table.arrays))

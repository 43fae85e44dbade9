"""Files and frames of a table, opened: columns by name or number, and where a row is."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pomona.core.errors import ConfigError, DataError, listed, suggestion
from pomona.core.files import expanded
from pomona.data import formats
from pomona.data.formats import csv
from pomona.data.formats.columns import Columns
from pomona.data.formats.frame import Frame

TITLE_ROWS = 10  # above the names of the columns, at most
Source = Path | Frame
"""Where a table comes from."""


def unread_tables(paths: Sequence[Source], folder: Path | None) -> list[str]:
    """Report tables of a ``folder`` that are not among the ``paths`` of its train and test, but
    have a suffix of these: a README.txt is not a table.
    """
    top = paths[0].parent if isinstance(paths[0], Path) else None
    if not top or not folder or top != expanded(folder):
        return []
    tables = formats.part_files(top)
    used = {path for path in tables if {path, *path.parents} & {*paths}}
    suffixes = {*map(formats.suffix, used)}
    unread = [path for path in tables if path not in used and formats.suffix(path) in suffixes]
    names = listed([path.relative_to(top).as_posix() for path in unread])
    line = f"not read, since neither train nor test: {names}; validation rows are drawn from train"
    return [line] if unread else []


@dataclass(frozen=True, eq=False)
class TableSource:
    """A file or frame with its columns.

    Attributes:
        path: the file, or the frame.
        columns: as read.
        settings: with which they were read.
        header: whether the source names its columns.
        kept_rows: numbers of the rows that are kept, ascending; None for all.
    """

    path: Source
    columns: Columns
    settings: object
    header: bool
    kept_rows: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.columns) if self.kept_rows is None else len(self.kept_rows)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, or their numbers as text."""
        return self.columns.names

    def cells(self, index: int) -> Any:
        """Return the cells of kept rows of a column, as ``pyarrow.ChunkedArray``."""
        array = self.columns.arrays[index]
        return array if self.kept_rows is None else array.filter(pa.array(self._mask))

    @cached_property
    def _mask(self) -> NDArray[np.bool_]:
        """Whether each row is kept."""
        mask = np.zeros(len(self.columns), bool)
        mask[self.kept_rows] = True
        return mask

    def location(self, row: int, several: bool = False) -> str:
        """Return the location of a kept row for messages: its line or row, and its file if there
        are several.
        """
        number = self.columns.first_row + (
            row if self.kept_rows is None else int(self.kept_rows[row])
        )
        if self.columns.row_word == "line":
            number = int(self._lines[number - 1])
        return f"{self.columns.row_word} {number}" + (f" of {self.path}" if several else "")

    @cached_property
    def _lines(self) -> NDArray[np.int64]:
        """The line of each record of a CSV file, which is read again for messages only."""
        assert isinstance(self.path, Path)
        return csv.lines(self.path, self.settings)

    def reordered(self, first: "TableSource") -> "TableSource":
        """Return the source with its columns in the order of another one's.

        Raises DataError unless both have the same columns.
        """
        if sorted(self.names) == sorted(first.names):
            arrays = tuple(self.columns.arrays[self.names.index(name)] for name in first.names)
            return replace(self, columns=replace(self.columns, names=first.names, arrays=arrays))
        exclusive = [
            f"only {path} has {listed(names, 4)}"
            for path, names in (
                (self.path, sorted({*self.names} - {*first.names})),
                (first.path, sorted({*first.names} - {*self.names})),
            )
            if names
        ]
        raise DataError(
            f"{self.path} and {first.path} have different columns ({'; '.join(exclusive)}); "
            "give both the same"
        )

    def with_names(self, names: tuple[str, ...]) -> "TableSource":
        """Return a file without a header whose columns have the names of ``data.columns``.

        Raises ConfigError if the file has a header, or another number of columns.
        """
        if self.columns.has_names:
            raise ConfigError(
                f"data.columns names columns that {self.path} names itself; drop data.columns"
            )
        if len(self.names) != len(names):
            raise ConfigError(
                f"data.columns has {len(names)} names, but {self.path} has {len(self.names)} "
                "columns; name each once"
            )
        return replace(self, columns=replace(self.columns, has_names=True, names=names))

    def index(self, column: str | int, key: str) -> int:
        """Return the index of a column given by name or number; a number that is a name is one.

        Raises ConfigError with the setting ``key``.
        """
        if self.columns.has_names and str(column) in self.names:
            return self.names.index(str(column))
        if isinstance(column, str):
            hints = [suggestion(column, self.names)]
            if self.columns.row_word == "line":
                hints += [csv.divided(self.names), self._named_below(column)]
            path = self.path
            if isinstance(path, Path) and path.is_file() and not formats.format_of(path):
                hints.append(f"it was read as CSV: no format is installed for {path.suffix!r}")
            hint = "; ".join(filter(None, hints))
            raise ConfigError(f"data.{key}: {self.path} has no column {column!r}; {hint}")
        count = len(self.names)
        if not -count <= column < count:
            raise ConfigError(
                f"data.{key}: {self.path} has no column {column}; its columns are 0 to {count - 1}"
            )
        return column % count

    def _named_below(self, column: str) -> str:
        """Return a hint if a row near the top has the name of a column, as under a title."""
        for row in range(min(TITLE_ROWS, len(self))):
            if any(array[row].as_py() == column for array in self.columns.arrays):
                return (
                    f"{self.location(row)} has a cell {column!r}: if it names the columns, remove "
                    "the lines before it"
                )
        return ""

    def indices(self, columns: Iterable[str | int], key: str) -> tuple[int, ...]:
        """Return the indices of several columns; see ``index``."""
        return tuple(self.index(column, key) for column in columns)


def opened(
    paths: Sequence[Source], settings: object, header: bool | Callable[[list[str]], bool]
) -> list[TableSource]:
    """Read files, all in one child process, and frames.

    Args:
        paths: the files and frames.
        settings: of the data, which the readers of formats look at.
        header: whether the first row of a file that names no columns has their names, or a function
            that tells from its cells.

    Raises:
        DataError: as ``formats.read``, or a file is empty.
        ConfigError: a package that reads a format is missing.
    """
    files = [path for path in paths if isinstance(path, Path)]
    read = iter(formats.read(files, settings) if files else ())
    sources = []
    for path in paths:
        columns = path.columns if isinstance(path, Frame) else next(read)
        if not columns.has_names:
            has_names = header(columns.first_cells()) if callable(header) else header
            columns = columns.headed() if has_names else columns
        sources.append(TableSource(path, columns.named_once(path), settings, columns.has_names))
    return sources

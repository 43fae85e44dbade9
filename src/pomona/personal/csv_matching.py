"""Matching a table file to the columns of a model: by name if both have names, else by order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError, near
from pomona.data import csv_records, parquet, table_cells, table_features, text
from pomona.data.preprocessing import TableColumn
from pomona.data.problem_report import listed, refuse
from pomona.data.settings import CsvForm
from pomona.record.model_metadata import ModelMetadata


@dataclass(frozen=True)
class CsvSheet:
    """Rows for a model.

    Attributes:
        path: the file.
        form: its CSV format, as in training.
        header: whether its first line names the columns.
        columns: their names, or their numbers as text.
        wanted: indices of the model's columns, in the model's order.
        count: number of rows.
        note: assumptions made in reading, for display; empty if none.
    """

    path: Path
    form: CsvForm
    header: bool
    columns: tuple[str, ...]
    wanted: tuple[int, ...]
    count: int
    note: str

    def numbers(self, about: ModelMetadata, memory_share: float) -> tuple[NDArray[Any], list[str]]:
        """Return the model's features (n, F) float32, and remarks on categories that it does not know.

        Raises DataError for all columns with unreadable cells.
        """
        plain = tuple(TableColumn(name=self.columns[i]) for i in self.wanted)
        columns = about.preprocessing.columns if about.preprocessing else plain
        raw, strays = table_cells.read(self._rows(), self.count, self.wanted, columns, memory_share)
        problems = [column.problem(self.count) for column in strays]
        refuse(self.path, problems, ["give cells such as those of the training; gaps are filled where it says how"])
        if about.preprocessing is None:
            return raw.x.astype(np.float32), []
        features = table_features.features(raw, about.preprocessing, memory_share)
        return features, table_features.strangers(raw, about.preprocessing)

    def cells(self, name: str) -> list[str]:
        """Return the cells of a column by name, as in the file. Raises DataError if there is none."""
        if name not in self.columns:
            raise DataError(f"{self.path} has no column {name!r}; {near(name, self.columns)}")
        number = self.columns.index(name)
        return [record.cells[number] for record in self._rows()]

    def texts(self) -> list[str]:
        """Return the model's columns, joined to one text per row."""
        return [text.joined(record, self.wanted) for record in self._rows()]

    def _rows(self) -> Iterator[csv_records.CsvRecord]:
        return csv_records.rows(self.path, self.form, self.header, self.columns)


def opened(path: Path, about: ModelMetadata, beside: str | None = None) -> CsvSheet:
    """Open a file and match its columns to the model's.

    Other columns of the training file (label, client) are ignored, so that the training file itself is accepted, as is
    the column ``beside``; for texts all other columns are ignored, as in training.

    Raises:
        DataError: not CSV, no rows, missing or unknown columns, or the wrong number of columns.
    """
    form = about.form
    first = next(csv_records.records(path, form), None)
    if first is None:
        raise DataError(f"{path} is empty; at least one row is needed")
    header = parquet.is_parquet(path) or _names_columns([cell.strip() for cell in first.cells], about)
    columns = csv_records.heading(path, form, header)
    layout = about.preprocessing.layout if about.preprocessing else ()
    if header and about.read_columns:
        wanted, note = _by_name(path, columns, about, beside), ""
    elif not header and len(layout) == len(columns):
        wanted, note = tuple(layout.index(name) for name in about.read_columns), ""
    else:
        wanted, note = _by_order(path, columns, header, about)
    count = sum(1 for _ in csv_records.rows(path, form, header, columns))
    if not count:
        raise DataError(f"{path} has no rows below its header; add one for each answer")
    return CsvSheet(path, form, header, columns, wanted, count, note)


def _names_columns(cells: Sequence[str], about: ModelMetadata) -> bool:
    """Return whether a first line is a header: it contains a name that the model knows, or no number."""
    words = {cell for cell in cells if not _is_number(cell)}
    if words & {*about.read_columns, *about.others} or (len(words) == len(cells) and not about.preprocessing):
        return True
    return bool(about.read_columns) and {*about.read_columns} <= {*cells}  # names that are numbers


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _by_name(path: Path, columns: Sequence[str], about: ModelMetadata, beside: str | None) -> tuple[int, ...]:
    missing = [name for name in about.read_columns if name not in columns]
    known = {*about.read_columns, *about.others, beside}
    odd = [name for name in columns if about.kind == "table" and name not in known]
    if missing or odd:
        wrong = [f"{what} {listed(names, 8)}" for what, names in (("missing", missing), ("unknown", odd)) if names]
        raise DataError(
            f"{path} has other columns than the model: {'; '.join(wrong)}; "
            f"the model takes {listed(about.read_columns, 12)}"
        )
    return tuple(columns.index(name) for name in about.read_columns)


def _by_order(path: Path, columns: Sequence[str], header: bool, about: ModelMetadata) -> tuple[tuple[int, ...], str]:
    known = about.read_columns
    takes = (len(known) or about.input_shape[0]) if about.kind == "table" else max(1, len(known))
    names = f" ({listed(known, 12)})" if known else ""
    if len(columns) != takes:
        raise DataError(
            f"{path} has {len(columns)} columns, the model takes {takes}{names}; "
            f"{'give a header with their names' if known else 'give these alone, in the order of the training'}"
        )
    nameless = "the model knows no names of columns" if header else "the file has no header"
    return tuple(range(takes)), f"{path}: {nameless}; its columns are taken in the order of the training{names}"

"""A CSV file held against the columns of a model: by their names where both sides have them, else by their order."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pomona.core.errors import DataError
from pomona.data import csv_records, csv_table, text
from pomona.data.problem_report import listed, refuse
from pomona.record.model_metadata import ModelMetadata


@dataclass(frozen=True)
class CsvSheet:
    """Rows for a model.

    Attributes:
        path: the file.
        header: whether its first line names the columns.
        columns: their names, or their numbers as text.
        wanted: numbers of the model's columns, in the model's order.
        count: rows.
        note: what was taken for granted, for people; empty if nothing was.
    """

    path: Path
    header: bool
    columns: tuple[str, ...]
    wanted: tuple[int, ...]
    count: int
    note: str

    def numbers(self, memory_share: float) -> NDArray[Any]:
        """The model's columns (n, F) float32. Raises DataError naming all columns with non-numeric cells."""
        rows = csv_records.rows(self.path, self.header, self.columns)
        x, strays = csv_table.numbers(rows, self.count, self.wanted, self.columns, memory_share)
        problems = [column.problem(self.count) for column in strays]
        refuse(self.path, problems, ["give finite numbers, made as those of the training"])
        return x

    def texts(self) -> list[str]:
        """The model's columns, joined to one text a row."""
        return [text.joined(record, self.wanted) for record in csv_records.rows(self.path, self.header, self.columns)]


def opened(path: Path, about: ModelMetadata) -> CsvSheet:
    """A file whose columns are seen to be the model's.

    The columns that the training file had beside the model's (label, client) are passed over, so that this file itself
    will do; for texts every other column is, as in training.

    Raises:
        DataError: no CSV, no rows, columns that are missing or unknown, or too many or few to be the model's.
    """
    first = next(csv_records.records(path), None)
    if first is None:
        raise DataError(f"{path} is empty; at least one row is needed")
    header = _names_columns([cell.strip() for cell in first.cells], about)
    columns = csv_records.heading(path, header)
    if header and about.columns:
        wanted, note = _by_name(path, columns, about), ""
    else:
        wanted, note = _by_order(path, columns, header, about)
    count = sum(1 for _ in csv_records.rows(path, header, columns))
    if not count:
        raise DataError(f"{path} has no rows below its header; add one for each answer")
    return CsvSheet(path, header, columns, wanted, count, note)


def _names_columns(cells: Sequence[str], about: ModelMetadata) -> bool:
    """Whether a first line is a header: it has a name that the model knows, or it has no number."""
    words = {cell for cell in cells if not _is_number(cell)}
    if len(words) == len(cells) or words & {*about.columns, *about.others}:
        return True
    return bool(about.columns) and {*about.columns} <= {*cells}  # names that are numbers


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _by_name(path: Path, columns: Sequence[str], about: ModelMetadata) -> tuple[int, ...]:
    missing = [name for name in about.columns if name not in columns]
    known = {*about.columns, *about.others}
    odd = [name for name in columns if about.kind == "table" and name not in known]
    if missing or odd:
        wrong = [f"{what} {listed(names, 8)}" for what, names in (("missing", missing), ("unknown", odd)) if names]
        raise DataError(
            f"{path} has other columns than the model: {'; '.join(wrong)}; the model takes {listed(about.columns, 12)}"
        )
    return tuple(columns.index(name) for name in about.columns)


def _by_order(path: Path, columns: Sequence[str], header: bool, about: ModelMetadata) -> tuple[tuple[int, ...], str]:
    takes = about.input_shape[0] if about.kind == "table" else max(1, len(about.columns))
    names = f" ({listed(about.columns, 12)})" if about.columns else ""
    if len(columns) != takes:
        raise DataError(
            f"{path} has {len(columns)} columns, the model takes {takes}{names}; "
            f"{'give a header with their names' if about.columns else 'give these alone, in the order of the training'}"
        )
    nameless = "the model knows no names of columns" if header else "the file has no header"
    return tuple(range(takes)), f"{path}: {nameless}; its columns are taken in the order of the training{names}"

"""CSV files: records with their line, columns by name or number, and a survey that precedes every reading."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pomona.data import targets
from pomona.data.dataset import Dataset, Owners
from pomona.data.settings import DataSettings
from pomona.data.stored import reading
from pomona.errors import ConfigError, DataError, near


class Record(NamedTuple):
    """The cells of one record, and the line on which it ends."""

    path: Path
    line: int
    cells: list[str]

    @property
    def where(self) -> str:
        """File and line, for messages."""
        return f"{self.path}, line {self.line}"


def records(path: Path) -> Iterator[Record]:
    """The records of a UTF-8 file, each as wide as the first; empty lines are passed over.

    Raises:
        DataError: a file that cannot be read, is no CSV, or has a record of another width.
    """
    with reading(path), path.open(encoding="utf-8-sig", newline="") as file:
        lines, width = csv.reader(file, strict=True), 0
        try:
            for cells in filter(None, lines):
                width = width or len(cells)
                if len(cells) != width:
                    raise DataError(
                        f"{path}, line {lines.line_num}: {len(cells)} cells, not {width}; complete the line"
                    )
                yield Record(path, lines.line_num, cells)
        except (csv.Error, UnicodeDecodeError) as fault:
            raise DataError(f"{path}, after line {lines.line_num}: no CSV in UTF-8 ({fault}); correct it") from fault


@dataclass(frozen=True)
class Survey:
    """What a first pass over CSV files finds.

    Attributes:
        paths: the files, in order.
        header: whether their first line names the columns.
        columns: names of the columns, or their numbers as text.
        label: number of the label's column.
        client: number of the owner's column, if any.
        counts: rows of each file.
        labels: the label of each row, as written.
        clients: the owner of each row, as written; empty without such a column.
    """

    paths: tuple[Path, ...]
    header: bool
    columns: tuple[str, ...]
    label: int
    client: int | None
    counts: tuple[int, ...]
    labels: list[str]
    clients: list[str]

    def __iter__(self) -> Iterator[Record]:
        """The records of all files without their headers."""
        return chain.from_iterable(islice(records(path), int(self.header), None) for path in self.paths)

    def where(self, row: int) -> str:
        """File and line of a row (found by reading anew: for messages only)."""
        return next(islice(self, row, None)).where

    def targets(self, settings: DataSettings) -> targets.Answer:
        """The targets of all rows and the class names; see ``targets.from_cells``."""
        return targets.from_cells(self.labels, settings.targets, settings.classes, self.where)

    def named(self, dataset: Dataset, inputs: Sequence[int]) -> Dataset:
        """The same data, of which columns ``inputs`` are the model's, with the names that a header gives them."""
        if not self.header:
            return dataset
        others = tuple(name for i, name in enumerate(self.columns) if i not in inputs)
        labels = () if dataset.classes else (self.columns[self.label],)
        return replace(dataset, columns=tuple(self.columns[i] for i in inputs), others=others, labels=labels)

    def owners(self, n_train: int) -> Owners | None:
        """Who owns which row, in the order of the owners' names; rows from ``n_train`` on are their test rows."""
        if self.client is None:
            return None
        names = targets.in_order(self.clients)
        index = {name: i for i, name in enumerate(names)}
        role = np.where(np.arange(len(self.clients)) < n_train, 0, 2).astype(np.int8)
        return Owners(names, np.array([index[name] for name in self.clients], np.int64), role)


def column(which: str | int, columns: Sequence[str], key: str, path: Path) -> int:
    """The number of a column given by name or number. Raises ConfigError naming the setting ``key``."""
    if isinstance(which, str):
        if which not in columns:
            raise ConfigError(f"data.{key}: {path} has no column {which!r}; {near(which, columns)}")
        return columns.index(which)
    if not -len(columns) <= which < len(columns):
        raise ConfigError(f"data.{key}: {path} has no column {which}; its columns are 0 to {len(columns) - 1}")
    return which % len(columns)


def survey(paths: Sequence[Path], settings: DataSettings) -> Survey:
    """Read the labels and owners of all files, and check that their columns agree.

    Raises:
        ConfigError: no label column is set, or a column is not there.
        DataError: a damaged or empty file, a repeated column name, or files with different columns.
    """
    if settings.label_column is None:
        raise ConfigError(f"{paths[0]} needs a label: set data.label_column to a column's name or number")
    named = (settings.label_column, settings.client_column, *settings.text_columns)
    header = any(isinstance(c, str) for c in named) if settings.header is None else settings.header
    columns = _columns(paths[0], header)
    label = column(settings.label_column, columns, "label_column", paths[0])
    client = settings.client_column
    owner = None if client is None else column(client, columns, "client_column", paths[0])
    labels: list[str] = []
    clients: list[str] = []
    counts = []
    for path in paths:
        if _columns(path, header) != columns:
            raise DataError(f"{path} and {paths[0]} have different columns; give both the same")
        start = len(labels)
        for record in islice(records(path), int(header), None):
            labels.append(record.cells[label].strip())
            if owner is not None:
                clients.append(record.cells[owner].strip())
        counts.append(len(labels) - start)
    return Survey(tuple(paths), header, columns, label, owner, tuple(counts), labels, clients)


def _columns(path: Path, header: bool) -> tuple[str, ...]:
    first = next(records(path), None)
    if first is None:
        raise DataError(f"{path} is empty; at least one row is needed")
    if not header:
        return tuple(map(str, range(len(first.cells))))
    columns = tuple(cell.strip() for cell in first.cells)
    twice = next((name for name in columns if columns.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{first.where}: two columns are named {twice!r}; name each once")
    return columns


def parts(path: Path) -> list[Path]:
    """A CSV file by itself, or the train.csv of a folder and its test.csv, if any."""
    if not path.is_dir():
        return [path]
    train, test = path / "train.csv", path / "test.csv"
    if not train.exists():
        raise DataError(f"{path} has no train.csv; add it, or set data.path to one file")
    return [train, test] if test.exists() else [train]

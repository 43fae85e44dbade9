"""A first pass over CSV or Parquet files, before features are read: labels, owners, subgroups, and equal columns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

import numpy as np

from pomona.core.errors import ConfigError, DataError
from pomona.data import parquet, targets
from pomona.data.csv_records import CsvRecord, column, heading, place, records, rows
from pomona.data.dataset import Dataset, Owners, Subgroups
from pomona.data.problem_report import listed
from pomona.data.settings import DataSettings

MOST_GROUPS = 50  # values by which results are told apart; more are an identifier
MISSING = "(missing)"


@dataclass(frozen=True)
class CsvSurvey:
    """Findings of a first pass over CSV files.

    Attributes:
        paths: the files, in order.
        header: whether their first line names the columns.
        columns: names of the columns, or their numbers as text.
        known: whether these are names, by a header or by the settings.
        label: numbers of the columns of labels.
        client: number of the owner's column, if any.
        dropped: numbers of the columns that are left out.
        counts: rows of each file.
        lines: the line of each row in its file.
        labels: for each column of labels, the cell of each row.
        clients: the owner of each row, as written; empty without such a column.
        group: number of the column of subgroups, if any.
        groups: the subgroup of each row, as written; empty without such a column.
    """

    paths: tuple[Path, ...]
    header: bool
    columns: tuple[str, ...]
    known: bool
    label: tuple[int, ...]
    client: int | None
    dropped: tuple[int, ...]
    counts: tuple[int, ...]
    lines: list[int]
    labels: tuple[list[str], ...]
    clients: list[str]
    group: int | None
    groups: list[str]

    def __iter__(self) -> Iterator[CsvRecord]:
        """The records of all files without their headers."""
        return chain.from_iterable(islice(records(path), int(self.header), None) for path in self.paths)

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def name(self) -> str:
        """Name of the data: the file's, or that of the folder of files."""
        return str(self.paths[0] if len(self.paths) == 1 else self.paths[0].parent)

    @property
    def features(self) -> list[int]:
        """Numbers of the columns that are neither label nor owner nor left out."""
        return [i for i in range(len(self.columns)) if i not in {*self.label, self.client, *self.dropped}]

    def where(self, row: int) -> str:
        """Line number of a row, with its file if there are several."""
        past = np.cumsum(self.counts)
        path = self.paths[int(np.searchsorted(past, row, side="right"))]
        return place(path, self.lines[row], len(self.paths) > 1)

    def targets(self, settings: DataSettings) -> tuple[targets.Answer, list[str]]:
        """The targets of all rows, and what is wrong with them; see ``targets.from_cells``."""
        return targets.from_cells(self.labels, [self.columns[i] for i in self.label], settings, self.where)

    def named(self, dataset: Dataset, inputs: Sequence[int]) -> Dataset:
        """The same data, of which columns ``inputs`` are the model's, with the names that they have."""
        if not self.known:
            return dataset
        others = tuple(name for i, name in enumerate(self.columns) if i not in inputs)
        labels = () if dataset.classes else tuple(self.columns[i] for i in self.label)
        return replace(dataset, columns=tuple(self.columns[i] for i in inputs), others=others, labels=labels)

    def ownerless(self) -> list[str]:
        """Message about rows without an owner; None if every row has one."""
        rows = [row for row, name in enumerate(self.clients) if not name]
        if self.client is None or not rows:
            return []
        column = self.columns[self.client]
        return [f"client column {column}: {len(rows)} of {len(self)} rows name no client, first {self.where(rows[0])}"]

    def owners(self, n_train: int) -> Owners | None:
        """Owner of each row, owners sorted by name; rows from ``n_train`` on are test rows."""
        if self.client is None:
            return None
        names = targets.in_order(self.clients)
        index = {name: i for i, name in enumerate(names)}
        role = np.where(np.arange(len(self.clients)) < n_train, 0, 2).astype(np.int8)
        return Owners(names, np.array([index[name] for name in self.clients], np.int64), role)

    def subgroups(self) -> Subgroups | None:
        """The values of the column by which results are told apart, sorted by name.

        Raises ConfigError for one with more than 50 values.
        """
        if self.group is None:
            return None
        names = targets.in_order(self.groups)
        if len(names) > MOST_GROUPS:
            raise ConfigError(
                f"data.group_column: column {self.columns[self.group]} of {self.name} has {len(names)} values; results "
                f"are told apart by at most {MOST_GROUPS}"
            )
        index = {name: i for i, name in enumerate(names)}
        number = np.array([index[name] for name in self.groups], np.int64)
        return Subgroups(self.columns[self.group], tuple(name or MISSING for name in names), number)


def survey(paths: Sequence[Path], settings: DataSettings) -> CsvSurvey:
    """Read the labels and owners of all files, and check that their columns agree.

    Raises:
        ConfigError: no label column is set, a column is not there, or one has two purposes.
        DataError: a damaged or empty file, lines of different widths, a repeated column name, or files with different
            columns.
    """
    label, owner = _label_columns(paths[0], settings), settings.client_column
    header = _header(paths[0], settings)
    columns = settings.columns or heading(paths[0], header)
    if settings.columns:
        _named_by_hand(paths, settings, header)
    key = "label_columns" if settings.label_columns else "label_column"
    labels_at = tuple(column(c, columns, key, paths[0]) for c in label)
    client = None if owner is None else column(owner, columns, "client_column", paths[0])
    by = settings.group_column
    group = None if by is None else column(by, columns, "group_column", paths[0])
    dropped = tuple(column(c, columns, "drop_columns", paths[0]) for c in settings.drop_columns)
    for i in dropped:
        if i in {*labels_at, client}:
            raise ConfigError(
                f"data.drop_columns: column {columns[i]} of {paths[0]} is the label or the client; keep it"
            )
    labels: tuple[list[str], ...] = tuple([] for _ in labels_at)
    clients: list[str] = []
    groups: list[str] = []
    lines: list[int] = []
    counts = []
    for path in paths:
        _same(path, settings.columns or heading(path, header), paths[0], columns)
        start = len(lines)
        for record in rows(path, header, columns):
            lines.append(record.line)
            for cells, i in zip(labels, labels_at, strict=True):
                cells.append(record.cells[i].strip())
            if client is not None:
                clients.append(record.cells[client].strip())
            if group is not None:
                groups.append(record.cells[group].strip())
        counts.append(len(lines) - start)
    known = header or bool(settings.columns)
    return CsvSurvey(
        paths=tuple(paths),
        header=header,
        columns=columns,
        known=known,
        label=labels_at,
        client=client,
        dropped=dropped,
        counts=tuple(counts),
        lines=lines,
        labels=labels,
        clients=clients,
        group=group,
        groups=groups,
    )


def _header(path: Path, settings: DataSettings) -> bool:
    """Whether a file's first line names its columns: as set, else where some column is given by name."""
    if parquet.is_parquet(path):
        return True
    if settings.header is not None or settings.columns:
        return bool(settings.header)
    listed = () if isinstance(settings.categories, str) else settings.categories
    given = (*_label_columns(path, settings), settings.client_column, *settings.text_columns, *settings.drop_columns)
    return any(isinstance(c, str) for c in (*given, settings.group_column, *settings.dates, *listed))


def _named_by_hand(paths: Sequence[Path], settings: DataSettings, header: bool) -> None:
    """Raise ConfigError unless data.columns names each column of files without a header once."""
    names = settings.columns
    if header:
        raise ConfigError(f"data.columns names columns that {paths[0]} names itself; drop data.columns")
    if twice := next((name for name in names if names.count(name) > 1 or not name), None):
        raise ConfigError(f"data.columns names {twice!r} twice; name each column once")
    for path in paths:
        if len(columns := heading(path, False)) != len(names):
            raise ConfigError(f"data.columns has {len(names)} names, {path} {len(columns)} columns; name each once")


def _label_columns(path: Path, settings: DataSettings) -> tuple[str | int, ...]:
    if settings.label_column is not None and settings.label_columns:
        raise ConfigError("data.label_column and data.label_columns both say where labels are; keep one")
    if settings.label_columns and settings.targets == "classes":
        raise ConfigError(
            "data.label_columns are several flags or targets a row: set data.targets = multilabel or regression; "
            "one class a row is data.label_column"
        )
    if settings.label_column is not None:
        return (settings.label_column,)
    if not settings.label_columns:
        raise ConfigError(f"{path} needs a label: set data.label_column to a column's name or number")
    return settings.label_columns


def _same(path: Path, columns: tuple[str, ...], first: Path, known: tuple[str, ...]) -> None:
    """Raise DataError unless two files have the same columns in the same order."""
    if columns == known:
        return
    alone = [
        f"only {file} has {listed(odd, 4)}"
        for file, odd in ((path, sorted({*columns} - {*known})), (first, sorted({*known} - {*columns})))
        if odd
    ]
    why = "; ".join(alone) or "their order"
    raise DataError(f"{path} and {first} have different columns ({why}); give both the same")

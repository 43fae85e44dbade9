"""First pass over CSV or Parquet files, before features are read: labels, owners, groups, and
matching columns.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import ConfigError, DataError
from pomona.data import csv_columns, parquet, targets
from pomona.data.csv_reader import CsvRecord, column, heading, place, rows, separator
from pomona.data.dataset import Dataset, Owners, RowGroups, Subgroups
from pomona.data.kinds import ColumnData
from pomona.data.problem_report import listed
from pomona.data.settings import CsvForm, CsvHeading, DataSettings, Features, csv_form

MOST_SUBGROUPS = 50  # maximum number of subgroups; a column with more values is an identifier
MISSING = "(missing)"
_IDENTIFIER = re.compile(
    r"(^|_|\b)(id|pid|mrn|patient|subject|person|case)(_?(id|no|nr|number))?$", re.IGNORECASE
)


@dataclass(frozen=True)
class CsvSurvey:
    """Findings of a first pass over CSV files.

    Attributes:
        paths: the files, in order.
        form: their CSV format.
        header: whether their first line names the columns.
        columns: names of the columns, or their numbers as text.
        known: whether these are names, from a header or from the settings.
        label: indices of the label columns.
        places: indices of other columns with a purpose, by the setting that names them.
        dropped: indices of the columns that are dropped.
        orders: position of each column in each file.
        blank: whether a label cell means that the row is unlabelled; ``data.unlabelled`` decides
            whether to drop it.
        without: number of unlabelled rows that were dropped.
        counts: number of rows in each file.
        lines: line of each row in its file.
        cells: cells of the columns with a purpose, by column index.
        values: number of distinct cells of each column that is dropped or named like an identifier.
    """

    paths: tuple[Path, ...]
    form: CsvForm
    header: bool
    columns: tuple[str, ...]
    known: bool
    label: tuple[int, ...]
    places: Mapping[str, int]
    dropped: tuple[int, ...]
    orders: tuple[tuple[int, ...], ...]
    blank: Callable[[str], bool]
    without: int
    counts: tuple[int, ...]
    lines: list[int]
    cells: Mapping[int, list[str]]
    values: Mapping[int, int]

    def __iter__(self) -> Iterator[CsvRecord]:
        """Iterate over the records of all files without headers, with cells in the order of
        ``columns``.
        """
        for path, order in zip(self.paths, self.orders, strict=True):
            for record in _ordered(path, self.form, self.header, order):
                if not any(self.blank(record.cells[i]) for i in self.label):
                    yield record

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def name(self) -> str:
        """The name of the data: that of the file or of the folder."""
        return str(self.paths[0] if len(self.paths) == 1 else self.paths[0].parent)

    @property
    def features(self) -> list[int]:
        """The indices of the feature columns: without labels, owners, groups, and dropped
        columns.
        """
        hidden = {self.places.get(key) for key in ("client_column", "group_column")}
        return [
            i for i in range(len(self.columns)) if i not in {*self.label, *hidden, *self.dropped}
        ]

    def where(self, row: int) -> str:
        """Return the line number of a row, with its file if there are several."""
        past = np.cumsum(self.counts)
        path = self.paths[int(np.searchsorted(past, row, side="right"))]
        return place(path, self.lines[row], len(self.paths) > 1)

    def targets(self, settings: ColumnData) -> tuple[targets.Answer, list[str]]:
        """Return the targets of all rows, and the problems with them; see
        ``targets.from_cells``.
        """
        cells = [self.cells[i] for i in self.label]
        return targets.from_cells(
            cells, [self.columns[i] for i in self.label], settings, self.where
        )

    def named(self, dataset: Dataset, inputs: Sequence[int]) -> Dataset:
        """Return the data with column names, where the model's columns are ``inputs``."""
        if not self.known:
            return dataset
        others = tuple(name for i, name in enumerate(self.columns) if i not in inputs)
        labels = () if dataset.classes else tuple(self.columns[i] for i in self.label)
        return replace(
            dataset, columns=tuple(self.columns[i] for i in inputs), others=others, labels=labels
        )

    def ownerless(self) -> list[str]:
        """Report rows without an owner; empty if every row has one."""
        owners = self._purpose("client_column")
        rows = [row for row, name in enumerate(owners or ()) if not name]
        if not rows:
            return []
        column = self.columns[self.places["client_column"]]
        return [
            (
                f"client column {column}: {len(rows)} of {len(self)} rows name no client, first "
                f"{self.where(rows[0])}"
            )
        ]

    def _purpose(self, key: str) -> list[str] | None:
        """Return the cells of the column that a setting names, or None."""
        return self.cells[self.places[key]] if key in self.places else None

    def owners(self, n_train: int) -> Owners | None:
        """Return each row's owner, with owners sorted by name; rows from ``n_train`` on are test
        rows.
        """
        clients = self._purpose("client_column")
        if clients is None:
            return None
        names, number = targets.numbered(clients)
        role = np.where(np.arange(len(clients)) < n_train, 0, 2).astype(np.int8)
        return Owners(names, number, role)

    def groups(self) -> RowGroups | None:
        """Return each row's group."""
        cells = self._purpose("group_column")
        return (
            None
            if cells is None
            else RowGroups(self.columns[self.places["group_column"]], targets.grouped(cells))
        )

    def times(self) -> NDArray[np.float64] | None:
        """Return each row's time, as days for dates or as the column's number; NaN for other
        cells.
        """
        cells = self._purpose("time_column")
        if cells is None:
            return None
        days, plain = (
            np.array([read(cell) for cell in cells])
            for read in (csv_columns.days, csv_columns.number)
        )
        return plain if np.isnan(days).sum() > np.isnan(plain).sum() else days

    def problems(self) -> list[str]:
        """Report problems with owners and times, one line each."""
        times = self.times()
        odd = [] if times is None else np.flatnonzero(np.isnan(times)).tolist()
        if not odd:
            return self.ownerless()
        i = self.places["time_column"]
        first = f"first {csv_columns.short(self.cells[i][odd[0]])} in {self.where(odd[0])}"
        what = (
            f"{len(odd)} of {len(self)} are neither dates such as 2024-03-01 nor numbers, as "
            "most are"
        )
        return [*self.ownerless(), f"time column {self.columns[i]}: {what}, {first}; correct them"]

    def repeated(self) -> list[str]:
        """Warn about columns that look like identifiers of people with several rows, unless groups
        are set.
        """
        if "group_column" in self.places:
            return []
        seen = [i for i, n in self.values.items() if n > MOST_SUBGROUPS // 2 and 2 * n <= len(self)]
        found = [f"{self.columns[i]} ({self.values[i]} values in {len(self)} rows)" for i in seen]
        if not found:
            return []
        return [
            f"identifiers that repeat: {listed(found)}; if rows of one patient may be in training "
            "and in test, test figures are too good: name the column in data.group_column"
        ]

    def subgroups(self) -> Subgroups | None:
        """Return the values of the subgroup column, sorted by name.

        Raises ConfigError if it has more than 50 values.
        """
        cells = self._purpose("subgroup_column")
        if cells is None:
            return None
        column = self.columns[self.places["subgroup_column"]]
        names, number = targets.numbered(cells)
        if len(names) > MOST_SUBGROUPS:
            raise ConfigError(
                f"data.subgroup_column: column {column} of {self.name} has {len(names)} values; "
                f"results are split by at most {MOST_SUBGROUPS}"
            )
        return Subgroups(column, tuple(name or MISSING for name in names), number)

    def described(self, dataset: Dataset, training: int, inputs: Sequence[int]) -> Dataset:
        """Add the content of columns other than ``inputs``; the first ``training`` files are for
        training.
        """
        owners = self.owners(sum(self.counts[:training]))
        unsaid = () if self.form.separator and self.form.decimal else self.paths
        divided = {
            mark: path for path in reversed(unsaid) if (mark := separator(path, self.form)) != ","
        }
        commas = (
            ""
            if self.form.decimal
            else "; a comma in a number is its decimal mark: 1,343 is read as 1.343"
        )
        read = [f"{path}: cells are divided by {mark!r}{commas}" for mark, path in divided.items()]
        if self.without:
            read.append(
                f"{self.without} of {self.without + len(self)} rows have no label and are left out"
            )
        notes = (*dataset.notes, *read, *self.repeated())
        told = replace(
            dataset,
            notes=notes,
            owners=owners,
            groups=self.groups(),
            times=self.times(),
            subgroups=self.subgroups(),
        )
        return self.named(told, inputs)


def survey(paths: Sequence[Path], settings: ColumnData) -> CsvSurvey:
    """Read the labels and owners of all files, and check that their columns match.

    Raises:
        ConfigError: no label column is set, a column does not exist, or one has two purposes.
        DataError: a damaged or empty file, lines of different widths, a repeated column name, or
            files with different columns.
    """
    label = _label_columns(paths[0], settings)
    header = _header(paths[0], settings)
    form, named = csv_form(settings), _names(settings)
    if named:
        _named_by_hand(paths, named, form, header)
    columns = named or heading(paths[0], form, header)
    key = "label_columns" if settings.label_columns else "label_column"
    labels_at = tuple(column(c, columns, key, paths[0]) for c in label)
    places = {key: column(c, columns, key, paths[0]) for key, c in settings.purposes.items()}
    dropped, hidden = _left_out(settings, columns, labels_at, places, paths[0])
    kept: dict[int, list[str]] = {i: [] for i in (*labels_at, *places.values())}
    marks = {
        i: set[str]() for i in range(len(columns)) if i in dropped or _IDENTIFIER.search(columns[i])
    }
    wordy = {i: not _IDENTIFIER.search(columns[i]) for i in marks}
    lines: list[int] = []
    counts, without = [], 0
    blank = targets.unlabelled(settings) if settings.unlabelled == "drop" else _labelled
    orders = [
        _order(path, named or heading(path, form, header), paths[0], columns) for path in paths
    ]
    for path, order in zip(paths, orders, strict=True):
        start = len(lines)
        for record in _ordered(path, form, header, order):
            if any(blank(record.cells[i]) for i in labels_at):
                without += 1
                continue
            lines.append(record.line)
            for i, cells in kept.items():
                cells.append(record.cells[i].strip())
            for i, different in marks.items():
                different.add(record.cells[i].strip())
        counts.append(len(lines) - start)
    if without and not lines:
        raise DataError(
            f"{paths[0]}: none of {without} rows has a label; is data.label_column the right one?"
        )
    known = header or bool(named)
    return CsvSurvey(
        paths=tuple(paths),
        form=form,
        header=header,
        columns=columns,
        known=known,
        label=labels_at,
        places=places,
        dropped=(*dropped, *hidden),
        orders=tuple(orders),
        blank=blank,
        without=without,
        counts=tuple(counts),
        lines=lines,
        cells=kept,
        values={i: len(found) for i, found in marks.items() if not wordy[i] or _are_names(found)},
    )


def _left_out(
    settings: DataSettings,
    columns: Sequence[str],
    labels: Sequence[int],
    places: Mapping[str, int],
    path: Path,
) -> tuple[tuple[int, ...], set[int]]:
    """Return the columns that are dropped, and those that are not features because they are
    times.
    """
    if not isinstance(settings, Features):
        return (), {places[key] for key in ("time_column",) if key in places}
    dropped = tuple(column(c, columns, "drop_columns", path) for c in settings.drop_columns)
    for i in dropped:
        if i in {*labels, places.get("client_column")}:
            raise ConfigError(
                f"data.drop_columns: column {columns[i]} of {path} is the label or the client; "
                "keep it"
            )
    dated = {column(c, columns, "dates", path) for c in settings.dates}
    hidden = {places[key] for key in ("time_column",) if key in places} - dated
    wanted = {column(c, columns, "keep_columns", path) for c in settings.keep_columns}
    if twice := next((columns[i] for i in dropped if i in wanted), None):
        raise ConfigError(
            f"column {twice} of {path} is in data.keep_columns and in data.drop_columns; keep one"
        )
    others = (
        {i for i in range(len(columns)) if i not in {*wanted, *labels, *places.values()}}
        if wanted
        else set()
    )
    return tuple(dict.fromkeys((*dropped, *sorted(others)))), hidden


def _are_names(values: set[str]) -> bool:
    """Return whether the cells are neither numbers nor dates."""
    return all(
        np.isnan(csv_columns.number(cell)) and np.isnan(csv_columns.days(cell)) for cell in values
    )


def _header(path: Path, settings: ColumnData) -> bool:
    """Return whether a file's first line names its columns: as set, else if any column is given by
    name.
    """
    if parquet.is_parquet(path):
        return True
    said = _said_of_header(settings)
    return any(isinstance(c, str) for c in settings.mentioned) if said is None else said


def _said_of_header(settings: DataSettings) -> bool | None:
    """Return whether the settings say that there is a header; None if they leave it open."""
    if not isinstance(settings, CsvHeading) or (settings.header is None and not settings.columns):
        return None
    return bool(settings.header)


def _names(settings: DataSettings) -> tuple[str, ...]:
    """Return the names that the settings give to columns."""
    return settings.columns if isinstance(settings, CsvHeading) else ()


def _named_by_hand(
    paths: Sequence[Path], names: tuple[str, ...], form: CsvForm, header: bool
) -> None:
    """Raise ConfigError unless data.columns names each column of files without a header exactly
    once.
    """
    if header:
        raise ConfigError(
            f"data.columns names columns that {paths[0]} names itself; drop data.columns"
        )
    if twice := next((name for name in names if names.count(name) > 1 or not name), None):
        raise ConfigError(f"data.columns names {twice!r} twice; name each column once")
    for path in paths:
        if len(columns := heading(path, form, False)) != len(names):
            raise ConfigError(
                f"data.columns has {len(names)} names, {path} {len(columns)} columns; name each "
                "once"
            )


def _label_columns(path: Path, settings: ColumnData) -> tuple[str | int, ...]:
    if settings.label_column is not None and settings.label_columns:
        raise ConfigError(
            "data.label_column and data.label_columns both say where labels are; keep one"
        )
    if settings.label_columns and settings.targets == "classes":
        raise ConfigError(
            "data.label_columns are several flags or targets a row: set data.targets = multilabel "
            "or regression; one class a row is data.label_column"
        )
    if not settings.labels:
        raise ConfigError(
            f"{path} needs a label: set data.label_column to a column's name or number"
        )
    return settings.labels


def _labelled(_: str) -> bool:
    """Never treat a row as unlabelled; invalid cells are reported with the other problems."""
    return False


def _ordered(
    path: Path, form: CsvForm, header: bool, order: tuple[int, ...]
) -> Iterator[CsvRecord]:
    """Yield a file's records below the header, with cells in this order; raises DataError as
    ``rows`` does.
    """
    found = rows(path, form, header, order)
    if order == tuple(range(len(order))):
        return found
    return (record._replace(cells=[record.cells[i] for i in order]) for record in found)


def _order(
    path: Path, columns: tuple[str, ...], first: Path, known: tuple[str, ...]
) -> tuple[int, ...]:
    """Return each known column's position in a file.

    Raises DataError unless both files have the same columns.
    """
    if sorted(columns) == sorted(known):
        return tuple(map(columns.index, known))
    alone = [
        f"only {file} has {listed(odd, 4)}"
        for file, odd in (
            (path, sorted({*columns} - {*known})),
            (first, sorted({*known} - {*columns})),
        )
        if odd
    ]
    raise DataError(
        f"{path} and {first} have different columns ({'; '.join(alone)}); give both the same"
    )

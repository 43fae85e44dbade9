"""The columns of a table that have a purpose: labels, owners, groups, times, subgroups."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import ConfigError, DataError, listed
from pomona.data import cell_values, targets
from pomona.data.axes import ColumnData
from pomona.data.dataset import Dataset, Owners, RowGroups, Subgroups
from pomona.data.formats.columns import repeating_records
from pomona.data.settings import DataSettings, Features, as_column
from pomona.data.tables.cells import decimal_mark, distinct, is_text, unreadable
from pomona.data.tables.roles import Roles, heading, opened, require, require_cells, roles
from pomona.data.tables.source import Source, TableSource

MOST_SUBGROUPS = 50  # maximum number of subgroups; a column with more values is an identifier
MISSING = "(missing)"
T = TypeVar("T")
_IDENTIFIER = re.compile(
    r"(^|_|\b)(id|pid|mrn|patient|subject|person|case)(_?(id|no|nr|number))?$", re.IGNORECASE
)


@dataclass(frozen=True, eq=False)
class TableSurvey:
    """The rows of a table that are kept, and what its columns are for.

    Attributes:
        sources: files and frames in order, all with the columns of the first.
        decimals: the decimal mark of each, as in ``cell_values.pointed``.
        roles: what the columns are for.
        guessed: whether the first lines are rows only because no column is given by name.
        notes: what was assumed, one line each.
    """

    sources: tuple[TableSource, ...]
    decimals: tuple[str, ...]
    roles: Roles
    guessed: bool
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return sum(self.counts)

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of rows of each source."""
        return tuple(map(len, self.sources))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, or their numbers as text."""
        return self.sources[0].names

    @property
    def name(self) -> str:
        """The name of the data: that of the file or of the folder."""
        path = self.sources[0].path
        return str(path if len(self.sources) == 1 else path.parent)

    def where(self, row: int) -> str:
        """Return the line number of a row, with its file if there are several."""
        ends = np.cumsum(self.counts)
        number = int(np.searchsorted(ends, row, side="right"))
        start = int(ends[number]) - len(self.sources[number])
        return self.sources[number].where(row - start, len(self.sources) > 1)

    def texts(self, index: int) -> list[str]:
        """Return the cells of a column as texts, numbers among them with a decimal point."""
        return [cell for cells in self._each(index, _pointed) for cell in cells]

    def numbers(self, index: int) -> NDArray[np.float64]:
        """Return the cells of a column as numbers, NaN where they are none."""
        each = self._each(index, cell_values.number)
        return np.array([number for numbers in each for number in numbers], np.float64)

    def _each(self, index: int, read: Callable[[str, str], T]) -> Iterator[list[T]]:
        """Yield for each source what ``read`` makes of each cell, from its text and the decimal
        mark; each distinct cell is read once.
        """
        for source, decimal in zip(self.sources, self.decimals, strict=True):
            cells, codes = distinct(source.cells(index))
            values = [read(cell, decimal) for cell in cells]
            yield [values[code] for code in codes.tolist()]

    def targets(self, settings: ColumnData) -> tuple[targets.Answer, list[str]]:
        """Return the targets of all rows, and the problems with them; see
        ``targets.from_cells``.
        """
        columns = [
            targets.LabelColumn(self.columns[i], self.texts(i), self.where, self.numbers(i))
            for i in self.roles.label
        ]
        return targets.from_cells(columns, settings)

    def _purpose(self, key: str) -> tuple[str, list[str]] | None:
        """Return the name and the cells of the column that a setting names, or None."""
        index = self.roles.purposes.get(key)
        return None if index is None else (self.columns[index], self.texts(index))

    def owners(self, n_train: int) -> Owners | None:
        """Return each row's owner, with owners sorted by name; rows from ``n_train`` on are test
        rows.
        """
        if (column := self._purpose("client_column")) is None:
            return None
        names, number = targets.numbered(column[1])
        role = np.where(np.arange(len(self)) < n_train, 0, 2).astype(np.int8)
        return Owners(names, number, role)

    def groups(self) -> RowGroups | None:
        """Return each row's group."""
        column = self._purpose("group_column")
        return column and RowGroups(column[0], targets.grouped(column[1]))

    def times(self) -> NDArray[np.float64] | None:
        """Return each row's time, as days for dates or as the column's number; NaN for other
        cells.
        """
        if (index := self.roles.purposes.get("time_column")) is None:
            return None
        days = np.array([cell_values.days(cell) for cell in self.texts(index)], float)
        plain = self.numbers(index)
        return plain if np.isnan(days).sum() > np.isnan(plain).sum() else days

    def subgroups(self) -> Subgroups | None:
        """Return the values of the subgroup column, sorted by name.

        Raises ConfigError if it has more than 50 values.
        """
        if (purpose := self._purpose("subgroup_column")) is None:
            return None
        column, cells = purpose
        names, number = targets.numbered(cells)
        if len(names) > MOST_SUBGROUPS:
            raise ConfigError(
                f"data.subgroup_column: column {column} of {self.name} has {len(names)} values; "
                f"results are split by at most {MOST_SUBGROUPS}"
            )
        return Subgroups(column, tuple(name or MISSING for name in names), number)

    def problems(self) -> list[str]:
        """Report rows without an owner and unreadable times, one line each."""
        lines = []
        if owners := self._purpose("client_column"):
            rows = [row for row, cell in enumerate(owners[1]) if cell_values.is_missing(cell)]
            if rows:
                lines.append(
                    f"client column {owners[0]}: {len(rows)} of {len(self)} rows name no client, "
                    f"first {self.where(rows[0])}"
                )
        days, times = self.times(), self._purpose("time_column")
        if times and days is not None:
            unread = np.flatnonzero(np.isnan(days)).tolist()
            if unread:
                lines.append(
                    f"time column {times[0]}: {len(unread)} of {len(self)} are neither dates such "
                    "as 2024-03-01 nor numbers, as most are, first "
                    f"{cell_values.short(times[1][unread[0]])} in {self.where(unread[0])}; correct "
                    "them"
                )
        return lines

    def repeated(self) -> list[str]:
        """Warn about columns that look like identifiers of people with several rows, unless groups
        are set.
        """
        if "group_column" in self.roles.purposes:
            return []
        named = [i for i, name in enumerate(self.columns) if _IDENTIFIER.search(name)]
        counts = {
            i: self._identifiers(i, i in named) for i in sorted({*named, *self.roles.dropped})
        }
        repeated = [
            f"{self.columns[i]} ({n} values in {len(self)} rows)"
            for i, n in counts.items()
            if n > MOST_SUBGROUPS // 2 and (2 * n <= len(self) or (i in named and n < len(self)))
        ]
        if not repeated:
            return []
        return [
            f"identifiers that repeat: {listed(repeated)}; if rows of one patient may be in "
            "training and in test, test figures are too good: name the column in data.group_column"
        ]

    def _identifiers(self, index: int, named: bool) -> int:
        """Return the number of different cells of a column; 0 if they are numbers or dates, unless
        it is ``named`` like an identifier, or neither text nor numbers.
        """
        types = [source.columns.arrays[index].type for source in self.sources]
        if any(map(unreadable, types)) or not (named or is_text(types[0])):
            return 0
        each = (distinct(source.cells(index)).cells for source in self.sources)
        cells = {cell.strip() for cells in each for cell in cells}
        return len(cells) if named or all(map(_is_name, cells)) else 0

    def headless(self) -> list[str]:
        """Report that the first lines are rows, unless the settings say so, and that records of
        REDCap have several, unless groups are set.
        """
        if not self.guessed and "group_column" not in self.roles.purposes:
            return repeating_records(self.columns, self.sources[0].cells(0))
        return [
            "line 1 is a row, since no column is given by name; if it has their names: "
            "data.header=true"
        ] * self.guessed

    def described(self, dataset: Dataset, training: int, inputs: Sequence[int]) -> Dataset:
        """Add what columns other than ``inputs`` say; the first ``training`` files are for
        training.
        """
        if self.sources[0].columns.named:
            dataset = replace(
                dataset,
                columns=tuple(self.columns[i] for i in inputs),
                others=tuple(name for i, name in enumerate(self.columns) if i not in inputs),
                labels=() if dataset.classes else tuple(self.columns[i] for i in self.roles.label),
            )
        return replace(
            dataset,
            notes=(*dataset.notes, *self.headless(), *self.notes, *self.repeated()),
            owners=self.owners(sum(self.counts[:training])),
            groups=self.groups(),
            times=self.times(),
            subgroups=self.subgroups(),
        )


def survey(paths: Sequence[Source], settings: ColumnData) -> TableSurvey:
    """Open all files, check that their columns match, and leave out rows without a label if asked.

    Raises:
        ConfigError: no label column is set, a column does not exist, or one has two purposes.
        DataError: a damaged or empty file, lines of different widths, or files with different
            columns, or with numbers of both decimal marks.
    """
    require(paths[0], settings)
    read = opened(paths, settings)
    first, assigned = read[0], roles(read[0], settings)
    sources = [source.like(first) for source in read]
    for source in sources:
        require_cells(source, (*assigned.label, *assigned.purposes.values()))
    total = sum(map(len, sources))
    if not total:
        raise DataError(f"{paths[0]} names its columns but has no rows; add some")
    if settings.unlabelled == "drop":
        sources = [_labelled(source, assigned.label, settings) for source in sources]
    dropped = total - sum(map(len, sources))
    if dropped == total:
        raise DataError(
            f"{paths[0]}: none of {total} rows has a label; is data.label_column the right one?"
        )
    numeric = _numeric(first, assigned, settings)
    marks = [decimal_mark(source, numeric, settings) for source in sources]
    moved = first.moved(settings.mentioned).items()
    notes = [
        *_located(sources, [source.columns.notes for source in sources]),
        *_located(sources, [notes for _, notes in marks]),
        *(f"{name} is the column named {str(name)!r}, which has number {i}" for name, i in moved),
        *assigned.notes,
    ]
    if dropped:
        notes.append(f"{dropped} of {total} rows have no label and are left out")
    guessed = heading(settings)[0] is None and not first.columns.named
    decimals = tuple(mark for mark, _ in marks)
    return TableSurvey(tuple(sources), decimals, assigned, guessed, tuple(notes))


def _numeric(first: TableSource, assigned: Roles, settings: ColumnData) -> list[int]:
    """Return the columns whose cells may be numbers."""
    indices = {assigned.purposes.get("time_column", -1)} - {-1}
    if settings.targets != "classes" or settings.label_above is not None:
        indices |= {*assigned.label}
    return sorted(indices | _numeric_features(first, assigned, settings))


def _numeric_features(first: TableSource, assigned: Roles, settings: DataSettings) -> set[int]:
    """Return the feature columns that are not set to be categories or dates."""
    if not isinstance(settings, Features):
        return set()
    categories = () if isinstance(settings.categories, str) else settings.categories
    texts = first.indices(map(as_column, categories), "categories")
    return {*assigned.features} - {*texts, *first.indices(settings.dates, "dates")}


def _labelled(source: TableSource, label: Sequence[int], settings: ColumnData) -> TableSource:
    """Return a source without the rows that have no label."""
    blank = targets.unlabelled(settings)
    without = np.zeros(len(source), bool)
    for index in label:
        cells = distinct(source.cells(index))
        without |= np.array([blank(cell) for cell in cells.cells], bool)[cells.codes]
    return replace(source, kept=np.flatnonzero(~without)) if without.any() else source


def _located(sources: Sequence[TableSource], notes: Sequence[Sequence[str]]) -> list[str]:
    """Return the notes on each source, once each; those that not all have with their source."""
    shared = set(notes[0]).intersection(*notes)
    return list(
        dict.fromkeys(
            line
            if line in shared or line.startswith(f"{source.path}")
            else f"{source.path}: {line}"
            for source, lines in zip(sources, notes, strict=True)
            for line in lines
        )
    )


def _pointed(cell: str, decimal: str) -> str:
    """Return a stripped cell, with a decimal point if it is a number with a decimal comma."""
    is_number = decimal == "comma" and not np.isnan(cell_values.number(cell, decimal))
    return cell_values.pointed(cell.strip(), decimal) if is_number else cell.strip()


def _is_name(cell: str) -> bool:
    """Return whether a cell is neither a number nor a date."""
    return bool(np.isnan(cell_values.number(cell)) and np.isnan(cell_values.days(cell)))

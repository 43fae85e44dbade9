"""The columns of a table that have a purpose: labels, owners, groups, times, subgroups."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import ConfigError, DataError, listed, refuse
from pomona.data import cell_values, targets
from pomona.data.axes import ColumnData, Table
from pomona.data.dataset import Dataset, Owners, RowGroups, Subgroups
from pomona.data.formats.columns import repeating_records
from pomona.data.preprocessing import TableColumn
from pomona.data.table_settings import as_column
from pomona.data.tables import strays
from pomona.data.tables.cells import (
    ColumnCells,
    decimal_mark,
    distinct,
    is_text,
    padded_numbers,
    read_column,
    unreadable,
)
from pomona.data.tables.roles import (
    Roles,
    as_features,
    heading,
    opened,
    require,
    require_cells,
    roles,
)
from pomona.data.tables.source import Source, TableSource, unread_tables
from pomona.data.tables.strays import Strays
from pomona.data.targets import Answer

MOST_SUBGROUPS = 50  # maximum number of subgroups; a column with more values is an identifier
MISSING = "(missing)"
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

    def location(self, row: int) -> str:
        """Return the line number of a row, with its file if there are several."""
        row_ends = np.cumsum(self.counts)
        number = int(np.searchsorted(row_ends, row, side="right"))
        start = int(row_ends[number]) - len(self.sources[number])
        return self.sources[number].location(row - start, len(self.sources) > 1)

    def texts(self, index: int, marks: Collection[str] = ()) -> list[str]:
        """Return the cells of a column as texts, numbers among them with a decimal point; those
        that are ``marks`` of gaps as empty texts.
        """
        texts: list[str] = []
        for source, decimal in zip(self.sources, self.decimals, strict=True):
            cells, codes = distinct(source.cells(index))
            pointed = [cell_values.with_point(cell.strip(), decimal) for cell in cells]
            pointed = ["" if cell_values.plain(cell) in marks else cell for cell in pointed]
            texts += [pointed[code] for code in codes.tolist()]
        return texts

    def read(self, index: int, column_type: str = "number") -> ColumnCells:
        """Return the cells of a column as numbers or dates, without those that mark gaps in all
        columns.
        """
        marks = [*map(cell_values.plain, targets.markers(self.sources[0].settings))]
        values = {"name": f"column {index}", "kind": column_type, "missing": marks}
        column = TableColumn.model_validate(values)
        return read_column([source.cells(index) for source in self.sources], self.decimals, column)

    def targets(
        self, settings: ColumnData, read: Callable[["TableSurvey"], list[Strays]] = lambda _: []
    ) -> Answer:
        """Return the targets of all rows; see ``targets.from_cells``.

        Raises DataError for labels, owners, times, and columns of features that ``read`` says to be
        unreadable; with the name of the file if only one has problems.
        """
        answer, problems = self._checked(settings, read)
        if problems:
            pairs = zip(self.sources, self.decimals, strict=True)
            files = [replace(self, sources=(source,), decimals=(mark,)) for source, mark in pairs]
            faulty = [file for file in files if len(file) and file._checked(settings, read)[1]]
            table = faulty[0] if len(faulty) == 1 else self
            remedies = self.headless()
            if isinstance(settings, Table):
                remedies += strays.remedies(read(self), len(self), settings)
            refuse(table.name, table._checked(settings, read)[1], remedies)
        return answer

    def _checked(
        self, settings: ColumnData, read: Callable[["TableSurvey"], list[Strays]]
    ) -> tuple[Answer, list[str]]:
        """Return the targets, and all problems of the table."""
        marks = targets.label_marks(settings)
        columns = [
            targets.LabelColumn(
                self.columns[i], self.texts(i, marks), self.location, self.read(i).values
            )
            for i in self.roles.label
        ]
        answer, problems = targets.from_cells(columns, settings)
        unread = [column.problem(len(self), self.location) for column in read(self)]
        return answer, [*problems, *self._problems(), *unread]

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

    def times(self) -> tuple[NDArray[np.float64], Strays, list[str]] | None:
        """Return each row's time, as days for dates or as the column's number, with NaN for other
        cells; these cells; and a remark on times of which some alone have a time zone.
        """
        if (index := self.roles.purposes.get("time_column")) is None:
            return None
        columns = {column_type: self.read(index, column_type) for column_type in ("date", "number")}
        column_type = min(columns, key=lambda k: np.isnan(columns[k].values).sum())
        read, name = columns[column_type], self.columns[index]
        zoned = int(read.zoned.sum())
        note = (
            f"time column {name}: {zoned} of {len(self)} times have a time zone and are turned to "
            "UTC, the others are not: write all in one way"
        )
        notes = [note] * (0 < zoned < len(self))
        return read.values, Strays(name, read.cells, column_type), notes

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

    def _problems(self) -> list[str]:
        """Report rows without an owner and unreadable times, one line each."""
        lines = []
        if owners := self._purpose("client_column"):
            rows = [row for row, cell in enumerate(owners[1]) if cell_values.is_missing(cell)]
            if rows:
                lines.append(
                    f"client column {owners[0]}: {len(rows)} of {len(self)} rows name no client, "
                    f"first {self.location(rows[0])}"
                )
        if (times := self.times()) and times[1].are_problem:
            lines.append(
                f"time {times[1].problem(len(self), self.location)}; write dates as 2024-03-01 "
                "(year, month, day), times as 2024-03-01T08:30, or numbers"
            )
        return lines

    def repeated(self) -> list[str]:
        """Warn about columns that look like identifiers of people with several rows, unless groups
        are set.
        """
        if "group_column" in self.roles.purposes:
            return []
        repeated = []
        for i, name in enumerate(self.columns):
            like_identifier = bool(_IDENTIFIER.search(name))
            if like_identifier or i in self.roles.dropped:
                count = self._identifiers(i, like_identifier)
                often = 2 * count <= len(self) or (like_identifier and count < len(self))
                if count > MOST_SUBGROUPS // 2 and often:
                    repeated.append(f"{name} ({count} values in {len(self)} rows)")
        line = (
            f"identifiers that repeat: {listed(repeated)}; if rows of one patient may be in "
            "training and in test, test figures are too good: name the column in data.group_column"
        )
        return [line] if repeated else []

    def _identifiers(self, index: int, like_identifier: bool) -> int:
        """Return the number of different cells of a column; 0 if they are numbers or dates, unless
        its name is ``like_identifier``, or neither text nor numbers.
        """
        arrays = [source.columns.arrays[index] for source in self.sources]
        if any(map(unreadable, arrays)) or not (like_identifier or is_text(arrays[0])):
            return 0
        cells = {cell.strip() for s in self.sources for cell in distinct(s.cells(index))[0]}
        return len(cells) if like_identifier or all(map(_is_name, cells)) else 0

    def headless(self) -> list[str]:
        """Report that the first lines are rows, unless the settings say so, and that records of
        REDCap have several, unless groups are set.
        """
        if not self.guessed and "group_column" not in self.roles.purposes:
            return repeating_records(self.columns, self.sources[0].cells(0))
        return [
            "line 1 is a row, since no column is given by name; if it has names: data.header=true"
        ] * self.guessed

    def described(self, dataset: Dataset, training: int, inputs: Sequence[int]) -> Dataset:
        """Add what columns other than ``inputs`` say; the first ``training`` files are for
        training.
        """
        if self.sources[0].columns.has_names:
            dataset = replace(
                dataset,
                columns=tuple(self.columns[i] for i in inputs),
                others=tuple(name for i, name in enumerate(self.columns) if i not in inputs),
                labels=() if dataset.classes else tuple(self.columns[i] for i in self.roles.label),
            )
        times, groups = self.times(), self._purpose("group_column")
        names = {*map(cell_values.name, {*groups[1]})} if groups else ()
        alike = cell_values.alike_notes("groups", sorted(names))
        further = *self.headless(), *self.notes, *self.repeated(), *alike
        return replace(
            dataset,
            notes=(*dataset.notes, *further, *(times[2] if times else ())),
            owners=self.owners(sum(self.counts[:training])),
            groups=self.groups(),
            times=times and times[0],
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
    sources = [source.reordered(first) for source in read]
    for source in sources:
        require_cells(source, (*assigned.label, *assigned.purposes.values()))
    if not any(map(len, sources)):
        raise DataError(f"{paths[0]} names its columns but has no rows; add some")
    sources = [_labelled(source, assigned.label, settings) for source in sources]
    total, labelled = sum(map(len, read)), sum(map(len, sources))
    if not labelled:
        raise DataError(
            f"{paths[0]}: none of {total} rows has a label; is data.label_column the right one?"
        )
    numeric = _numeric(first, assigned, settings)
    marks = [decimal_mark(source, numeric, settings) for source in sources]
    decimals, mark_notes = zip(*marks, strict=True)
    notes = [
        *_located(sources, [source.columns.notes for source in sources]),
        *_located(sources, mark_notes),
        *padded_numbers(sources, numeric),
        *assigned.notes,
        *unread_tables(paths, getattr(settings, "path", None)),
    ]
    if labelled < total:
        notes.append(f"{total - labelled} of {total} rows have no label and are left out")
    guessed = heading(settings)[0] is None and not first.columns.has_names
    return TableSurvey(tuple(sources), decimals, assigned, guessed, tuple(notes))


def _numeric(first: TableSource, assigned: Roles, settings: ColumnData) -> list[int]:
    """Return the columns whose cells may be numbers: times, measured labels, and features that are
    not set to be categories or dates.
    """
    indices = {i for key, i in assigned.purposes.items() if key == "time_column"}
    if settings.targets != "classes" or settings.label_above is not None:
        indices |= {*assigned.label}
    if table := as_features(settings):
        categories = () if isinstance(table.categories, str) else table.categories
        texts = first.indices(map(as_column, categories), "categories")
        indices |= {*assigned.features} - {*texts, *first.indices(table.dates, "dates")}
    return sorted(indices)


def _labelled(source: TableSource, label: Sequence[int], settings: ColumnData) -> TableSource:
    """Return a source, without the rows that have no label if asked."""
    if settings.unlabelled != "drop":
        return source
    is_blank = targets.unlabelled(settings)
    unlabelled = np.zeros(len(source), bool)
    for index in label:
        cells, codes = distinct(source.cells(index))
        unlabelled |= np.array([is_blank(cell) for cell in cells], bool)[codes]
    return replace(source, kept_rows=np.flatnonzero(~unlabelled)) if unlabelled.any() else source


def _located(sources: Sequence[TableSource], notes: Sequence[Sequence[str]]) -> list[str]:
    """Return the notes on each source, once each; those that not all have with their source."""
    shared = set(notes[0]).intersection(*notes)
    lines = [
        line if line in shared or line.startswith(f"{source.path}") else f"{source.path}: {line}"
        for source, source_notes in zip(sources, notes, strict=True)
        for line in source_notes
    ]
    return [*dict.fromkeys(lines)]


def _is_name(cell: str) -> bool:
    """Return whether a cell is neither a number nor a date."""
    return bool(np.isnan(cell_values.number(cell)) and np.isnan(cell_values.days(cell)))

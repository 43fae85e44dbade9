"""First pass over the files of a table, before features are read: labels, owners, groups, and
matching columns.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import ConfigError, DataError, listed
from pomona.data import cell_values, targets
from pomona.data.dataset import Dataset, Owners, RowGroups, Subgroups
from pomona.data.frame import Source
from pomona.data.kinds import ColumnData
from pomona.data.table_columns import Roles, heading, opened, require, roles
from pomona.data.table_file import Record, TableFile, place

MOST_SUBGROUPS = 50  # maximum number of subgroups; a column with more values is an identifier
MISSING = "(missing)"
_IDENTIFIER = re.compile(
    r"(^|_|\b)(id|pid|mrn|patient|subject|person|case)(_?(id|no|nr|number))?$", re.IGNORECASE
)


@dataclass(frozen=True)
class TableSurvey:
    """Findings of a first pass over the files of a table.

    Attributes:
        files: in order, all with the columns of the first.
        roles: what they are for.
        blank: whether a label cell means that the row is unlabelled; ``data.unlabelled`` decides
            whether to drop it.
        without: number of unlabelled rows that were dropped.
        guessed: whether the first lines are rows only because no column is given by name.
        counts: number of rows in each file.
        lines: line of each row in its file.
        cells: cells of the columns with a purpose, by column index.
        values: number of distinct cells of each column that is dropped or named like an identifier.
        moved: see ``TableFile``, of the columns in the settings.
    """

    files: tuple[TableFile, ...]
    roles: Roles
    blank: Callable[[str], bool]
    without: int
    guessed: bool
    counts: tuple[int, ...]
    lines: list[int]
    cells: Mapping[int, list[str]]
    values: Mapping[int, int]
    moved: Mapping[int, int]

    def __iter__(self) -> Iterator[Record]:
        """Iterate over the records of all files, without headers and unlabelled rows to drop."""
        for file in self.files:
            for record in file.rows():
                if not any(self.blank(record.cells[i]) for i in self.roles.label):
                    yield record

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, or their numbers as text."""
        return self.files[0].columns

    @property
    def name(self) -> str:
        """The name of the data: that of the file or of the folder."""
        path = self.files[0].path
        return str(path if len(self.files) == 1 else path.parent)

    def where(self, row: int) -> str:
        """Return the line number of a row, with its file if there are several."""
        past = np.cumsum(self.counts)
        path = self.files[int(np.searchsorted(past, row, side="right"))].path
        return place(path, self.lines[row], len(self.files) > 1)

    def targets(self, settings: ColumnData) -> tuple[targets.Answer, list[str]]:
        """Return the targets of all rows, and the problems with them; see
        ``targets.from_cells``.
        """
        columns = [
            targets.LabelColumn(self.columns[i], self.cells[i], self.where)
            for i in self.roles.label
        ]
        return targets.from_cells(columns, settings)

    def _purpose(self, key: str) -> tuple[str, list[str]] | None:
        """Return the name and the cells of the column that a setting names, or None."""
        at = self.roles.places.get(key)
        return None if at is None else (self.columns[at], self.cells[at])

    def owners(self, n_train: int) -> Owners | None:
        """Return each row's owner, with owners sorted by name; rows from ``n_train`` on are test
        rows.
        """
        if (found := self._purpose("client_column")) is None:
            return None
        names, number = targets.numbered(found[1])
        role = np.where(np.arange(len(self)) < n_train, 0, 2).astype(np.int8)
        return Owners(names, number, role)

    def groups(self) -> RowGroups | None:
        """Return each row's group."""
        found = self._purpose("group_column")
        return found and RowGroups(found[0], targets.grouped(found[1]))

    def times(self) -> NDArray[np.float64] | None:
        """Return each row's time, as days for dates or as the column's number; NaN for other
        cells.
        """
        if (found := self._purpose("time_column")) is None:
            return None
        days, plain = (
            np.array([read(cell) for cell in found[1]])
            for read in (cell_values.days, cell_values.number)
        )
        return plain if np.isnan(days).sum() > np.isnan(plain).sum() else days

    def subgroups(self) -> Subgroups | None:
        """Return the values of the subgroup column, sorted by name.

        Raises ConfigError if it has more than 50 values.
        """
        if (found := self._purpose("subgroup_column")) is None:
            return None
        column, cells = found
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
            odd = np.flatnonzero(np.isnan(days)).tolist()
            if odd:
                lines.append(
                    f"time column {times[0]}: {len(odd)} of {len(self)} are neither dates such as "
                    "2024-03-01 nor numbers, as most are, first "
                    f"{cell_values.short(times[1][odd[0]])} in {self.where(odd[0])}; correct them"
                )
        return lines

    def repeated(self) -> list[str]:
        """Warn about columns that look like identifiers of people with several rows, unless groups
        are set.
        """
        if "group_column" in self.roles.places:
            return []
        found = [
            f"{self.columns[i]} ({n} values in {len(self)} rows)"
            for i, n in self.values.items()
            if n > MOST_SUBGROUPS // 2 and 2 * n <= len(self)
        ]
        if not found:
            return []
        return [
            f"identifiers that repeat: {listed(found)}; if rows of one patient may be in training "
            "and in test, test figures are too good: name the column in data.group_column"
        ]

    def headless(self) -> list[str]:
        """Report that the first lines are rows, unless the settings say so."""
        return [
            "line 1 is a row, since no column is given by name; if it has their names: "
            "data.header=true"
        ] * self.guessed

    def assumed(self) -> list[str]:
        """Report separators that were found, numbers that are names, and rows that were left
        out.
        """
        form = self.files[0].form
        unsaid = () if form.separator and form.decimal else reversed(self.files)
        divided = {file.separator: file.path for file in unsaid if file.separator != ","}
        commas = (
            ""
            if form.decimal
            else "; a comma in a number is its decimal mark: 1,343 is read as 1.343"
        )
        notes = self.headless()
        notes += [
            f"{path}: cells are divided by {mark!r}{commas}" for mark, path in divided.items()
        ]
        notes += [
            f"{number} is the column named {str(number)!r}, which has number {i}"
            for number, i in self.moved.items()
        ]
        if self.without:
            notes.append(
                f"{self.without} of {self.without + len(self)} rows have no label and are left out"
            )
        return notes

    def described(self, dataset: Dataset, training: int, inputs: Sequence[int]) -> Dataset:
        """Add what columns other than ``inputs`` say; the first ``training`` files are for
        training.
        """
        if self.files[0].named:
            dataset = replace(
                dataset,
                columns=tuple(self.columns[i] for i in inputs),
                others=tuple(name for i, name in enumerate(self.columns) if i not in inputs),
                labels=() if dataset.classes else tuple(self.columns[i] for i in self.roles.label),
            )
        return replace(
            dataset,
            notes=(*dataset.notes, *self.assumed(), *self.repeated()),
            owners=self.owners(sum(self.counts[:training])),
            groups=self.groups(),
            times=self.times(),
            subgroups=self.subgroups(),
        )


def survey(paths: Sequence[Source], settings: ColumnData) -> TableSurvey:
    """Read the labels and owners of all files, and check that their columns match.

    Raises:
        ConfigError: no label column is set, a column does not exist, or one has two purposes.
        DataError: a damaged or empty file, lines of different widths, a repeated column name, or
            files with different columns.
    """
    require(paths[0], settings)
    first = opened(paths[0], settings)
    known = roles(first, settings)
    files = (first, *(opened(path, settings).like(first) for path in paths[1:]))
    blank = targets.unlabelled(settings) if settings.unlabelled == "drop" else _labelled
    cells: dict[int, list[str]] = {i: [] for i in (*known.label, *known.places.values())}
    named = {i for i, name in enumerate(first.columns) if _IDENTIFIER.search(name)}
    distinct = {i: set[str]() for i in sorted({*named, *known.dropped})}
    lines, counts, without = _gathered(files, known.label, blank, cells, distinct)
    if not lines:
        if without:
            raise DataError(
                f"{paths[0]}: none of {without} rows has a label; is data.label_column the right "
                "one?"
            )
        raise DataError(f"{paths[0]} names its columns but has no rows; add some")
    return TableSurvey(
        files=files,
        roles=known,
        blank=blank,
        without=without,
        guessed=heading(settings)[0] is None and not first.named,
        counts=counts,
        lines=lines,
        cells=cells,
        values={i: len(found) for i, found in distinct.items() if i in named or _are_names(found)},
        moved=first.moved(settings.mentioned),
    )


def _gathered(
    files: Sequence[TableFile],
    label: Sequence[int],
    blank: Callable[[str], bool],
    cells: Mapping[int, list[str]],
    distinct: Mapping[int, set[str]],
) -> tuple[list[int], tuple[int, ...], int]:
    """Fill in cells and distinct cells of columns by their index; return the line of each row, the
    number of rows in each file, and the number of unlabelled rows that are left out.
    """
    lines: list[int] = []
    ends, without = [0], 0
    for file in files:
        for record in file.rows():
            if any(blank(record.cells[i]) for i in label):
                without += 1
                continue
            lines.append(record.line)
            for i, column in cells.items():
                column.append(record.cells[i].strip())
            for i, found in distinct.items():
                found.add(record.cells[i].strip())
        ends.append(len(lines))
    return lines, tuple(b - a for a, b in pairwise(ends)), without


def _are_names(values: set[str]) -> bool:
    """Return whether the cells are neither numbers nor dates."""
    return all(
        np.isnan(cell_values.number(cell)) and np.isnan(cell_values.days(cell)) for cell in values
    )


def _labelled(_: str) -> bool:
    """Never treat a row as unlabelled; invalid cells are reported with the other problems."""
    return False

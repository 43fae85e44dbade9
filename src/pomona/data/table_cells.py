"""The cells of tables as numbers: what is read of each column, and all that cannot be read, by column."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pomona.core.errors import ConfigError
from pomona.data import csv_columns, csv_records, csv_survey
from pomona.data.csv_columns import Strays
from pomona.data.preprocessing import RawTable, TableColumn
from pomona.data.settings import DataSettings, as_column
from pomona.storage.mapped_array import allocate

WANTED = {"number": "finite numbers", "date": "dates such as 2024-03-01", "category": "categories"}


@dataclass
class Reader:
    """Reads the cells of one column; ``codes`` are the categories met so far and their numbers."""

    column: TableColumn
    most: int
    codes: dict[str, int] = field(default_factory=dict)
    bounds: int = 0  # cells that were bounds

    def __call__(self, cell: str) -> float:
        """The number of a cell; NaN for a gap, for what is none, and for a category beyond the most."""
        kind, missing = self.column.kind, self.column.missing
        if missing and csv_columns.plain(cell) in missing:
            return math.nan
        if kind == "number":
            found = csv_columns.number(cell)
            if self.column.censored and math.isnan(found):
                found = csv_columns.bound(cell)
                self.bounds += not math.isnan(found)
            return found
        if kind == "date":
            return csv_columns.days(cell)
        value = csv_columns.plain(cell)
        code = self.codes.get(value)
        if code is None:
            if csv_columns.is_missing(value) or len(self.codes) >= self.most:
                return math.nan
            code = self.codes[value] = len(self.codes)
        return code


def read(
    records: Iterable[csv_records.CsvRecord],
    count: int,
    places: Sequence[int],
    columns: Sequence[TableColumn],
    memory_share: float,
    several: bool = False,
    most: int = 2**24,
) -> tuple[RawTable, list[Strays]]:
    """Columns of records as numbers, and those with cells that cannot be read.

    Args:
        records: as wide as each other.
        count: how many there are, N.
        places: numbers of the columns to take, F of them, in this order.
        columns: how each is read.
        memory_share: see ``allocate``.
        several: whether the records are of several files, so that their places need a name.
        most: categories of one column; a cell with any other is one that cannot be read.

    Returns:
        The table, NaN where there is a gap or a stray, and the columns with strays or with gaps that are refused, in
        order.
    """
    found: dict[int, Strays] = {}
    readers = [Reader(column, most) for column in columns]
    read_all = _reading(readers)
    x = allocate((count, len(places)), np.float32, memory_share)
    for row, record in zip(x, records, strict=True):
        cells = [record.cells[i] for i in places]
        row[...] = values = read_all(cells)
        if math.isnan(sum(values)):
            for k in map(int, np.flatnonzero(np.isnan(values))):
                column = columns[k]
                strays = found.setdefault(k, Strays(column.name, WANTED[column.kind], column.fill is not None))
                strays.add(cells[k], csv_records.place(*record[:2], several), column.is_gap(cells[k]))
    codes, bounds = tuple(tuple(reader.codes) for reader in readers), tuple(reader.bounds for reader in readers)
    table = RawTable(tuple(columns), x, codes, bounds=bounds)
    return table, [found[k] for k in sorted(found) if found[k].wrong]


def _reading(readers: Sequence[Reader]) -> Callable[[Sequence[str]], list[float]]:
    """The quickest way to read a row: all cells at once where all are numbers without markers of their own."""

    def each(cells: Sequence[str]) -> list[float]:
        return [read(cell) for read, cell in zip(readers, cells, strict=True)]

    if not all(reader.column.kind == "number" and not reader.column.missing for reader in readers):
        return each
    if not any(reader.column.censored for reader in readers):
        return csv_columns.numbers
    return lambda cells: each(cells) if math.isnan(sum(found := csv_columns.numbers(cells))) else found


def problem(strays: Strays, rows: int, most: int) -> str:
    """One line on a column with cells that are not read; ``most`` as in ``read``."""
    if strays.wanted != WANTED["category"] or not strays.others:
        return strays.problem(rows)
    where, cell = strays.first["other"]
    return (
        f"column {strays.name}: a category with more than {most} values (one too many is {csv_columns.short(cell)} in "
        f"{where}); leave it out, group its values, or raise data.category_limit"
    )


def planned(survey: csv_survey.CsvSurvey, settings: DataSettings) -> list[TableColumn]:
    """How the columns of features are to be read, by the settings.

    Raises:
        ConfigError: a column that is not there, is a label, a client or left out, or has two kinds.
    """
    features, path = survey.features, survey.paths[0]

    def asked(key: str, which: Sequence[str | int]) -> list[int]:
        places = [csv_records.column(as_column(c), survey.columns, key, path) for c in which]
        if odd := next((i for i in places if i not in features), None):
            raise ConfigError(f"data.{key}: column {survey.columns[odd]} of {path} is no feature; take it out")
        return places

    listed = [] if isinstance(settings.categories, str) else asked("categories", settings.categories)
    dates = asked("dates", settings.dates)
    if both := {*listed} & {*dates}:
        raise ConfigError(f"column {survey.columns[min(both)]} is in data.categories and in data.dates; keep one")
    own = {name: marks for name, marks in settings.missing_values.items() if name != "*"}
    markers = dict(zip(asked("missing_values", [*own]), own.values(), strict=True))
    everywhere = settings.missing_values.get("*", ())
    plan = []
    for i in features:
        kind = "category" if i in listed else "date" if i in dates else "number"
        missing = tuple(dict.fromkeys(map(csv_columns.plain, (*markers.get(i, ()), *everywhere))))
        plan.append(_column(survey.columns[i], kind, missing, settings))
    if settings.categories != "encode":
        return plan
    _, strays = read(survey, len(survey), features, plan, settings.memory_share)
    texts = {s.name for s in strays if s.kind(len(survey)) in {"category", "texts"}}
    return [_column(c.name, "category", c.missing, settings) if c.name in texts else c for c in plan]


def _column(name: str, kind: str, missing: tuple[str, ...], settings: DataSettings) -> TableColumn:
    """A column before anything is learnt: the fill says only that there will be one."""
    fill = None if settings.missing == "refuse" else "" if kind == "category" else 0.0
    censored = kind == "number" and settings.censored == "limit"
    known = {"name": name, "kind": kind, "missing": missing, "censored": censored, "fill": fill}
    return TableColumn.model_validate(known)

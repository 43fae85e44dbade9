"""The cells of tables as numbers: what is read of each column, and all that cannot be read, by column."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import ConfigError, DataError
from pomona.data import csv_columns, csv_records, csv_survey
from pomona.data.csv_columns import Strays
from pomona.data.preprocessing import RawTable, TableColumn
from pomona.data.settings import DataSettings, as_column
from pomona.storage.mapped_array import allocate

AT_ONCE = 1 << 15  # cells as text
_GAPS = {form: "nan" for gap in csv_columns.GAPS for form in (gap, gap.upper())}
WANTED = {"number": "finite numbers", "date": "dates such as 2024-03-01", "category": "categories"}


@dataclass
class Reader:
    """Reads the cells of one column, some rows at a time.

    Attributes:
        column: how it is read.
        most: categories; a cell with any other is one that cannot be read.
        strays: cells that cannot be read, and gaps.
        codes: the categories met so far, and their numbers.
        bounds: how many cells were bounds.
    """

    column: TableColumn
    most: int
    strays: Strays = field(init=False)
    codes: dict[str, int] = field(default_factory=dict)
    bounds: int = 0

    def __post_init__(self) -> None:
        self.strays = Strays(self.column.name, WANTED[self.column.kind], self.column.fill is not None)

    def __call__(self, cells: Sequence[str], values: NDArray[np.float64], where: Callable[[int], str]) -> None:
        """Write the numbers of those cells (n,) whose ``values`` (n,) are NaN so far; gaps and strays stay NaN.

        Each different cell is looked at once; ``where`` names the place of a cell by its number.
        """
        rows = np.flatnonzero(np.isnan(values)).tolist()
        odd = [cells[row] for row in rows]
        found = {}
        for cell, times in Counter(odd).items():
            found[cell] = value = self._one(cell, times)
            if math.isnan(value):
                self.strays.add(cell, lambda cell: where(cells.index(cell)), self.column.is_gap(cell), times)
        values[rows] = [found[cell] for cell in odd]

    def _one(self, cell: str, times: int) -> float:
        """The number of a cell that is there so often; NaN for a gap, for what is none, and for a category too many."""
        kind = self.column.kind
        if self.column.missing and csv_columns.plain(cell) in self.column.missing:
            return math.nan
        if kind == "number":
            value = csv_columns.number(cell)
            if self.column.censored and math.isnan(value):
                value = csv_columns.bound(cell)
                self.bounds += times * (not math.isnan(value))
            return value
        if kind == "date":
            return csv_columns.days(cell)
        name = csv_columns.plain(cell)
        if name not in self.codes and (csv_columns.is_missing(name) or len(self.codes) >= self.most):
            return math.nan
        return self.codes.setdefault(name, len(self.codes))


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

    Raises DataError for fewer records: a file that was written to meanwhile.
    """
    readers = [Reader(column, most) for column in columns]
    x = allocate((count, len(places)), np.float64, memory_share)
    plain = [k for k, column in enumerate(columns) if column.kind == "number" and not column.missing]
    end, unread = 0, iter(records)
    for first in unread:
        block = [first, *islice(unread, AT_ONCE // len(first.cells))]
        start, end = end, end + len(block)
        values = np.full((len(block), len(places)), math.nan)
        plain = _numbers(block, places, plain, values)
        for k in np.flatnonzero(np.isnan(values).any(axis=0)).tolist():
            readers[k]([record.cells[places[k]] for record in block], values[:, k], partial(_place, block, several))
        x[start:end] = values
    if end != count:
        raise DataError("the table changed while it was read; read it again")
    codes, bounds = tuple(tuple(reader.codes) for reader in readers), tuple(reader.bounds for reader in readers)
    table = RawTable(tuple(columns), x, codes, bounds=bounds)
    return table, [reader.strays for reader in readers if reader.strays.wrong]


def _numbers(
    block: Sequence[csv_records.CsvRecord], places: Sequence[int], which: list[int], out: NDArray[np.float64]
) -> list[int]:
    """Write the columns of these numbers whose cells are all numbers or usual gaps, and return their numbers."""
    at = [places[k] for k in which]
    try:
        values = np.array([[float(_GAPS.get(c := record.cells[i], c)) for i in at] for record in block])
    except ValueError:
        half = len(which) // 2
        parts = (which[:half], which[half:]) if half else ()
        return [k for part in parts for k in _numbers(block, places, part, out)]
    out[:, which] = np.where(np.abs(values) <= csv_columns.LARGEST, values, np.nan)
    return which


def _place(block: Sequence[csv_records.CsvRecord], several: bool, row: int) -> str:
    """Where a record of a block lies."""
    return csv_records.place(*block[row][:2], several)


def problem(strays: Strays, rows: int, most: int) -> str:
    """One line on a column with cells that are not read; ``most`` as in ``read``."""
    if strays.wanted != WANTED["category"] or not strays.others:
        return strays.problem(rows)
    where, cell = strays.first["other"]
    return (
        f"column {strays.name}: a category with more than {most} values (one too many is {csv_columns.short(cell)} in "
        f"{where}); leave it out, group its values, or raise data.category_limit"
    )


def features(survey: csv_survey.CsvSurvey, settings: DataSettings) -> tuple[RawTable, list[Strays]]:
    """The columns of features as the settings say, as of ``read``; all that mostly hold no numbers are categories where
    they say so, and are read again.

    Raises as ``planned``.
    """
    share, several, most = settings.memory_share, len(survey.paths) > 1, settings.category_limit
    raw, strays = read(survey, len(survey), survey.features, planned(survey, settings), share, several, most)
    texts = {s.name for s in strays if s.kind(len(survey)) in {"category", "texts"}}
    if settings.categories != "encode" or not texts:
        return raw, strays
    at = [k for k, column in enumerate(raw.columns) if column.name in texts]
    named = [_column(raw.columns[k].name, "category", raw.columns[k].missing, settings) for k in at]
    again, odd = read(survey, len(survey), [survey.features[k] for k in at], named, share, several, most)
    raw.x[:, at] = again.x
    columns, values, bounds = list(raw.columns), list(raw.values), list(raw.bounds)
    for j, k in enumerate(at):
        columns[k], values[k], bounds[k] = again.columns[j], again.values[j], 0
    order = {column.name: k for k, column in enumerate(columns)}
    strays = sorted([*(s for s in strays if s.name not in texts), *odd], key=lambda s: order[s.name])
    return replace(raw, columns=tuple(columns), values=tuple(values), bounds=tuple(bounds)), strays


def planned(survey: csv_survey.CsvSurvey, settings: DataSettings) -> list[TableColumn]:
    """How the columns of features are to be read, by the settings.

    Raises:
        ConfigError: a column that is not there, is a label, a client or left out, or has two kinds.
    """
    path = survey.paths[0]

    def asked(key: str, which: Sequence[str | int]) -> list[int]:
        places = [csv_records.column(as_column(c), survey.columns, key, path) for c in which]
        if odd := next((i for i in places if i not in survey.features), None):
            raise ConfigError(f"data.{key}: column {survey.columns[odd]} of {path} is not a feature; take it out")
        return places

    listed = [] if isinstance(settings.categories, str) else asked("categories", settings.categories)
    dates = asked("dates", settings.dates)
    if both := {*listed} & {*dates}:
        raise ConfigError(f"column {survey.columns[min(both)]} is in data.categories and in data.dates; keep one")
    own = {name: marks for name, marks in settings.missing_values.items() if name != "*"}
    markers = dict(zip(asked("missing_values", [*own]), own.values(), strict=True))
    everywhere = settings.missing_values.get("*", ())
    plan = []
    for i in survey.features:
        kind = "category" if i in listed else "date" if i in dates else "number"
        missing = tuple(dict.fromkeys(map(csv_columns.plain, (*markers.get(i, ()), *everywhere))))
        plan.append(_column(survey.columns[i], kind, missing, settings))
    return plan


def _column(name: str, kind: str, missing: tuple[str, ...], settings: DataSettings) -> TableColumn:
    """A column before anything is learnt: the fill says only that there will be one."""
    fill = None if settings.missing == "refuse" else "" if kind == "category" else 0.0
    censored = kind == "number" and settings.censored == "limit"
    known = {"name": name, "kind": kind, "missing": missing, "censored": censored, "fill": fill}
    return TableColumn.model_validate(known)

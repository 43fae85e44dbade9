"""Reading table cells as numbers, with all unreadable cells reported by column."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError
from pomona.data import cell_values
from pomona.data.kinds import Table
from pomona.data.preprocessing import RawTable, TableColumn
from pomona.data.stray_cells import Strays
from pomona.data.table_columns import planned, read_as
from pomona.data.table_file import Record, place
from pomona.data.table_survey import TableSurvey
from pomona.storage.mapped_array import allocate

AT_ONCE = 1 << 15  # cells as text
_GAPS = {form: "nan" for gap in cell_values.GAPS for form in (gap, gap.upper())}
WANTED = {"number": "finite numbers", "date": "dates such as 2024-03-01", "category": "categories"}


@dataclass
class Reader:
    """Reads one column in blocks of rows.

    Attributes:
        column: how to read it.
        most: maximum number of categories; cells with further ones are unreadable.
        strays: unreadable cells, and gaps.
        codes: the categories found so far, with their codes.
        bounds: number of cells that were bounds.
    """

    column: TableColumn
    most: int
    strays: Strays = field(init=False)
    codes: dict[str, int] = field(default_factory=dict)
    bounds: int = 0

    def __post_init__(self) -> None:
        self.strays = Strays(
            self.column.name, WANTED[self.column.kind], self.column.fill is not None
        )

    def __call__(
        self, cells: Sequence[str], values: NDArray[np.float64], where: Callable[[int], str]
    ) -> None:
        """Fill in the numbers of the cells (n,) whose ``values`` (n,) are still NaN; gaps and
        strays stay NaN.

        Each distinct cell is parsed once; ``where`` gives the location of a cell by its index.
        """
        rows = np.flatnonzero(np.isnan(values)).tolist()
        odd = [cells[row] for row in rows]
        found = {}
        for cell, times in Counter(odd).items():
            found[cell] = value = self._one(cell, times)
            if math.isnan(value):
                self.strays.add(
                    cell, lambda cell: where(cells.index(cell)), self.column.is_gap(cell), times
                )
        values[rows] = [found[cell] for cell in odd]

    def _one(self, cell: str, times: int) -> float:
        """Return a repeated cell's number; NaN for a gap, for an invalid number, and beyond the
        limit of categories.
        """
        kind = self.column.kind
        if self.column.missing and cell_values.plain(cell) in self.column.missing:
            return math.nan
        if kind == "number":
            value = cell_values.number(cell)
            if self.column.censored and math.isnan(value):
                value = cell_values.bound(cell)
                self.bounds += times * (not math.isnan(value))
            return value
        if kind == "date":
            return cell_values.days(cell)
        name = cell_values.plain(cell)
        if name not in self.codes and (
            cell_values.is_missing(name) or len(self.codes) >= self.most
        ):
            return math.nan
        return self.codes.setdefault(name, len(self.codes))


def read(
    records: Iterable[Record],
    count: int,
    places: Sequence[int],
    columns: Sequence[TableColumn],
    memory_share: float,
    several: bool = False,
    most: int = 2**24,
) -> tuple[RawTable, list[Strays]]:
    """Read columns of records as numbers, and report those with unreadable cells.

    Args:
        records: all of the same width.
        count: their number, N.
        places: indices of the F columns to read, in this order.
        columns: how to read each.
        memory_share: see ``allocate``.
        several: whether the records come from several files, so that locations need a file name.
        most: maximum number of categories of a column; cells with further ones are unreadable.

    Returns:
        The table, with NaN for gaps and strays, and the columns with strays or refused gaps, in
        order.

    Raises DataError if there are fewer records than expected, because a file has changed meanwhile.
    """
    readers = [Reader(column, most) for column in columns]
    x = allocate((count, len(places)), np.float64, memory_share)
    plain = [k for k, column in enumerate(columns) if column.plain]
    end = 0
    for block in _blocks(records):
        start, end = end, end + len(block)
        values = np.full((len(block), len(places)), math.nan)
        plain = _numbers(block, places, plain, values)
        for k in np.flatnonzero(np.isnan(values).any(axis=0)).tolist():
            readers[k](
                [record.cells[places[k]] for record in block],
                values[:, k],
                partial(_place, block, several),
            )
        x[start:end] = values
    if end != count:
        raise DataError("the table changed while it was read; read it again")
    codes = tuple(tuple(reader.codes) for reader in readers)
    table = RawTable(tuple(columns), x, codes, bounds=tuple(reader.bounds for reader in readers))
    return table, [reader.strays for reader in readers if reader.strays.wrong]


def _blocks(records: Iterable[Record]) -> Iterator[list[Record]]:
    unread = iter(records)
    for first in unread:
        yield [first, *islice(unread, AT_ONCE // len(first.cells))]


def _numbers(
    block: Sequence[Record],
    places: Sequence[int],
    which: list[int],
    out: NDArray[np.float64],
) -> list[int]:
    """Write the columns whose cells are all numbers or standard gaps, and return their indices."""
    at = [places[k] for k in which]
    try:
        values = np.array(
            [[cell_values.real(_GAPS.get(c := record.cells[i], c)) for i in at] for record in block]
        )
    except ValueError:
        half = len(which) // 2
        parts = (which[:half], which[half:]) if half else ()
        return [k for part in parts for k in _numbers(block, places, part, out)]
    out[:, which] = np.where(np.abs(values) <= cell_values.LARGEST, values, np.nan)
    return which


def _place(block: Sequence[Record], several: bool, row: int) -> str:
    """Return the location of a record in a block."""
    return place(*block[row][:2], several)


def problem(strays: Strays, rows: int, most: int) -> str:
    """Describe a column with unreadable cells in one line; ``most`` as in ``read``."""
    if strays.wanted != WANTED["category"] or not strays.others:
        return strays.problem(rows)
    where, cell = strays.first["other"]
    return (
        f"column {strays.name}: a category with more than {most} values (one too many is "
        f"{cell_values.short(cell)} in "
        f"{where}); leave it out, group its values, or raise data.category_limit"
    )


def read_features(survey: TableSurvey, settings: Table) -> tuple[RawTable, list[Strays]]:
    """Read the feature columns as configured; returns the same as ``read``.

    If the settings allow it, columns with mostly non-numeric cells are read again as categories.

    Raises as ``planned``.
    """
    share, several, most = settings.memory_share, len(survey.files) > 1, settings.category_limit
    features = survey.roles.features
    plan = planned(survey.files[0], features, settings)
    raw, strays = read(survey, len(survey), features, plan, share, several, most)
    texts = {s.name for s in strays if s.kind(len(survey)) in {"category", "texts"}}
    if settings.categories != "encode" or not texts:
        return raw, strays
    at = [k for k, column in enumerate(raw.columns) if column.name in texts]
    named = [read_as(raw.columns[k].name, "category", raw.columns[k].missing, settings) for k in at]
    again, odd = read(survey, len(survey), [features[k] for k in at], named, share, several, most)
    raw.x[:, at] = again.x
    columns, values, bounds = list(raw.columns), list(raw.values), list(raw.bounds)
    for j, k in enumerate(at):
        columns[k], values[k], bounds[k] = again.columns[j], again.values[j], 0
    order = {column.name: k for k, column in enumerate(columns)}
    strays = sorted(
        [*(s for s in strays if s.name not in texts), *odd], key=lambda s: order[s.name]
    )
    return replace(raw, columns=tuple(columns), values=tuple(values), bounds=tuple(bounds)), strays

"""Preprocessing of table columns: the record in runs, model files and agreements.

A table as read (``RawTable``) is float64: numbers, days of dates, category codes, and NaN for gaps.
The training rows determine its ``Preprocessing``, which converts it to float32; ``tables.features``
learns and applies it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import FailFast, Field, StringConstraints, model_validator

from pomona.core.bounds import Finite
from pomona.core.settings import Settings
from pomona.data import cell_values

MOST_COLUMNS = 10**5
MOST_CATEGORIES = 10**4  # of one column
Floats = NDArray[np.floating]
LONGEST_NAME = 500
LEVELS = 256  # float32 steps within a standard deviation that make rounding negligible
Name = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_NAME)]
Category = Annotated[str, StringConstraints(max_length=10**4)]


def offset(numbers: Floats) -> float:
    """Return the offset to subtract in double precision from numbers (n,) before conversion to
    float32: the median.

    0 if float32 represents the numbers exactly or resolves their deviation in ``LEVELS`` steps, or
    if double precision does not resolve it, so that the numbers differ only by rounding.
    """
    if not len(numbers) or not (numbers.astype(np.float32) != numbers).any():
        return 0.0
    size = np.abs(numbers).max()
    fine, coarse = (LEVELS * float(np.spacing(kind(size))) for kind in (np.float64, np.float32))
    return float(np.median(numbers)) if fine <= numbers.std() < coarse else 0.0


class TableColumn(Settings):
    """One column of a table, and its conversion to features.

    Attributes:
        name: of the column, or its number as text.
        kind: ``number`` (true and false are 1 and 0), ``date`` (days since 2000-01-01), or
            ``category``.
        missing: cells that mark a gap in this column, besides the general ones.
        offset: subtracted from numbers and days before conversion to float32; see ``offset``.
        censored: whether bounds such as ``<5`` and ``>100`` are read as 5 and 100; otherwise they
            are not numbers.
        fill: value for gaps, a number or a category; without it, gaps are refused.
        flagged: whether an additional feature is 1 for gaps.
        values: the categories that have a one-hot feature; any other category is 0 in all of them.
    """

    name: Name
    kind: Literal["number", "date", "category"] = "number"
    missing: Annotated[tuple[Category, ...], FailFast()] = Field((), max_length=1000)
    offset: Finite = 0.0
    censored: bool = False
    fill: Finite | Category | None = None
    flagged: bool = False
    values: Annotated[tuple[Category, ...], FailFast()] = Field((), max_length=MOST_CATEGORIES)

    @model_validator(mode="after")
    def _fits(self) -> "TableColumn":
        if self.fill is not None and isinstance(self.fill, str) != (self.kind == "category"):
            raise ValueError(
                f"column {self.name}: fill must be a category for categories, else a number"
            )
        if self.offset and self.kind == "category":
            raise ValueError(f"column {self.name}: only numbers have an offset")
        if self.values and self.kind != "category":
            raise ValueError(f"column {self.name}: only categories have values")
        if len(set(self.values)) < len(self.values):
            raise ValueError(f"column {self.name}: two values are the same")
        if self.flagged and self.fill is None:
            raise ValueError(f"column {self.name}: gaps that are refused have no flag")
        return self

    @property
    def features(self) -> tuple[str, ...]:
        """The names of its features."""
        names: tuple[str, ...] = (self.name,)
        if self.kind == "category":
            names = tuple(f"{self.name}={value}" for value in self.values)
        return (*names, f"{self.name} missing") if self.flagged else names

    @property
    def plain(self) -> bool:
        """Return whether every cell is a number or a usual gap."""
        return self.kind == "number" and not self.missing

    def is_gap(self, cell: str) -> bool:
        """Return whether a cell is a gap."""
        always = cell_values.is_missing if self.kind == "category" else cell_values.is_gap
        return always(cell) or cell_values.plain(cell) in self.missing


class Preprocessing(Settings):
    """Conversion of a table's columns to features.

    Attributes:
        columns: the columns to read, in the order of the features.
        layout: all columns, in order, of a training file that had no header.
        shift, scale: a feature is ``(x - shift) / scale``, in float32, if the clients have moments
            of their own.
    """

    columns: Annotated[tuple[TableColumn, ...], FailFast()] = Field(
        min_length=1, max_length=MOST_COLUMNS
    )
    layout: Annotated[tuple[Name, ...], FailFast()] = Field((), max_length=MOST_COLUMNS)
    shift: Annotated[tuple[Finite, ...], FailFast()] = ()
    scale: Annotated[tuple[Annotated[Finite, Field(gt=0)], ...], FailFast()] = ()

    @model_validator(mode="after")
    def _fits(self) -> "Preprocessing":
        if len(set(self.names)) < len(self.columns):
            raise ValueError("two columns have one name")
        if not len(self.shift) == len(self.scale) or len(self.shift) not in {0, self.width}:
            raise ValueError(
                f"shift and scale have one number for each of {self.width} features, or none"
            )
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def offsets(self) -> tuple[float, ...]:
        """The offset of each feature; 0 for categories and flags."""
        return tuple(
            c.offset if name == c.name else 0.0 for c in self.columns for name in c.features
        )

    @property
    def width(self) -> int:
        """The number of features."""
        return sum(len(column.features) for column in self.columns)


@dataclass(frozen=True)
class RawTable:
    """Columns of a table as read.

    Attributes:
        columns: how each was read.
        x: (N, C) float64: a number, days of a date, or a category's index in ``values``; NaN for a
            gap.
        values: distinct categories of each column, in order of occurrence; empty for other columns.
        readings: of each column, how many cells mean something else than they say, by their kind
            (``cells.READINGS``); empty if unknown.
        zoned: whether the cells of each column name a time zone: (N,) for columns of dates, else
            empty.
        layout: as in ``Preprocessing``.
    """

    columns: tuple[TableColumn, ...]
    x: NDArray[Any]
    values: tuple[tuple[str, ...], ...]
    layout: tuple[str, ...] = ()
    readings: tuple[Mapping[str, str], ...] = ()
    zoned: tuple[NDArray[np.bool_], ...] = ()

    @classmethod
    def plain(
        cls, names: Sequence[str], x: NDArray[Any], layout: tuple[str, ...] = ()
    ) -> "RawTable":
        """Return a table of numbers x (N, C)."""
        columns = tuple(TableColumn(name=name) for name in names)
        return cls(columns, x, ((),) * len(columns), layout)

    def rows(self, numbers: NDArray[np.int64]) -> "RawTable":
        """Return the given rows."""
        return self.with_rows(numbers, self.x[numbers])

    def with_rows(self, numbers: NDArray[np.int64], x: NDArray[Any]) -> "RawTable":
        """Return the given rows (n,), whose cells are x (n, C)."""
        zoned = tuple(cells[numbers] if len(cells) else cells for cells in self.zoned)
        return replace(self, x=x, zoned=zoned)

    def select(self, numbers: Sequence[int]) -> "RawTable":
        """Return the given columns, in order."""
        columns = tuple(self.columns[i] for i in numbers)
        return replace(
            self,
            columns=columns,
            values=tuple(self.values[i] for i in numbers),
            x=self.x[:, list(numbers)],
            zoned=tuple(self.zoned[i] for i in numbers) if self.zoned else (),
        )

    def with_columns(self, numbers: Sequence[int], table: "RawTable") -> "RawTable":
        """Return the table with these columns replaced by those of another one, in order."""
        self.x[:, list(numbers)] = table.x
        columns, values, readings = list(self.columns), list(self.values), list(self.readings)
        for k, number in enumerate(numbers):
            columns[number], values[number] = table.columns[k], table.values[k]
            readings[number] = table.readings[k]
        return replace(self, columns=tuple(columns), values=tuple(values), readings=tuple(readings))

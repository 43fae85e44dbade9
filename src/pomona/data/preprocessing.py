"""How the columns of a table become numbers: the record that stands in runs, model files and agreements.

A table as read (``RawTable``) is float64: numbers, days of dates, numbers of categories, and NaN for gaps. What its
training rows teach of it is a ``Preprocessing``, by which it becomes float32; ``table_features`` learns and applies it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StringConstraints, model_validator

from pomona.core.bounds import Finite
from pomona.core.settings import Settings
from pomona.data import csv_columns

MOST_COLUMNS = 10**5
MOST_CATEGORIES = 10**4  # of one column
Floats = NDArray[np.floating]
Name = Annotated[str, StringConstraints(min_length=1, max_length=500)]
Category = Annotated[str, StringConstraints(max_length=10**4)]


class TableColumn(Settings):
    """One column of a table as it lies in its file, and what becomes of it.

    Attributes:
        name: of the column, or its number as text.
        kind: ``number`` (true and false are 1 and 0), ``date`` (days since 2000-01-01), or ``category``.
        missing: cells that stand for a gap here, beside those that always do.
        offset: is subtracted of numbers and days before they become float32; see ``table_features.offset``.
        censored: whether bounds such as ``<5`` and ``>100`` count as 5 and 100; else they are no numbers.
        fill: what stands in for a gap: a number, or a category; gaps are refused where there is none.
        flagged: whether a further feature is 1 where there was a gap.
        values: the categories that have a feature, which is 1 where the cell says so; any other is 0 in all of them.
    """

    name: Name
    kind: Literal["number", "date", "category"] = "number"
    missing: tuple[Category, ...] = Field((), max_length=1000)
    offset: Finite = 0.0
    censored: bool = False
    fill: Finite | Category | None = None
    flagged: bool = False
    values: tuple[Category, ...] = Field((), max_length=MOST_CATEGORIES)

    @model_validator(mode="after")
    def _fits(self) -> "TableColumn":
        if self.fill is not None and isinstance(self.fill, str) != (self.kind == "category"):
            raise ValueError(f"column {self.name}: fill must be a category for categories, else a number")
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
        """Names of the features that are made of it."""
        own = tuple(f"{self.name}={value}" for value in self.values) if self.kind == "category" else (self.name,)
        return (*own, f"{self.name} missing") if self.flagged else own

    def is_gap(self, cell: str) -> bool:
        """Whether a cell says nothing."""
        always = csv_columns.is_missing if self.kind == "category" else csv_columns.is_gap
        return always(cell) or csv_columns.plain(cell) in self.missing


class Preprocessing(Settings):
    """How the columns of a table become features.

    Attributes:
        columns: those that are read, in the order of the features.
        layout: all columns of a training file that had no line of names, in order.
        shift, scale: a feature is ``(x - shift) / scale``, in float32, where the clients have moments of their own.
    """

    columns: tuple[TableColumn, ...] = Field(min_length=1, max_length=MOST_COLUMNS)
    layout: tuple[Name, ...] = Field((), max_length=MOST_COLUMNS)
    shift: tuple[Finite, ...] = ()
    scale: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = ()

    @model_validator(mode="after")
    def _fits(self) -> "Preprocessing":
        if len(set(self.names)) < len(self.columns):
            raise ValueError("two columns have one name")
        if not len(self.shift) == len(self.scale) or len(self.shift) not in {0, self.width}:
            raise ValueError(f"shift and scale have one number for each of {self.width} features, or none")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def offsets(self) -> tuple[float, ...]:
        """What is subtracted of each feature; 0 of categories and flags."""
        return tuple(c.offset if name == c.name else 0.0 for c in self.columns for name in c.features)

    @property
    def width(self) -> int:
        """Number of features."""
        return sum(len(column.features) for column in self.columns)


@dataclass(frozen=True)
class RawTable:
    """Columns of a table as read.

    Attributes:
        columns: how each was read.
        x: (N, C) float64: a number, the days of a date, or a category's place among ``values``; NaN for a gap.
        values: the different categories of each column, as met; empty for the others.
        bounds: how many cells of each column are bounds that count as their value; empty where none was looked for.
        layout: as in ``Preprocessing``.
    """

    columns: tuple[TableColumn, ...]
    x: NDArray[Any]
    values: tuple[tuple[str, ...], ...]
    layout: tuple[str, ...] = ()
    bounds: tuple[int, ...] = ()

    def rows(self, numbers: NDArray[np.int64]) -> "RawTable":
        """The rows of the given numbers."""
        return replace(self, x=self.x[numbers])

    def of(self, numbers: Sequence[int]) -> "RawTable":
        """The columns of the given numbers, in their order."""
        columns = tuple(self.columns[i] for i in numbers)
        return replace(self, columns=columns, values=tuple(self.values[i] for i in numbers), x=self.x[:, list(numbers)])

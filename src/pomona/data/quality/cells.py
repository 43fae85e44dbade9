"""What the checks of a data set's content look at: cells as read, by column and by client."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import listed
from pomona.data.dataset import Dataset
from pomona.data.preprocessing import Floats, RawTable, TableColumn
from pomona.data.validation import blocks

Rows = NDArray[np.int64]
SAMPLE = 1000  # rows of a client that are enough for medians and spreads
LINES_SHOWN = 4  # of columns with the same problem that are described one by one


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of a table as read, with the client of each row.

    Attributes:
        columns: how each column was read.
        x: (N, C) numbers, days of dates, or indices of categories; NaN for a gap.
        values: the categories of each column.
        names: of the clients; empty for rows without owners.
        client: (N,) the client of each row.
        zoned: as in ``RawTable``.
        has_names: whether the columns have names that settings can use.
    """

    columns: tuple[TableColumn, ...]
    x: NDArray[np.generic]
    values: tuple[tuple[str, ...], ...]
    names: tuple[str, ...]
    client: Rows
    zoned: tuple[NDArray[np.bool_], ...]
    has_names: bool

    @classmethod
    def of(cls, dataset: Dataset) -> "Cells":
        """Return the cells of a table: as read if they are still there, else its features."""
        numbered = tuple(map(str, range(dataset.x.shape[1])))
        raw = dataset.raw or RawTable.plain(dataset.columns or numbered, dataset.x)
        owners = dataset.owners
        client = np.zeros(len(raw.x), np.int64) if owners is None else owners.client
        names = owners.names if owners else ()
        return cls(raw.columns, raw.x, raw.values, names, client, raw.zoned, bool(dataset.columns))

    def __len__(self) -> int:
        return len(self.x)

    @cached_property
    def by_client(self) -> tuple[Rows, ...]:
        """The rows of each client; all rows if there are no clients."""
        if not self.names:
            return (np.arange(len(self)),)
        order = np.argsort(self.client, kind="stable")
        boundaries = np.searchsorted(self.client[order], np.arange(1, len(self.names)))
        return tuple(np.split(order, boundaries))

    @cached_property
    def samples(self) -> tuple[NDArray[np.float64], ...]:
        """(n, C) at most ``SAMPLE`` rows of each client, evenly spaced."""
        return tuple(
            np.asarray(self.x[spread(rows, SAMPLE)], np.float64) for rows in self.by_client
        )

    @cached_property
    def extremes(self) -> "Extremes":
        """How many values each column has at each client, the lowest and the highest."""
        return Extremes.of(self)

    def numbers(self) -> Iterator[tuple[int, str]]:
        """Iterate over columns of numbers: index and name."""
        return ((k, c.name) for k, c in enumerate(self.columns) if c.kind == "number")

    def column(self, k: int) -> NDArray[np.float64]:
        """Return the cells (N,) of a column."""
        return np.asarray(self.x[:, k], np.float64)


@dataclass(frozen=True, eq=False)
class Extremes:
    """By client and column, (n, C): number of values, the lowest and the highest (NaN if none)."""

    counts: NDArray[np.int64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @classmethod
    def of(cls, cells: Cells) -> "Extremes":
        """Return the extremes of a table; for categories those of their indices."""
        shape = len(cells.by_client), len(cells.columns)
        counts, low, high = (
            np.zeros(shape, np.int64),
            np.full(shape, np.nan),
            np.full(shape, np.nan),
        )
        for i, rows in enumerate(cells.by_client):
            for _, block in blocks(rows, max(1, 2**20 // max(1, shape[1]))):
                x = cells.x[block]
                low[i] = np.fmin(low[i], np.fmin.reduce(x, axis=0))
                high[i] = np.fmax(high[i], np.fmax.reduce(x, axis=0))
                counts[i] += len(x) - np.isnan(x).sum(axis=0)
        return cls(counts, low, high)


def spread(rows: Rows, limit: int) -> Rows:
    """Return at most this many of the rows, evenly spaced."""
    if len(rows) <= limit:
        return rows
    return rows[np.linspace(0, len(rows) - 1, limit).astype(np.int64)]


def without_gaps(values: Floats) -> NDArray[np.float64]:
    """Return the values without gaps."""
    real = np.asarray(values, np.float64)
    return real[~np.isnan(real)]


def digits(value: float) -> str:
    """Return a number for a message, in few digits."""
    return f"{value:.0f}" if abs(value) < 1e15 and value == round(value) else f"{value:.3g}"


def capped(lines: Sequence[tuple[str, str]]) -> list[str]:
    """Return the lines of columns, given with their names; after the first few the names only."""
    detailed = [line for _, line in lines[:LINES_SHOWN]]
    further = [name for name, _ in lines[LINES_SHOWN:]]
    return (
        [*detailed, f"the same in {len(further)} more columns: {listed(further)}"]
        if further
        else detailed
    )


def by_size(counts: Sequence[tuple[str, int]], limit: int = 4) -> str:
    """Name clients with their counts, the largest first; empty without clients."""
    ordered = sorted(counts, key=lambda pair: -pair[1])
    return listed([f"{n} of {name}" for name, n in ordered if n and name], limit)

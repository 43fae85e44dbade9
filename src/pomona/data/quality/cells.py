"""What the checks of a data set's content look at: cells as read, by column and by client."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import listed
from pomona.data.dataset import Dataset
from pomona.data.preprocessing import RawTable
from pomona.data.validation import blocks

Rows = NDArray[np.int64]
Values = NDArray[np.float64]
SAMPLE = 1000  # rows of a client that are enough for medians and spreads
LINES_SHOWN = 4  # of columns with the same problem that are described one by one


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of a data set as read, with the client of each row.

    Attributes:
        dataset: their data set.
        raw: the table of N rows and C columns; of images and texts, C is 0.
        names: of the clients; empty for rows without owners.
        client: (N,) the client of each row.
    """

    dataset: Dataset
    raw: RawTable
    names: tuple[str, ...]
    client: Rows

    @classmethod
    def from_dataset(cls, dataset: Dataset) -> "Cells":
        """Return the cells of a table: as read if they are still there, else its features."""
        x = dataset.x if dataset.kind == "table" else np.zeros((len(dataset), 0))
        names = dataset.columns if dataset.kind == "table" else ()
        raw = dataset.raw or RawTable.plain(names or tuple(map(str, range(x.shape[1]))), x)
        owners = dataset.owners
        client = np.zeros(len(raw.x), np.int64) if owners is None else owners.client
        return cls(dataset, raw, owners.names if owners else (), client)

    def __len__(self) -> int:
        return len(self.raw.x)

    @cached_property
    def by_client(self) -> tuple[Rows, ...]:
        """The rows of each client; all rows if there are no clients."""
        order = np.argsort(self.client, kind="stable")
        return tuple(np.split(order, np.searchsorted(self.client[order], range(1, self.sites))))

    @property
    def sites(self) -> int:
        """The number of clients; 1 if there are none."""
        return max(1, len(self.names))

    @cached_property
    def samples(self) -> tuple[Values, ...]:
        """(n, C) at most ``SAMPLE`` rows of each client, evenly spaced."""
        return tuple(np.asarray(self.raw.x[spread(rows, SAMPLE)], float) for rows in self.by_client)

    @cached_property
    def extremes(self) -> tuple[Rows, Values, Values]:
        """By client and column, (n, C): number of values, the lowest and the highest (NaN if
        none); for categories those of their indices.
        """
        shape = self.sites, len(self.raw.columns)
        counts, low, high = np.zeros(shape, int), np.full(shape, np.nan), np.full(shape, np.nan)
        for i, rows in enumerate(self.by_client):
            for _, block in blocks(rows, max(1, 2**20 // max(1, shape[1]))):
                x = self.raw.x[block]
                low[i] = np.fmin(low[i], np.fmin.reduce(x, axis=0))
                high[i] = np.fmax(high[i], np.fmax.reduce(x, axis=0))
                counts[i] += len(x) - np.isnan(x).sum(axis=0)
        return counts, low, high

    def columns(self, *types: str) -> Iterator[tuple[int, str]]:
        """Iterate over the columns of these types, of all types by default: index and name."""
        pairs = enumerate(self.raw.columns)
        return ((k, c.name) for k, c in pairs if not types or c.kind in types)

    def column(self, k: int) -> Values:
        """Return the cells (N,) of a column."""
        return np.asarray(self.raw.x[:, k], np.float64)


def spread(rows: Rows, limit: int) -> Rows:
    """Return at most this many of the rows, evenly spaced."""
    if len(rows) <= limit:
        return rows
    return rows[np.linspace(0, len(rows) - 1, limit).astype(np.int64)]


def without_gaps(values: NDArray[Any]) -> Values:
    """Return the values without gaps."""
    present: Values = np.asarray(values, np.float64)[~np.isnan(values)]
    return present


def digits(value: float) -> str:
    """Return a number for a message, in few digits."""
    return f"{value:.0f}" if abs(value) < 1e15 and value == round(value) else f"{value:.3g}"


def capped(lines: Sequence[tuple[str, str]]) -> list[str]:
    """Return the lines of columns, given with their names; after the first few the names only."""
    further = [name for name, _ in lines[LINES_SHOWN:]]
    summary = [f"the same in {len(further)} more columns: {listed(further)}"] if further else []
    return [line for _, line in lines[:LINES_SHOWN]] + summary


def by_size(names: Sequence[str], counts: NDArray[Any], limit: int = 4) -> str:
    """Name clients with their counts, the largest first; empty without clients."""
    order = np.argsort(-counts, kind="stable") if names else ()
    return listed([f"{int(counts[i])} of {names[i]}" for i in order if counts[i]], limit)

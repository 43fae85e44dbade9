"""A run's ``info`` over the rounds, and an order that places similar clients together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from pomona.metrics.nan_safe import defined
from pomona.record.presentation import Quantity
from pomona.record.rows import RoundRow
from pomona.results.figures import plot
from pomona.results.run_numbers import Run

Values = NDArray[np.float64]

MATRIX = 500
"""Maximum number of clients for drawing a clients-by-clients matrix, since sorting it is
quadratic.
"""
SEVERAL_MAPS = 150
"""Maximum number of clients for maps of several rounds, each of which has n x n points."""
ROUNDS = 200
"""Maximum number of rounds drawn; more would exceed the resolution."""


@dataclass(frozen=True)
class Series:
    """One quantity of a run: ``values[t, i]`` is client i's last value at the end of ``rounds[t]``.

    ``values`` (T, N, K): K = N for matrices, 1 for scalars. A client that skips a round keeps its
    row; before its first round the row is NaN.
    """

    run: Run
    quantity: Quantity
    rounds: NDArray[np.int64]
    values: Values

    @property
    def n(self) -> int:
        """Number of clients."""
        return int(self.values.shape[1])

    @property
    def participants(self) -> list[int]:
        """The clients that took part so far."""
        return np.flatnonzero(~np.isnan(self.values[-1]).all(axis=1)).tolist()

    @property
    def groups(self) -> list[int]:
        """Hidden true group of each client, empty if unknown."""
        groups = list(self.run.result.about.get("groups") or ())
        return groups if len(groups) == self.n else []

    @property
    def target_groups(self) -> list[int]:
        """Hidden group on whose samples each client is evaluated; its own unless the record names
        another one.
        """
        targets = list(self.run.result.about.get("target_groups") or ())
        return targets if self.groups and len(targets) == self.n else self.groups

    @property
    def strangers(self) -> list[int]:
        """The clients that are evaluated on samples of another group than their own."""
        return [
            i
            for i, (group, target) in enumerate(zip(self.groups, self.target_groups, strict=True))
            if group != target
        ]

    @cached_property
    def names(self) -> list[str]:
        """The clients' names, shortened for an axis."""
        return [plot.shorten(self.run.client(i)) for i in range(self.n)]

    @property
    def moments(self) -> list[int]:
        """Positions of the first, the middle and the last round; of many clients, of the last."""
        last = len(self.rounds) - 1
        return [last] if self.n > SEVERAL_MAPS else sorted({0, last // 2, last})

    @property
    def absence(self) -> str:
        """A sentence on absent clients; empty if all took part in every round."""
        if all(len(row.cohort) == self.n for row in self.run.result.rounds):
            return ""
        never = self.n - len(self.participants)
        return (
            " An absent client keeps its last value; before its first round it has none (grey in "
            "maps)"
        ) + (f"; {never} took part in no round." if never else ".")

    def records(
        self,
        columns: Sequence[str],
        moments: Iterable[int] | None = None,
        clients: Iterable[int] | None = None,
    ) -> plot.Rows:
        """Return a row of the CSV for each round and client, by default of all, with a column for
        each of its K numbers; blank before a client's first round.
        """
        return [
            {
                "run": self.run.label,
                "round": int(self.rounds[t]),
                "client": i,
                "name": self.run.client(i),
                **dict(zip(columns, map(defined, self.values[t, i]), strict=True)),
            }
            for t in (range(len(self.rounds)) if moments is None else moments)
            for i in (range(self.n) if clients is None else clients)
        ]

    def thinned(self) -> "Series":
        """Return at most ROUNDS evenly spaced rounds, including the first and the last."""
        spaced = np.linspace(0, len(self.rounds) - 1, min(len(self.rounds), ROUNDS))
        indices = np.unique(spaced.round().astype(np.int64))
        return Series(self.run, self.quantity, self.rounds[indices], self.values[indices])


def too_large(run: Run) -> dict[str, int]:
    """Return names in ``info`` of quantities for all pairs of more than ``MATRIX`` clients, and
    their numbers.
    """
    n = run.result.clients
    wide = {
        name: matrix.shape[1]
        for row in run.result.rounds
        for name, matrix in row.info.items()
        if matrix.ndim == 2 and matrix.shape[1] > MATRIX
    }
    return {
        name: columns
        for name, columns in wide.items()
        if run.result.presentation.quantity(name, columns, n).kind == "matrix"
    }


def recorded(run: Run) -> dict[str, Series]:
    """Return name in ``info`` -> its series, for every name with a number or a row of numbers per
    client.

    Those that are ``too_large`` are excluded from figures, orders and texts.
    """
    large = too_large(run)
    names = dict.fromkeys(
        name for row in run.result.rounds for name in row.info if name not in large
    )
    return {name: series for name in names if (series := _series(run, name))}


def _series(run: Run, name: str) -> Series | None:
    rows = [row for row in run.result.rounds if name in row.info and row.info[name].size]
    if not _one_shape(rows, name):
        return None
    n = run.result.clients
    current = np.full((n, rows[0].info[name][0].size), np.nan)
    values = np.empty((len(rows), *current.shape))
    for t, row in enumerate(rows):
        current[list(row.cohort)] = row.info[name].reshape(len(row.cohort), -1)
        values[t] = current
    quantity = run.result.presentation.quantity(name, current.shape[1], n)
    bounded = values.clip(-plot.LARGEST, plot.LARGEST)
    return Series(run, quantity, np.array([row.round for row in rows]), bounded)


def _one_shape(rows: list[RoundRow], name: str) -> bool:
    """Return whether every row has a number, or equally many numbers, per client of its cohort."""
    shapes = [row.info[name].shape for row in rows]
    fits = all(
        len(shape) in (1, 2) and shape[0] == len(row.cohort)
        for shape, row in zip(shapes, rows, strict=True)
    )
    return fits and len({shape[1:] for shape in shapes}) == 1


def order(matrix: Values) -> list[int]:
    """Sort clients by average-linkage clustering of the symmetrised off-diagonal entries of (n,
    n).
    """
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    n = len(matrix)
    if n < 3:
        return list(range(n))
    similarity = np.nan_to_num((matrix + matrix.T) / 2)
    distance = similarity[~np.eye(n, dtype=bool)].max() - similarity
    np.fill_diagonal(distance, 0.0)
    if not distance.any():
        return list(range(n))
    tree = linkage(squareform(distance, checks=False), "average", optimal_ordering=n <= 200)
    leaves: list[int] = leaves_list(tree).tolist()
    return leaves


def blocks(order: Sequence[int], groups: Sequence[int]) -> list[tuple[int, int]]:
    """Return (start, length) of the runs of an order that belong to one group."""
    lengths = [len(list(members)) for _, members in groupby(groups[i] for i in order)]
    return list(zip(np.cumsum([0, *lengths]).tolist(), lengths, strict=False))

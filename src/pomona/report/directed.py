"""APPLE's directed relationships as they were recorded, and an order that puts like clients together."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from pomona.report.numbers import Run, leader
from pomona.report.style import shorten


@dataclass(frozen=True)
class Relationships:
    """The directed relationships of a run: ``values[t, i, j]`` is p_ij after ``rounds[t]``.

    A client that sits a round out keeps its row; before its first round the row is NaN.
    """

    run: Run
    rounds: NDArray[np.int64]
    values: NDArray[np.float64]

    @property
    def n(self) -> int:
        """The number of clients."""
        return int(self.values.shape[1])

    @property
    def groups(self) -> list[int]:
        """The hidden true group of each client, empty where unknown."""
        groups = list(self.run.result.about.get("groups") or ())
        return groups if len(groups) == self.n else []

    @property
    def names(self) -> list[str]:
        """The clients' names, short enough for an axis."""
        return [shorten(self.run.client(i)) for i in range(self.n)]


def find(runs: list[Run]) -> Relationships | None:
    """The directed relationships of the best run that recorded some."""
    lead = leader([run for run in runs if any(m.ndim == 2 and m.size for _, m in run.result.matrices("dr"))])
    if lead is None:
        return None
    rows = [r for r in lead.result.rounds if "dr" in r.info and r.info["dr"].ndim == 2 and r.info["dr"].size]
    n = rows[0].info["dr"].shape[1]
    values = np.full((len(rows), n, n), np.nan)
    current = np.full((n, n), np.nan)
    for t, row in enumerate(rows):
        matrix = row.info["dr"]
        listeners = np.arange(n) if len(matrix) == n else np.asarray(row.cohort)
        if matrix.shape != (len(listeners), n):
            return None
        current[listeners] = matrix
        values[t] = current
    return Relationships(lead, np.array([r.round for r in rows]), values) if n > 1 else None


def order(matrix: NDArray[np.float64]) -> list[int]:
    """Clients in the leaf order of average-linkage clustering on the symmetrised off-diagonal entries of (n, n)."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    n = len(matrix)
    if n < 3:
        return list(range(n))
    near = np.nan_to_num((matrix + matrix.T) / 2)
    far = near[~np.eye(n, dtype=bool)].max() - near
    np.fill_diagonal(far, 0.0)
    return [int(i) for i in leaves_list(linkage(squareform(far, checks=False), "average", optimal_ordering=n <= 200))]


def blocks(order: Sequence[int], groups: Sequence[int]) -> list[tuple[int, int]]:
    """(start, length) of the stretches of an order that belong to one group."""
    lengths = [len(list(members)) for _, members in groupby(groups[i] for i in order)]
    return list(zip(np.cumsum([0, *lengths[:-1]]).tolist(), lengths, strict=True)) if lengths else []

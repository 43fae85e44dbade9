"""Conversion of shares to rows: two random draws for all partitions, both within one row of the
exact share.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.partition.partition import Rows

Labels = NDArray[np.int64]
Shares = NDArray[np.float64]


def deal(labels: NDArray[np.integer[Any]], shares: Shares, rng: np.random.Generator) -> list[Rows]:
    """Deal rows to clients by a table of shares.

    The rows of a class are shuffled and cut at ``floor(cumsum(shares[:, c]) * count + u)``, with
    one offset u ~ U[0, 1) per class. Every client is within one row of its exact share of every
    class; no row is dealt twice; all rows of a class are used if its shares sum to 1. The offset
    makes the expected number of rows exact; without it, rounding would favour the same clients in
    every class.

    Args:
        labels: (N,) class numbers in [0, n_classes).
        shares: (n, n_classes); ``shares[i, c]`` is the share of class c's rows for client i.
        rng: the stream for shuffling and rounding.

    Returns:
        One ascending array of positions in ``labels`` per client.

    Raises:
        ValueError: the table is not a valid table of shares.
    """
    if not (np.all(shares >= 0) and np.all(shares.sum(axis=0) < 1 + 1e-9)):
        raise ValueError("shares must be non-negative, and those of a class sum to at most 1")
    pieces: list[list[Rows]] = [[] for _ in shares]
    for c, column in enumerate(shares.T):
        rows = rng.permutation(np.flatnonzero(labels == c))
        # 0.91 * 100 is 91, not 91.00000000000001
        exact = np.round(np.cumsum(column) * len(rows), 6)
        cuts = np.minimum(np.floor(exact + rng.random()), len(rows)).astype(np.int64)
        starts = np.concatenate(([0], cuts[:-1]))
        for i in np.flatnonzero(cuts > starts):
            pieces[i].append(rows[starts[i] : cuts[i]])
    return [np.sort(np.concatenate(p)) if p else np.empty(0, dtype=np.int64) for p in pieces]


def sample(labels: NDArray[np.integer[Any]], size: int, rng: np.random.Generator) -> Rows:
    """Draw exactly ``size`` rows without replacement, stratified: each class within one row of its
    exact share.

    Systematic sampling: every (N / size)-th row of the shuffled rows in class order, from a random
    start, so that all rows have the same probability.

    Args:
        labels: (N,) class numbers.
        size: number of rows, at most N.
        rng: the stream for shuffling and the start.

    Returns:
        (size,) ascending positions in ``labels``.

    Raises:
        ValueError: ``size`` exceeds N.
    """
    count = len(labels)
    if not 0 <= size <= count:
        raise ValueError(f"cannot draw {size} of {count} rows")
    order = np.lexsort((rng.permutation(count), labels))
    start = rng.integers(max(count, 1))
    return np.sort(order[(np.arange(size) * count + start) // max(size, 1)]).astype(np.int64)

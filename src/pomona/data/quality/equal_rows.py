"""Rows that are equal: hashes of rows, and whether they repeat because values are coarse."""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.data.dataset import Dataset
from pomona.data.quality.cells import Rows, spread
from pomona.data.validation import blocks

COLUMNS_MASKED = 16  # columns that are left out in turn
MAX_ROWS = 20_000  # compared without a column
MAX_VALUES = 2**22  # values compared without a column
SLACK = 3.0  # columns that depend on each other repeat together more often than by chance
SURE = 1e-3  # largest probability of as many repetitions by chance


def inputs(dataset: Dataset) -> NDArray[np.generic]:
    """Return a data set's inputs as read: the cells of a table if they are still there."""
    return dataset.raw.x if dataset.raw else dataset.x


def hashed(rows: NDArray[Any]) -> Rows:
    """Return a hash of each row (N, ...): the same for equal values, in blocks of little memory."""
    hashes = np.empty(len(rows), np.int64)
    for start, block in blocks(rows):
        raw_bytes = _bytes(block)
        values = raw_bytes.view(f"V{raw_bytes.shape[1]}").ravel().tolist() if raw_bytes.size else []
        hashes[start : start + len(block)] = list(map(hash, values)) or 0
    return hashes


def _bytes(rows: NDArray[Any]) -> NDArray[np.uint8]:
    """Return rows (n, ...) as their bytes (n, B), the same for equal values: one zero, one NaN."""
    if rows.dtype.kind == "f":
        rows = np.where(np.isnan(rows), rows.dtype.type(np.nan), rows + rows.dtype.type(0))
    return np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)


@dataclass(frozen=True, eq=False)
class Repeats:
    """Which rows are equal.

    Attributes:
        inputs: (N,) a number for each distinct input.
        rows: (N,) a number for each distinct input with its target.
    """

    inputs: Rows
    rows: Rows

    @classmethod
    def of(cls, dataset: Dataset) -> "Repeats":
        """Compare the rows of a data set."""
        input_hashes = hashed(inputs(dataset))
        row_hashes = input_hashes ^ (hashed(np.asarray(dataset.y)) * 3)  # wraps around
        return cls(_numbered(input_hashes), _numbered(row_hashes))

    @property
    def any(self) -> bool:
        """Whether any input repeats."""
        return len(self.inputs) > int(self.inputs.max(initial=-1)) + 1


def _numbered(hashes: Rows) -> Rows:
    numbers: Rows = np.unique(hashes, return_inverse=True)[1].astype(np.int64)
    return numbers


def pairs(numbers: Rows) -> int:
    """Return the number of pairs of equal entries."""
    counts = np.unique(numbers, return_counts=True)[1]
    return int((counts * (counts - 1) // 2).sum())


def by_chance(x: NDArray[Any], numbers: Rows) -> bool:
    """Return whether rows of x (N, ...) repeat because its values are coarse.

    If so, many more pairs of rows differ in a single column: of those that are equal in all other
    columns, about as many are equal in this one too as of any two rows. Rows that were copied are
    equal in all columns or differ in many.

    Args:
        x: the inputs.
        numbers: (N,) as ``Repeats.inputs``.
    """
    from scipy.special import gammainc  # late, as all of SciPy

    width = prod(x.shape[1:])
    if len(x) < 2 or not width:
        return False
    rows = spread(np.arange(len(x)), max(2, min(MAX_ROWS, MAX_VALUES // max(1, width))))
    flat = np.asarray(x[rows]).reshape(len(rows), -1)
    varied = np.flatnonzero((flat != flat[:1]).any(axis=0))
    _, distinct = np.unique(numbers[rows], return_index=True)
    scale = (len(x) / len(rows)) ** 2
    expected = 0.0
    for k in spread(varied, COLUMNS_MASKED):
        masked = flat.copy()
        masked[:, k] = 0
        near_pairs = pairs(_numbered(hashed(masked))) - pairs(numbers[rows])
        share = _agreeing(flat[distinct, k])
        if near_pairs > 0 and share < 1:
            expected = max(expected, near_pairs * scale * share / (1 - share))
    count = pairs(numbers)
    return expected > 0 and float(gammainc(count, SLACK * expected)) > SURE


def _agreeing(values: NDArray[Any]) -> float:
    """Return the share of pairs of values (n,) that are equal."""
    n = len(values)
    return pairs(_numbered(hashed(values[:, None]))) / (n * (n - 1) / 2) if n > 1 else 0.0

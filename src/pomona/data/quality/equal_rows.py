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
    """Return a hash of each row (N, ...), the same for equal values: one zero, one NaN."""
    hashes = np.zeros(len(rows), np.int64)
    for start, block in blocks(rows):
        flat = np.ascontiguousarray(block).reshape(len(block), prod(block.shape[1:]))
        if flat.dtype.kind == "f":
            flat = np.where(np.isnan(flat), flat.dtype.type(np.nan), flat + flat.dtype.type(0))
        if flat.size:
            values = flat.view(f"V{flat.shape[1] * flat.itemsize}").ravel().tolist()
            hashes[start : start + len(block)] = list(map(hash, values))
    return hashes


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
    def from_dataset(cls, dataset: Dataset) -> "Repeats":
        """Compare the rows of a data set."""
        input_hashes = hashed(inputs(dataset))
        row_hashes = input_hashes ^ (hashed(np.asarray(dataset.y)) * 3)  # wraps around
        return cls(_numbered(input_hashes), _numbered(row_hashes))

    @property
    def any(self) -> bool:
        """Whether any input repeats."""
        return len(self.inputs) > int(self.inputs.max(initial=-1)) + 1


def _numbered(hashes: Rows) -> Rows:
    """Return a number for each distinct hash."""
    numbers: Rows = np.unique(hashes, return_inverse=True)[1].astype(np.int64)
    return numbers


def pairs(numbers: Rows) -> int:
    """Return the number of pairs of equal entries."""
    counts = np.unique(numbers, return_counts=True)[1]
    return int((counts * (counts - 1) // 2).sum())


def repeats_are_expected(x: NDArray[Any], numbers: Rows) -> bool:
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
    rows = spread(np.arange(len(x)), max(2, min(MAX_ROWS, MAX_VALUES // width)))
    flat = np.asarray(x[rows]).reshape(len(rows), width)
    distinct = np.unique(numbers[rows], return_index=True)[1]
    pair_count = max(1, len(distinct) * (len(distinct) - 1) // 2)
    expected = 0.0
    for k in spread(np.flatnonzero((flat != flat[:1]).any(axis=0)), COLUMNS_MASKED):
        masked = flat.copy()
        masked[:, k] = 0
        near_pairs = pairs(hashed(masked)) - pairs(numbers[rows])
        share = pairs(hashed(flat[distinct, k, None])) / pair_count
        if near_pairs > 0 and share < 1:
            expected = max(expected, near_pairs * share / (1 - share))
    expected *= (len(x) / len(rows)) ** 2
    return expected > 0 and float(gammainc(pairs(numbers), SLACK * expected)) > SURE

"""Features that give the label away: copies of it, codes of it, or the numbers it was made from."""

from collections.abc import Iterator
from math import log

import numpy as np
from numpy.typing import NDArray

from pomona.core.bounds import Targets
from pomona.data.dataset import Dataset
from pomona.data.quality.cells import Cells, capped, digits, spread
from pomona.data.validation import blocks

CHANCE = 1e-6  # largest probability, over all columns, that a column fits the labels by chance
SAMPLED = 500  # rows that rule out most columns
MIN_ROWS = 20  # rows
MIN_ROWS_OF_CLASS = 10  # rows of each class, for classes that are ranges of a column
MAX_CLASSES = 20
EXACT = 1e-9  # of a correlation, from 1
REMEDY = "if it is known only with the label, leave it out by data.drop_columns"
Values = NDArray[np.float64]


def notes(dataset: Dataset, cells: Cells) -> list[str]:
    """Warn about each column from which a target follows without an error.

    Of classes, flags and events: each value of the column has one label, or each label is a range
    of the column. Of numbers and times: a straight line.
    """
    if len(cells) < MIN_ROWS:
        return []
    lines: dict[int, str] = {}
    for name, labels, measured in _targets(dataset):
        matches = _on_a_line(cells, labels) if measured else _deciding(cells, labels)
        for k, explanation in matches:
            lines.setdefault(k, f"column {cells.columns[k].name} gives {name} away: {explanation}")
    return capped([(cells.columns[k].name, f"{line}; {REMEDY}") for k, line in lines.items()])


def _targets(dataset: Dataset) -> Iterator[tuple[str, Values, bool]]:
    """Iterate over targets (N,): name, values, and whether they are measured."""
    target_kind: Targets = dataset.targets
    if target_kind == "segmentation":
        return
    y = np.asarray(dataset.y, np.float64)
    if target_kind == "classes":
        yield "the label", y, False
    elif target_kind == "survival":
        yield "the time to the event", y[:, 0], True
        yield "the event", y[:, 1], False
    else:
        for k, column in enumerate(y.T):
            name = dataset.labels[k] if dataset.labels else f"target {k}"
            label = f"the label {name}" if y.shape[1] > 1 else "the label"
            yield label, column, target_kind != "multilabel"


def _deciding(cells: Cells, labels: Values) -> Iterator[tuple[int, str]]:
    """Iterate over the columns that decide the class (N,): index, and how."""
    shares = np.unique(labels, return_counts=True)[1] / len(labels)
    if len(shares) < 2:
        return
    sampled = spread(np.arange(len(labels)), SAMPLED)
    sample = np.asarray(cells.x[sampled], np.float64)
    ranges = _ranges(cells, labels, len(shares))
    for k, column in enumerate(cells.columns):
        if (
            _decides(sample[:, k], labels[sampled])
            and len(np.unique(sample[:, k])) <= len(sampled) / 4
        ):
            values = cells.column(k)
            counts = np.unique(values, return_counts=True)[1]
            chance = sum(log(float((shares**n).sum())) for n in counts if n > 1)
            if chance < log(CHANCE / len(cells.columns)) and _decides(values, labels):
                yield k, "each of its values has one label"
                continue
        if _only_gaps_decide(sample[:, k], labels[sampled]):
            gaps = np.isnan(cells.column(k))
            chance = sum(log(float((shares**n).sum())) for n in np.bincount(gaps) if n > 1)
            if chance < log(CHANCE / len(cells.columns)) and _decides(gaps * 1.0, labels):
                yield k, "whether it is empty has one label each"
                continue
        if column.kind != "category" and ranges[k]:
            yield k, f"each label is a range of it (the next from {digits(ranges[k][0])})"


def _decides(values: Values, labels: Values) -> bool:
    """Return whether equal values (n,) have equal labels, and not all values are equal."""
    number = np.unique(values, return_inverse=True)[1]
    order = np.argsort(number, kind="stable")
    number, labels = number[order], labels[order]
    equal = number[1:] == number[:-1]
    return bool(number[0] != number[-1] and (labels[1:] == labels[:-1])[equal].all())


def _only_gaps_decide(values: Values, labels: Values) -> bool:
    gaps = np.isnan(values)
    return bool(gaps.any()) and _decides(gaps * 1.0, labels)


def _ranges(cells: Cells, labels: Values, classes: int) -> list[tuple[float, ...]]:
    """Return for each column where the ranges of the second and further labels start, if each
    label's values are a range without another's; else nothing.
    """
    range_starts: list[tuple[float, ...]] = [()] * len(cells.columns)
    if classes > MAX_CLASSES or np.unique(labels, return_counts=True)[1].min() < MIN_ROWS_OF_CLASS:
        return range_starts
    low = np.full((classes, len(cells.columns)), np.inf)
    high, counts = -low, np.zeros(low.shape, np.int64)
    for c, label in enumerate(np.unique(labels)):
        for _, rows in blocks(np.flatnonzero(labels == label), max(1, 2**20 // low.shape[1])):
            x = np.asarray(cells.x[rows], np.float64)
            low[c] = np.fmin(low[c], np.fmin.reduce(x, axis=0))
            high[c] = np.fmax(high[c], np.fmax.reduce(x, axis=0))
            counts[c] += len(x) - np.isnan(x).sum(axis=0)
    for k in np.flatnonzero((counts >= MIN_ROWS_OF_CLASS).all(axis=0)):
        order = np.argsort(low[:, k])
        if (low[order[1:], k] > high[order[:-1], k]).all():
            range_starts[k] = tuple(low[order[1:], k].tolist())
    return range_starts


def _on_a_line(cells: Cells, target: Values) -> Iterator[tuple[int, str]]:
    """Iterate over the columns of which a measured target (N,) is a linear function: index, and
    how.
    """
    sampled = spread(np.arange(len(target)), SAMPLED)
    sample = np.asarray(cells.x[sampled], np.float64)
    for k, column in enumerate(cells.columns):
        if column.kind == "category" or not _linear(sample[:, k], target[sampled]):
            continue
        if _linear(cells.column(k), target):
            equal = np.array_equal(cells.column(k).astype(np.float32), target.astype(np.float32))
            yield k, "it is the same" if equal else "it is the same in another unit"


def _linear(values: Values, target: Values) -> bool:
    """Return whether the target (n,) is a linear function of the values, gaps left out."""
    counts = ~np.isnan(values)
    x, y = values[counts], target[counts]
    if len(x) < MIN_ROWS or len(np.unique(y[:100])) < 3:
        return False
    x, y = x - x.mean(), y - y.mean()
    norm = np.sqrt((x**2).sum() * (y**2).sum())
    return bool(norm > 0 and abs((x * y).sum()) / norm >= 1 - EXACT)

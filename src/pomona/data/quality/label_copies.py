"""Features that give the label away: copies of it, codes of it, or the numbers it was made from."""

from collections.abc import Iterator
from math import log

import numpy as np
from numpy.typing import NDArray

from pomona.core.bounds import Targets
from pomona.data.dataset import Dataset
from pomona.data.quality.cells import Cells, capped, spread

CHANCE = 1e-6  # largest probability, over all columns, that a column fits the labels by chance
SAMPLED = 500  # rows that rule out most columns
MIN_ROWS = 20  # rows
EXACT = 1e-9  # of a correlation, from 1
REMEDY = "if it is known only with the label, leave it out by data.drop_columns"
Values = NDArray[np.float64]


def notes(dataset: Dataset, cells: Cells) -> list[str]:
    """Warn about each column from which a target follows without an error.

    Of classes, flags and events: each value of the column has one label. Of numbers and times: a
    straight line. A label that is a threshold of a column does not count: it may be the task.
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
    sampled = spread(np.arange(len(labels)), SAMPLED)
    sample, sample_labels = np.asarray(cells.x[sampled], np.float64), labels[sampled]

    def surprising(values: Values) -> bool:
        counts = np.unique(values, return_counts=True)[1]
        chance = sum(log(float((shares**n).sum())) for n in counts if n > 1)
        return chance < log(CHANCE / len(cells.columns)) and _decides(values, labels)

    for k in range(len(cells.columns)):
        values, gaps = sample[:, k], np.isnan(sample[:, k])
        few_values = len(np.unique(values)) <= len(sampled) / 4
        if few_values and _decides(values, sample_labels) and surprising(cells.column(k)):
            yield k, "each of its values has one label"
            continue
        by_gaps = gaps.any() and _decides(gaps * 1.0, sample_labels)
        if by_gaps and surprising(np.isnan(cells.column(k)) * 1.0):
            yield k, "it is empty in all rows of some labels, and in no other row"


def _decides(values: Values, labels: Values) -> bool:
    """Return whether equal values (n,) have equal labels, and not all values are equal."""
    number = np.unique(values, return_inverse=True)[1]
    order = np.argsort(number, kind="stable")
    number, labels = number[order], labels[order]
    equal = number[1:] == number[:-1]
    return bool(number[0] != number[-1] and (labels[1:] == labels[:-1])[equal].all())


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

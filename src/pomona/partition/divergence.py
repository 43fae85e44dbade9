"""Label heterogeneity between clients, and warnings about data and partition before training."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pomona.core.bounds import Split
from pomona.core.errors import listed
from pomona.data import cell_values
from pomona.data.dataset import Dataset
from pomona.data.quality import repeated_rows
from pomona.data.validation import blocks
from pomona.partition.partition import Partition, client_names
from pomona.partition.recipe import class_numbers

RARE = 5  # rows of a class that are too few for every split of several clients


def noted(dataset: Dataset, partition: Partition) -> Dataset:
    """Return the data with notes on equal rows of its clients and splits, before anything is
    learned from it.
    """
    rows = [(c.train, c.validation, c.test) for c in partition.clients]
    lines = repeated_rows.notes(dataset, rows, client_names(partition, dataset))
    return replace(dataset, notes=(*dataset.notes, *lines)) if lines else dataset


def remarks(dataset: Dataset, partition: Partition) -> list[str]:
    """Return warnings about problems that metrics would hide, one line each.

    Covers skipped files; rows dealt to others than their owners; a single class, classes without
    rows or with few, class names that differ only in spelling, as many classes as a measurement has
    values; masks without a class; constant flags. Those on the split are in ``split_notes``.
    """
    owners = cell_values.alike_notes("clients", dataset.owners.names) if dataset.owners else []
    notes = [
        *_parted(dataset, partition),
        *_classes(dataset),
        *_unpainted(dataset),
        *_flags(dataset),
        *owners,
    ]
    return [*dataset.notes, *notes]


def _parted(dataset: Dataset, partition: Partition) -> list[str]:
    """Warn if rows that have owners are dealt to other clients."""
    recipe = partition.recipe.get("name", "file")
    if dataset.owners is None or len(partition.clients) == 1 or recipe in {"natural", "file"}:
        return []
    return [
        f"rows have owners ({listed(dataset.owners.names)}), and partition {recipe} deals them to "
        "other clients; partition.name = natural keeps them together"
    ]


def _classes(dataset: Dataset) -> list[str]:
    classes = dataset.classes
    if dataset.targets != "classes":
        return []
    counts = np.bincount(dataset.y.astype(np.int64), minlength=len(classes))
    present = [name for name, n in zip(classes, counts, strict=True) if n]
    empty = [name for name, n in zip(classes, counts, strict=True) if not n]
    rare = [f"{name} ({n})" for name, n in zip(classes, counts, strict=True) if 0 < n < RARE]
    lines = []
    if len(present) == 1:
        lines.append(
            f"all rows are of class {present[0]}: there is nothing to learn, and accuracy is 100 %"
        )
    if empty:
        lines.append(f"no row is of class {listed(empty)}; numbers of classes start at 0")
    if len(present) > 20 and 2 * len(present) > len(dataset):
        lines.append(
            f"{len(dataset)} rows have {len(present)} classes; for measurements set data.targets = "
            "regression"
        )
    elif rare:
        lines.append(
            f"classes with fewer than {RARE} rows: {listed(rare)}; some clients or parts will not "
            "have them. If they are typing errors, correct the rows"
        )
    return [*lines, *cell_values.alike_notes("classes", present)]


def _unpainted(dataset: Dataset) -> list[str]:
    """Warn if no mask has a class, as when JPEG compression has changed its values."""
    if dataset.targets != "segmentation":
        return []
    counts = np.zeros(len(dataset.classes), np.int64)
    for _, block in blocks(dataset.y):
        counts += np.bincount(block.reshape(-1), minlength=len(counts))
    absent = [name for name, n in zip(dataset.classes, counts, strict=True) if not n]
    if absent:
        return [
            (
                f"no pixel of any mask is of class {listed(absent)}; do masks hold 0, 1, 2, ..., "
                "and were not saved as JPEG?"
            )
        ]
    return []


def _flags(dataset: Dataset) -> list[str]:
    """Warn if one of several flags is constant."""
    if dataset.targets != "multilabel":
        return []
    names = dataset.labels or tuple(f"label {k}" for k in range(dataset.n_outputs))
    constant = [
        name
        for name, column in zip(names, dataset.y.T, strict=True)
        if column.min() == column.max()
    ]
    if constant:
        return [
            f"flags that are the same in all rows: {listed(constant)}; there is nothing to learn "
            "for them"
        ]
    return []


Counts = NDArray[np.int64]
Measure = NDArray[np.float64]


def label_counts(partition: Partition, dataset: Dataset, split: Split = "train") -> Counts:
    """Return (n, C) each client's rows of each class; C is 1 if the targets are not classes."""
    labels = class_numbers(dataset)
    width = len(dataset.classes) if dataset.targets == "classes" else 1
    return np.stack(
        [np.bincount(labels[getattr(c, split)], minlength=width) for c in partition.clients]
    )


def distributions(counts: Counts) -> Measure:
    """Return (n, C) each client's label distribution; NaN for a client without rows."""
    sizes = counts.sum(axis=1, keepdims=True)
    rates: Measure = counts / np.where(sizes > 0, sizes, np.nan)
    return rates


def emd(counts: Counts) -> Measure:
    """Return (n,) each client's distance to the federation, sum_y |p_i(y) - p(y)|, in [0, 2).

    The earth mover's distance of Zhao et al. 2018, with unit cost; p is the distribution of all
    clients' rows together.
    """
    distances: Measure = np.abs(
        distributions(counts) - distributions(counts.sum(axis=0, keepdims=True))
    ).sum(axis=1)
    return distances


def effective_classes(counts: Counts) -> Measure:
    """Return (n,) exp of the label entropy, the effective number of classes; NaN for a client
    without rows.
    """
    from scipy.special import entr  # late, as all of SciPy

    return np.asarray(np.exp(entr(distributions(counts)).sum(axis=1)), dtype=np.float64)

"""Measures of label heterogeneity between clients."""

import numpy as np
from numpy.typing import NDArray

from pomona.core.samples import Split
from pomona.data.dataset import Dataset
from pomona.partition.partition import Partition
from pomona.partition.recipe import class_numbers

Counts = NDArray[np.int64]
Measure = NDArray[np.float64]


def label_counts(partition: Partition, dataset: Dataset, part: Split = "train") -> Counts:
    """Return (n, C) each client's rows of each class; C is 1 if the targets are not classes."""
    labels, width = class_numbers(dataset), len(dataset.classes) if dataset.targets == "classes" else 1
    return np.stack([np.bincount(labels[getattr(c, part)], minlength=width) for c in partition.clients])


def distributions(counts: Counts) -> Measure:
    """Return (n, C) each client's label distribution; NaN for a client without rows."""
    sizes = counts.sum(axis=1, keepdims=True)
    rates: Measure = counts / np.where(sizes > 0, sizes, np.nan)
    return rates


def emd(counts: Counts) -> Measure:
    """Return (n,) each client's distance to the federation, sum_y |p_i(y) - p(y)|, in [0, 2).

    The earth mover's distance of Zhao et al. 2018, with unit cost; p is the distribution of all clients' rows together.
    """
    distances: Measure = np.abs(distributions(counts) - distributions(counts.sum(axis=0, keepdims=True))).sum(axis=1)
    return distances


def effective_classes(counts: Counts) -> Measure:
    """Return (n,) exp of the label entropy, the effective number of classes; NaN for a client without rows."""
    return np.exp(_entropy(distributions(counts)))


def _entropy(rates: Measure) -> Measure:
    return np.asarray(-(rates * np.log(np.where(rates > 0, rates, 1))).sum(axis=1), dtype=np.float64)

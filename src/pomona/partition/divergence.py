"""Measures of heterogeneity between clients, from their label counts."""

import numpy as np
from numpy.typing import NDArray

from pomona.core.splits import Split
from pomona.data.dataset import Dataset
from pomona.partition.partition import Partition
from pomona.partition.recipe import class_numbers

Counts = NDArray[np.int64]
Measure = NDArray[np.float64]


def label_counts(partition: Partition, dataset: Dataset, part: Split = "train") -> Counts:
    """(n, C) rows of each class that each client holds; C is 1 where the targets are not classes."""
    labels, width = class_numbers(dataset), len(dataset.classes) if dataset.targets == "classes" else 1
    return np.stack([np.bincount(labels[getattr(c, part)], minlength=width) for c in partition.clients])


def distributions(counts: Counts) -> Measure:
    """(n, C) label distribution of each client; NaN for a client without rows."""
    sizes = counts.sum(axis=1, keepdims=True)
    rates: Measure = counts / np.where(sizes > 0, sizes, np.nan)
    return rates


def emd(counts: Counts) -> Measure:
    """(n,) distance of each client to the federation, sum_y |p_i(y) - p(y)|, in [0, 2).

    The earth mover's distance of Zhao et al. 2018, with unit cost; p is the distribution of all clients' rows together.
    """
    distances: Measure = np.abs(distributions(counts) - distributions(counts.sum(axis=0, keepdims=True))).sum(axis=1)
    return distances


def effective_classes(counts: Counts) -> Measure:
    """(n,) exp of the label entropy: how many equally frequent classes are as varied; NaN without rows."""
    return np.exp(_entropy(distributions(counts)))


def _entropy(rates: Measure) -> Measure:
    return np.asarray(-(rates * np.log(np.where(rates > 0, rates, 1))).sum(axis=1), dtype=np.float64)

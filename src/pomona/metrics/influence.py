"""Contributions of test samples to the difference of two models in a metric, as pseudo-values of
one client's samples.

The mean of a stratum's pseudo-values is the client's difference, and their variance divided by
their number is its variance:

- for a mean over samples they are the samples' differences, which leads to the paired t-test;
- for any other function of the samples they are those of the jackknife within strata (Tukey 1958;
  Arvesen, "Jackknifing U-statistics", Annals of Mathematical Statistics 1969). For an AUROC, with
  events and non-events as strata, they are the structural components of DeLong, DeLong and
  Clarke-Pearson, Biometrics 1988.

A unit is a sample, or all samples of a group, such as the rows of one patient: units must be
independent, samples need not be.

For several seeds on the same samples, pseudo-values are averaged: both types are linear in the
difference.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pomona.metrics.nan_safe import Array, spans

FEW = 6
"""Minimum number of units for a variance: five that agree do so by chance in 2 of 32 cases (a sign
test).
"""
EQUAL = 1e-12
"""Difference, absolute or relative, up to which values are equal but for rounding."""
# maximum jackknife deletions per stratum; larger strata delete several units at a time
_MAX_DELETIONS = 500

Groups = NDArray[np.int64]


def unit_count(n: int, groups: Groups | None) -> int:
    """Return the number of units of n samples, or of their groups (n,), numbered from 0."""
    return n if groups is None else int(groups.max(initial=-1)) + 1


@dataclass(frozen=True)
class Evidence:
    """A client's difference, and its test samples' contributions to the variance.

    Attributes:
        value: over all samples; positive is better.
        strata: pseudo-values (m,) of each stratum of the client, m at least ``FEW``; none if there
            are too few samples.
        rows: test samples.
        units: independent samples, or groups of samples.
        events: units with the rarer answer, or with an observed event; None if not applicable.
        step: the only possible size of a unit's difference, for right or wrong answers; 0 for
            arbitrary differences.
        bounded: whether samples too few for strata are still informative: an R2 of two rows may be
            any negative number, and has no expected value.
        seeds: the difference by seed, of which ``value`` is the mean; empty for one seed.
        margins: how far an interval at 95 % reaches at least below and above ``value``, for an
            AUROC, whose estimates are skewed near 1; None for other metrics.
    """

    value: float
    strata: tuple[Array, ...]
    rows: int
    units: int
    events: int | None = None
    step: float = 0.0
    bounded: bool = True
    seeds: tuple[float, ...] = ()
    margins: tuple[float, float] | None = None


def over_seeds(evidence: Sequence[Evidence]) -> Evidence:
    """Average a client's differences over seeds on the same samples; ``evidence`` has one per seed,
    at least one.
    """
    if len(evidence) == 1:
        return evidence[0]
    seeds, complete = tuple(e.value for e in evidence), all(e.strata for e in evidence)
    strata = zip(*(e.strata for e in evidence), strict=True) if complete else ()
    means = tuple(np.mean(stratum, axis=0) for stratum in strata)
    every = [e.margins for e in evidence if e.margins]
    low, high = np.mean(every, axis=0).tolist() if every else (0.0, 0.0)
    margins = (low, high) if len(every) == len(evidence) else None
    value = float(np.mean(seeds))
    return replace(evidence[0], value=value, strata=means, seeds=seeds, margins=margins)


def of_mean(
    a: Array, b: Array, events: int | None = None, groups: Groups | None = None, step: float = 0.0
) -> Evidence:
    """Return the difference of two means over the same samples.

    Args:
        a: (n,) each sample's contribution, n at least 1; more is better.
        b: (n,) the same for the other model.
        events: see ``Evidence``.
        groups: (n,) each sample's group; None if each is its own.
        step: see ``Evidence``.
    """
    differences = a - b
    differences[np.abs(differences) <= EQUAL * np.maximum(np.abs(a), np.abs(b))] = 0.0
    value, n = float(differences.mean()), len(differences)
    if groups is not None:
        # A ratio of sums over groups, linearised (Cochran, Sampling Techniques, 1977, section 6.4).
        _, index, sizes = np.unique(groups, return_inverse=True, return_counts=True)
        differences = value + len(sizes) / n * (np.bincount(index, differences) - value * sizes)
    return Evidence(
        value, (differences,) if len(differences) >= FEW else (), n, len(differences), events, step
    )


def of_function(
    difference: Callable[[Array], Array],
    strata: NDArray[np.int64],
    events: int | None = None,
    groups: Groups | None = None,
    *,
    bounded: bool = True,
) -> Evidence | None:
    """Return the difference of a function of the samples; None if they do not define it.

    Args:
        difference: sample weights (R, n) -> (R,), NaN where undefined; more is better.
        strata: (n,) the stratum of each sample, within which the jackknife deletes.
        events: number of informative samples; fewer than ``FEW`` give no variance.
        groups: see ``of_mean``. A group belongs to the highest stratum of its samples.
        bounded: see ``Evidence``.
    """
    n = len(strata)
    value = float(difference(np.ones((1, n)))[0])
    if np.isnan(value):
        return None
    units, unit_strata = _units(strata, groups)
    unknown = Evidence(value, (), n, len(unit_strata), events, bounded=bounded)
    if len(unit_strata) < FEW or (events is not None and events < FEW):
        return unknown
    unit_strata = _merged(unit_strata)
    blocks = _blocks(unit_strata)[units]
    values = _leave_out(difference, blocks)
    if np.isnan(values).any():
        return unknown
    block_strata = np.empty(len(values), np.int64)
    block_strata[blocks] = unit_strata[units]
    by_stratum = [values[block_strata == stratum] for stratum in np.unique(unit_strata)]
    pseudo = tuple(value + (len(deleted) - 1) * (value - deleted) for deleted in by_stratum)
    return Evidence(value, pseudo, n, len(unit_strata), events)


def _units(
    strata: NDArray[np.int64], groups: Groups | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the unit of each sample (n,), and the stratum of each unit."""
    if groups is None:
        return np.arange(len(strata)), strata
    names, units = np.unique(groups, return_inverse=True)
    unit_strata = np.full(len(names), strata.min(), np.int64)
    np.maximum.at(unit_strata, units, strata)
    return units, unit_strata


def _merged(unit_strata: NDArray[np.int64]) -> NDArray[np.int64]:
    """Merge strata of fewer than ``FEW`` units with each other, and with the smallest of the others
    if needed.
    """
    names, index, sizes = np.unique(unit_strata, return_inverse=True, return_counts=True)
    order = np.argsort(sizes, kind="stable")
    small = int((sizes < FEW).sum())
    if small and sizes[order[:small]].sum() < FEW:
        small += 1
    merged = np.empty(len(names), np.int64)
    merged[order] = np.maximum(np.arange(len(names)), small - 1)
    return merged[index]


def _blocks(unit_strata: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the part (0, 1, ...) with which each unit is deleted, at most ``_MAX_DELETIONS`` per
    stratum.
    """
    blocks, start = np.empty(len(unit_strata), np.int64), 0
    for stratum in np.unique(unit_strata):
        units = np.flatnonzero(unit_strata == stratum)
        blocks[units] = start + np.arange(len(units)) % _MAX_DELETIONS
        start += min(len(units), _MAX_DELETIONS)
    return blocks


def _leave_out(difference: Callable[[Array], Array], blocks: NDArray[np.int64]) -> Array:
    """Return the difference without each of the parts."""
    return np.concatenate(
        [
            difference((blocks != np.array(span)[:, np.newaxis]).astype(float))
            for span in spans(int(blocks.max()) + 1, len(blocks))
        ]
    )

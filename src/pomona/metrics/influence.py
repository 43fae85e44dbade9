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
SAME = 1e-12
"""Difference, absolute or relative, up to which values are equal but for rounding."""
_MOST = 500  # maximum jackknife deletions per stratum; larger strata delete several units at a time

Groups = NDArray[np.int64]


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
    """

    value: float
    strata: tuple[Array, ...]
    rows: int
    units: int
    events: int | None = None
    step: float = 0.0
    bounded: bool = True
    seeds: tuple[float, ...] = ()


def over_seeds(each: Sequence[Evidence]) -> Evidence:
    """Average a client's differences over seeds on the same samples; ``each`` has one per seed, at
    least one.
    """
    if len(each) == 1:
        return each[0]
    seeds, known = tuple(one.value for one in each), all(one.strata for one in each)
    parts = zip(*(one.strata for one in each), strict=True) if known else ()
    means = tuple(np.mean(part, axis=0) for part in parts)
    return replace(each[0], value=float(np.mean(seeds)), strata=means, seeds=seeds)


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
    each = a - b
    each[np.abs(each) <= SAME * np.maximum(np.abs(a), np.abs(b))] = 0.0
    value, n = float(each.mean()), len(each)
    if groups is not None:
        # A ratio of sums over groups, linearised (Cochran, Sampling Techniques, 1977, section 6.4).
        _, of, sizes = np.unique(groups, return_inverse=True, return_counts=True)
        each = value + len(sizes) / n * (np.bincount(of, each) - value * sizes)
    return Evidence(value, (each,) if len(each) >= FEW else (), n, len(each), events, step)


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
    units, kinds = _units(strata, groups)
    unknown = Evidence(value, (), n, len(kinds), events, bounded=bounded)
    if len(kinds) < FEW or (events is not None and events < FEW):
        return unknown
    kinds = _merged(kinds)
    cut = _dealt(kinds)[units]
    left = _without(difference, cut)
    if np.isnan(left).any():
        return unknown
    kind_of = np.empty(len(left), np.int64)
    kind_of[cut] = kinds[units]
    parts = [left[kind_of == kind] for kind in np.unique(kinds)]
    pseudo = tuple(value + (len(part) - 1) * (value - part) for part in parts)
    return Evidence(value, pseudo, n, len(kinds), events)


def _units(
    strata: NDArray[np.int64], groups: Groups | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the unit of each sample (n,), and the stratum of each unit."""
    if groups is None:
        return np.arange(len(strata)), strata
    names, units = np.unique(groups, return_inverse=True)
    kinds = np.full(len(names), strata.min(), np.int64)
    np.maximum.at(kinds, units, strata)
    return units, kinds


def _merged(kinds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Merge strata of fewer than ``FEW`` units with each other, and with the smallest of the others
    if needed.
    """
    names, of, sizes = np.unique(kinds, return_inverse=True, return_counts=True)
    order = np.argsort(sizes, kind="stable")
    small = int((sizes < FEW).sum())
    if small and sizes[order[:small]].sum() < FEW:
        small += 1
    place = np.empty(len(names), np.int64)
    place[order] = np.maximum(np.arange(len(names)), small - 1)
    return place[of]


def _dealt(kinds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the part (0, 1, ...) with which each unit is deleted, at most ``_MOST`` per
    stratum.
    """
    parts, start = np.empty(len(kinds), np.int64), 0
    for kind in np.unique(kinds):
        own = np.flatnonzero(kinds == kind)
        parts[own] = start + np.arange(len(own)) % _MOST
        start += min(len(own), _MOST)
    return parts


def _without(difference: Callable[[Array], Array], parts: NDArray[np.int64]) -> Array:
    """Return the difference without each of the parts."""
    return np.concatenate(
        [
            difference((parts != np.array(span)[:, np.newaxis]).astype(float))
            for span in spans(int(parts.max()) + 1, len(parts))
        ]
    )

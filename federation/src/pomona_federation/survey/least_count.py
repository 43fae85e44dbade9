"""The disclosure rule for a silo's data: every cell contains no row, or at least ``least`` rows.

A column is made safe as a whole, before anything of it leaves, and only then disclosed:

- numbers are sorted and cut into groups of at least ``least`` rows, equal ones together; every row of a group then has
  the group's middle value, to four digits. The smallest and the largest value are never disclosed.
- categories in fewer rows join those that are missing; if that makes too few, they join the most frequent category.

Both are idempotent: data that are already safe stay as they are. So the safe column itself is data that would have got
the same answer, and in it no cell, and no sum of cells, is between 1 and least - 1. A reader of the answer can
therefore never conclude that there is such a cell, whatever is computed from it; that is the whole proof, and
``federation/tests/survey/test_least_count.py`` repeats it by trying all small tables.
"""

from collections.abc import Mapping
from math import ceil

import numpy as np
from numpy.typing import NDArray

from pomona.core.settings import LARGEST
from pomona_federation.survey.replies import MOST_CELLS, Names, Numbers, rounded, tellable


def group_size(rows: int, least: int, cells: int) -> int:
    """Smallest group of numbers, in rows: at least the least count, and large enough for at most ``cells`` groups."""
    return max(least, ceil(rows / cells))


def safe_numbers(x: NDArray[np.floating], least: int, cells: int) -> Numbers:
    """A column of numbers (n,), NaN for missing values, in its safe form.

    A few missing values count as rows in the middle; a few known ones, and values too large to compute with, as
    missing.

    Args:
        x: the column; n is at least ``least``.
        least: the least count.
        cells: most groups.
    """
    size, known = group_size(len(x), least, cells), x[np.abs(x) <= LARGEST]
    values, counts = _rounded(known)
    missing = len(x) - len(known)
    if len(known) < size:
        return Numbers(rest=len(x))
    past = np.cumsum(counts)
    ends: list[int] = []  # number of rows up to the end of each group
    for end in past.tolist():
        if end - (ends[-1] if ends else 0) >= size:
            ends.append(end)
    ends[-1] = len(known)
    starts = [0, *ends[:-1]]
    middles = np.searchsorted(past, [(a + b - 1) // 2 for a, b in zip(starts, ends, strict=True)], side="right")
    told = [b - a for a, b in zip(starts, ends, strict=True)]
    if 0 < missing < least:
        told[int(np.searchsorted(ends, (len(known) - 1) // 2, side="right"))] += missing
        missing = 0
    return Numbers(values=tuple(values[middles].tolist()), counts=tuple(told), rest=missing)


def _rounded(known: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The distinct values to four digits, ascending, and their counts."""
    raw, often = np.unique(known.astype(np.float64), return_counts=True)
    short = np.array([rounded(value) for value in raw.tolist()], np.float64)
    values, where = np.unique(short, return_inverse=True)
    return values, np.bincount(where, often, len(values)).astype(np.int64)


def safe_names(counts: Mapping[str, int], missing: int, least: int) -> Names:
    """A column of categories in its safe form.

    Args:
        counts: rows of each category.
        missing: rows without one; with those of ``counts`` at least ``least``.
        least: the least count.
    """
    told = _frequent(counts, least)
    rest = missing + sum(counts.values()) - sum(told.values())
    return _names(_joined(told, rest), 0) if told and 0 < rest < least else _names(told, rest)


def safe_classes(counts: Mapping[str, int], least: int) -> Names:
    """Labels in their safe form; every row has one, so rows of rare classes join the most frequent class."""
    told = _frequent(counts, least) or {_largest(counts): 0} if any(map(tellable, counts)) else {}
    if not told:
        return Names(rest=sum(counts.values()))
    return _names(_joined(told, sum(counts.values()) - sum(told.values())), 0)


def safe_share(holding: int, rows: int, least: int) -> int:
    """The number of rows that contain something, in its safe form: neither these nor the others are few."""
    if holding < least:
        return 0
    return rows if rows - holding < least else holding


def _frequent(counts: Mapping[str, int], least: int) -> dict[str, int]:
    """The categories in at least ``least`` rows, at most as many as an answer holds, the most frequent first."""
    enough = [(name, n) for name, n in counts.items() if n >= least and tellable(name)]
    return dict(sorted(enough, key=lambda item: (-item[1], item[0]))[:MOST_CELLS])


def _largest(counts: Mapping[str, int]) -> str:
    return min((name for name in counts if tellable(name)), key=lambda name: (-counts[name], name))


def _joined(told: dict[str, int], few: int) -> dict[str, int]:
    return {**told, (most := _largest(told)): told[most] + few}


def _names(told: Mapping[str, int], rest: int) -> Names:
    ordered = sorted(told)
    return Names(names=tuple(ordered), counts=tuple(told[name] for name in ordered), rest=rest)

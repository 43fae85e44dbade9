"""The protection of a silo's data in a survey: a least count of rows a cell and, where agreed,
noise.

The least count: every cell contains no row, or at least ``least`` rows. A column is made safe as a
whole, before anything of it leaves, and only then disclosed:

- numbers are sorted and cut into groups of at least ``least`` rows, equal ones together; every row
  of a group then has the group's middle value, to four digits. The smallest and the largest value
  are never disclosed.
- categories in fewer rows join those that are missing; if that makes too few, they join the most
  frequent category.

Both are idempotent: data that are already safe stay as they are. So the safe column itself is data
that would have got the same answer, and in it no cell, and no sum of cells, is between 1 and least
- 1. A reader of the answer can therefore never conclude that there is such a cell, whatever is
computed from it; that is the whole proof, and ``federation/tests/survey/test_least_count.py``
repeats it by trying all small tables.

Noise: differentially private counts of agreed cells, in place of the rows themselves. The cells of
every column are agreed before anyone looks at data, so they reveal nothing: bins of numbers, names
of categories and of classes. For each agreed column, a silo counts its rows in each cell and adds
noise; everything it discloses is computed from these counts and from its number of rows, which
every study discloses.

Two sets of training rows are neighbours if one row differs; the choice of test rows is taken as
given, as in private training. The row leaves one cell of a column and enters another, so the counts
of a column change by 2 in all, and those of K columns by 2 K. Two-sided geometric noise on each
count (Ghosh, Roughgarden and Sundararajan, SIAM Journal on Computing 2012),

    P(Z = z) = (1 - a) / (1 + a) a^|z|,   a = exp(-epsilon / (2 K)),

makes the survey epsilon-differentially private, with delta 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp

import numpy as np
from numpy.typing import NDArray

from pomona.core.bounds import LARGEST
from pomona.data.dataset import Dataset
from pomona_federation.survey.raw_data import RawData
from pomona_federation.survey.replies import (
    MOST_CELLS,
    ColumnsReply,
    Names,
    Numbers,
    disclosable,
    rounded,
)
from pomona_federation.survey.settings import Noise


def group_size(rows: int, least: int, cells: int) -> int:
    """Smallest group of numbers, in rows: at least the least count, and large enough for at most
    ``cells`` groups.
    """
    return max(least, ceil(rows / cells))


def safe_numbers(x: NDArray[np.floating], least: int, cells: int) -> Numbers:
    """A column of numbers (n,), NaN for missing values, in its safe form.

    A few missing values count as rows in the middle; a few known ones, and values too large to
    compute with, as missing.

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
    middles = np.searchsorted(
        past, [(a + b - 1) // 2 for a, b in zip(starts, ends, strict=True)], side="right"
    )
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
    """Labels in their safe form; every row has one, so rows of rare classes join the most frequent
    class.
    """
    told = (
        _frequent(counts, least) or {_largest(counts): 0} if any(map(disclosable, counts)) else {}
    )
    if not told:
        return Names(rest=sum(counts.values()))
    return _names(_joined(told, sum(counts.values()) - sum(told.values())), 0)


def safe_share(holding: int, rows: int, least: int) -> int:
    """The number of rows that contain something, in its safe form: neither these nor the others are
    few.
    """
    if holding < least:
        return 0
    return rows if rows - holding < least else holding


def _frequent(counts: Mapping[str, int], least: int) -> dict[str, int]:
    """The categories in at least ``least`` rows, at most as many as an answer holds, the most
    frequent first.
    """
    enough = [(name, n) for name, n in counts.items() if n >= least and disclosable(name)]
    return dict(sorted(enough, key=lambda item: (-item[1], item[0]))[:MOST_CELLS])


def _largest(counts: Mapping[str, int]) -> str:
    return min(
        (name for name in counts if disclosable(name)), key=lambda name: (-counts[name], name)
    )


def _joined(told: dict[str, int], few: int) -> dict[str, int]:
    return {**told, (most := _largest(told)): told[most] + few}


def _names(told: Mapping[str, int], rest: int) -> Names:
    ordered = sorted(told)
    return Names(names=tuple(ordered), counts=tuple(told[name] for name in ordered), rest=rest)


UNNAMED = ""  # the class of labels that are not agreed; no disclosable class has this name


def geometric(size: int, a: float, generator: np.random.Generator) -> NDArray[np.int64]:
    """Two-sided geometric noise (size,): the difference of two geometric numbers of parameter 1 -
    a, 0 < a < 1.
    """
    first, second = generator.geometric(1 - a, (2, size))
    noise: NDArray[np.int64] = first - second
    return noise


def apportioned(noisy: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """Noisy counts (n,) as non-negative integers that sum to ``rows``, in proportion, by largest
    remainders.

    The last cell gets all rows if no count is above 0.
    """
    above = np.maximum(noisy, 0)
    if not (total := int(above.sum())):
        above, total = np.eye(1, len(noisy), len(noisy) - 1, dtype=np.int64)[0], 1
    shares = above * rows
    whole = shares // total
    most_left = np.argsort(-(shares - whole * total), kind="stable")
    whole[most_left[: rows - int(whole.sum())]] += 1
    return whole


@dataclass(frozen=True)
class NoisyData:
    """A silo's training rows as far as noisy counts describe them, with the interface of
    ``RawData``.

    Attributes:
        raw: the rows themselves.
        noise: the agreed cells, and epsilon.
        generator: of the noise; from a secret, and used once.
    """

    raw: RawData
    noise: Noise
    generator: np.random.Generator

    @property
    def dataset(self) -> Dataset:
        """The data set; of its values only the targets' kind and names may be disclosed."""
        return self.raw.dataset

    @property
    def rows(self) -> NDArray[np.int64]:
        """Numbers (n,) of the training rows."""
        return self.raw.rows

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A column (n,) in which each value is the middle of its bin, NaN for missing ones."""
        return self._binned(self.raw.numbers(name), name)

    def categories(self, name: str) -> tuple[dict[str, int], int]:
        """Rows of each agreed category of a column, and rows of none of them."""
        return self._named(*self.raw.categories(name), self.noise.categories[name])

    def classes(self) -> dict[str, int]:
        """Rows of each agreed class, and of others; all count as others if no classes were
        agreed.
        """
        if not self.noise.classes:
            return {UNNAMED: len(self.rows)}
        told, others = self._named(self.raw.classes(), 0, self.noise.classes)
        return {**told, UNNAMED: others}

    def targets(self) -> dict[str, NDArray[np.float64]]:
        """Other targets (n,) by name; all NaN for a target without agreed bins."""
        return {
            name: self._binned(x, name) if name in self.noise.edges else np.full(len(x), np.nan)
            for name, x in self.raw.targets().items()
        }

    def words(self) -> dict[str, int]:
        """Empty: a list of words cannot be agreed without disclosing some."""
        return {}

    def _binned(self, x: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        edges, middles = self.noise.edges[name], self.noise.middles(name)
        known = x[np.abs(x) <= LARGEST]
        # Bins include their lower edge; values outside all bins count in the first or the last.
        cells = np.clip(np.searchsorted(edges, known, side="right") - 1, 0, len(middles) - 1)
        counts = np.append(np.bincount(cells, minlength=len(middles)), len(x) - len(known))
        return np.repeat([*middles, np.nan], self._noisy(counts))

    def _named(
        self, counts: dict[str, int], missing: int, names: Sequence[str]
    ) -> tuple[dict[str, int], int]:
        exact = [counts.get(name, 0) for name in names]
        noisy = self._noisy(np.array([*exact, missing + sum(counts.values()) - sum(exact)]))
        return {name: int(n) for name, n in zip(names, noisy, strict=False) if n}, int(noisy[-1])

    def _noisy(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        a = exp(-self.noise.epsilon / (2 * self.noise.columns))
        return apportioned(counts + geometric(len(counts), a, self.generator), int(counts.sum()))


def agreed_columns(found: ColumnsReply, noise: Noise) -> ColumnsReply:
    """The silo's columns, reduced to those with agreed cells; bins are useless for its categories.

    Bins under a target's name are the target's: a column with the same name would be disclosed by
    the same part of epsilon.
    """
    forms = [
        form.model_copy(update={"kind": "category"}) if form.name in noise.categories else form
        for form in found.columns
        if form.name in noise.categories
        or (form.name in noise.edges and form.kind != "category" and form.name not in found.labels)
    ]
    return found.model_copy(update={"columns": tuple(forms)})

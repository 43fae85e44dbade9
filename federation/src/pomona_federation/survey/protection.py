"""The protection of a silo's data in a survey: a least count of rows a cell and, where agreed,
noise.

The least count: every cell contains no row, or at least ``least`` rows. A column is made safe as a
whole, before anything of it leaves, and only then disclosed:

- numbers are sorted and cut into groups of at least ``least`` rows, equal ones together; every row
  of a group then has the group's middle value, to four digits: the smallest or largest value of all
  only where half a group has it.
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
from pomona_federation.survey.settings import (
    MAX_CELLS,
    ColumnsReply,
    Names,
    Noise,
    Numbers,
    disclosable,
    rounded,
)


def group_size(rows: int, min_count: int, cells: int) -> int:
    """Smallest group of numbers, in rows: at least the least count, and large enough for at most
    ``cells`` groups.
    """
    return max(min_count, ceil(rows / cells))


def safe_numbers(x: NDArray[np.floating], min_count: int, cells: int) -> Numbers:
    """A column of numbers (n,), NaN for missing values, in its safe form.

    A few missing values count as rows in the middle; a few known ones, and values too large to
    compute with, as missing.

    Args:
        x: the column; n is at least ``min_count``.
        min_count: the least count.
        cells: most groups.
    """
    size, finite = group_size(len(x), min_count, cells), x[np.abs(x) <= LARGEST]
    values, counts = _rounded(finite)
    missing = len(x) - len(finite)
    if len(finite) < size:
        return Numbers(rest=len(x))
    cumulative = np.cumsum(counts)
    group_ends: list[int] = []  # number of rows up to the end of each group
    for count_so_far in cumulative.tolist():
        if count_so_far - (group_ends[-1] if group_ends else 0) >= size:
            group_ends.append(count_so_far)
    group_ends[-1] = len(finite)
    group_starts = [0, *group_ends[:-1]]
    middles = np.searchsorted(
        cumulative,
        [(a + b - 1) // 2 for a, b in zip(group_starts, group_ends, strict=True)],
        side="right",
    )
    sizes = [b - a for a, b in zip(group_starts, group_ends, strict=True)]
    if 0 < missing < min_count:
        sizes[int(np.searchsorted(group_ends, (len(finite) - 1) // 2, side="right"))] += missing
        missing = 0
    return Numbers(values=tuple(values[middles].tolist()), counts=tuple(sizes), rest=missing)


def _rounded(x: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The distinct values to four digits, ascending, and their counts."""
    raw, raw_counts = np.unique(x.astype(np.float64), return_counts=True)
    rounded_values = np.array([rounded(value) for value in raw.tolist()], np.float64)
    values, inverse = np.unique(rounded_values, return_inverse=True)
    return values, np.bincount(inverse, raw_counts, len(values)).astype(np.int64)


def safe_names(counts: Mapping[str, int], missing: int, min_count: int) -> Names:
    """A column of categories in its safe form.

    Args:
        counts: rows of each category.
        missing: rows without one; with those of ``counts`` at least ``min_count``.
        min_count: the least count.
    """
    frequent = _frequent(counts, min_count)
    remainder = missing + sum(counts.values()) - sum(frequent.values())
    if frequent and 0 < remainder < min_count:
        return _names(_with_remainder(frequent, remainder), 0)
    return _names(frequent, remainder)


def safe_classes(counts: Mapping[str, int], min_count: int) -> Names:
    """Labels in their safe form; every row has one, so rows of rare classes join the most frequent
    class.
    """
    frequent = {}
    if any(map(disclosable, counts)):
        frequent = _frequent(counts, min_count) or {_largest(counts): 0}
    if not frequent:
        return Names(rest=sum(counts.values()))
    return _names(_with_remainder(frequent, sum(counts.values()) - sum(frequent.values())), 0)


def safe_share(holding: int, rows: int, min_count: int) -> int:
    """The number of rows that contain something, in its safe form: neither these nor the others are
    few.
    """
    if holding < min_count:
        return 0
    return rows if rows - holding < min_count else holding


def _frequent(counts: Mapping[str, int], min_count: int) -> dict[str, int]:
    """The categories in at least ``min_count`` rows, at most as many as an answer holds, the most
    frequent first.
    """
    frequent = [(name, n) for name, n in counts.items() if n >= min_count and disclosable(name)]
    return dict(sorted(frequent, key=lambda item: (-item[1], item[0]))[:MAX_CELLS])


def _largest(counts: Mapping[str, int]) -> str:
    return min(
        (name for name in counts if disclosable(name)), key=lambda name: (-counts[name], name)
    )


def _with_remainder(counts: dict[str, int], remainder: int) -> dict[str, int]:
    return {**counts, (largest := _largest(counts)): counts[largest] + remainder}


def _names(counts: Mapping[str, int], remainder: int) -> Names:
    ordered = sorted(counts)
    return Names(
        names=tuple(ordered), counts=tuple(counts[name] for name in ordered), rest=remainder
    )


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
    clipped = np.maximum(noisy, 0)
    if not (total := int(clipped.sum())):
        clipped, total = np.eye(1, len(noisy), len(noisy) - 1, dtype=np.int64)[0], 1
    shares = clipped * rows
    quotas = shares // total
    by_remainder = np.argsort(-(shares - quotas * total), kind="stable")
    quotas[by_remainder[: rows - int(quotas.sum())]] += 1
    return quotas


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
        return self._noisy_categories(*self.raw.categories(name), self.noise.categories[name])

    def classes(self) -> dict[str, int]:
        """Rows of each agreed class, and of others; all count as others if no classes were
        agreed.
        """
        if not self.noise.classes:
            return {UNNAMED: len(self.rows)}
        counts, unnamed = self._noisy_categories(self.raw.classes(), 0, self.noise.classes)
        return {**counts, UNNAMED: unnamed}

    def targets(self) -> dict[str, NDArray[np.float64]]:
        """Other targets (n,) by name; all NaN for a target without agreed bins."""
        return {
            name: self._binned(x, name) if name in self.noise.edges else np.full(len(x), np.nan)
            for name, x in self.raw.targets().items()
        }

    def word_counts(self) -> dict[str, int]:
        """Empty: a list of words cannot be agreed without disclosing some."""
        return {}

    def _binned(self, x: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        edges, middles = self.noise.edges[name], self.noise.middles(name)
        finite = x[np.abs(x) <= LARGEST]
        # Bins include their lower edge; values outside all bins count in the first or the last.
        cells = np.clip(np.searchsorted(edges, finite, side="right") - 1, 0, len(middles) - 1)
        counts = np.append(np.bincount(cells, minlength=len(middles)), len(x) - len(finite))
        return np.repeat([*middles, np.nan], self._noisy(counts))

    def _noisy_categories(
        self, counts: dict[str, int], missing: int, names: Sequence[str]
    ) -> tuple[dict[str, int], int]:
        exact = [counts.get(name, 0) for name in names]
        noisy = self._noisy(np.array([*exact, missing + sum(counts.values()) - sum(exact)]))
        return {name: int(n) for name, n in zip(names, noisy, strict=False) if n}, int(noisy[-1])

    def _noisy(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        a = exp(-self.noise.epsilon / (2 * self.noise.columns))
        return apportioned(counts + geometric(len(counts), a, self.generator), int(counts.sum()))


def agreed_columns(description: ColumnsReply, noise: Noise) -> ColumnsReply:
    """The silo's columns, reduced to those with agreed cells; bins are useless for its categories.

    Bins under a target's name are the target's: a column with the same name would be disclosed by
    the same part of epsilon.
    """
    specs = [
        spec.model_copy(update={"kind": "category"}) if spec.name in noise.categories else spec
        for spec in description.columns
        if spec.name in noise.categories
        or (
            spec.name in noise.edges
            and spec.kind != "category"
            and spec.name not in description.labels
        )
    ]
    return description.model_copy(update={"columns": tuple(specs)})

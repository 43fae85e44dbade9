"""Significance of differences between methods, and tables of them: ranks, Friedman, critical
difference, Wilcoxon's test with Holm's steps.

J. Demšar, "Statistical Comparisons of Classifiers over Multiple Data Sets", JMLR 7, 2006; pairwise
Wilcoxon tests with Holm's correction in place of Nemenyi's: A. Benavoli, G. Corani, F. Mangili,
"Should We Really Use Post-Hoc Tests Based on Mean-Ranks?", JMLR 17, 2016.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from pomona.core.table import Table, grouped
from pomona.metrics.client_statistics import Signed, holm, wilcoxon
from pomona.results.comparison import Comparison, ComparisonRow

Matrix = NDArray[np.float64]
LEVEL = 0.05


def ranks(values: Matrix) -> Matrix:
    """Return (B, k) ranks inside each block (row): 1 for the highest value; ties share the mean of
    their ranks.
    """
    from scipy import stats  # late: a second, not needed for a page of one run

    return np.asarray(stats.rankdata(-np.round(values, 12), axis=1), dtype=np.float64)


def critical_difference(methods: int, blocks: int) -> float:
    """Return the difference of mean ranks that is significant by Nemenyi's test: q sqrt(k (k + 1) /
    (6 B)).

    Demšar, section 3.2.2: q is the studentized range at infinite degrees of freedom over sqrt(2).
    """
    from scipy import stats  # late: a second, not needed for a page of one run

    q = stats.studentized_range.ppf(1 - LEVEL, methods, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(methods * (methods + 1) / (6 * blocks)))


def cliques(
    order: Sequence[int], different: Mapping[tuple[int, int], bool]
) -> list[tuple[int, int]]:
    """Return the longest runs of at least two neighbours without differences, (first place, last
    place).

    Args:
        order: methods by mean rank.
        different: whether two methods differ, by ascending pair.
    """
    runs: list[tuple[int, int]] = []
    for start in range(len(order)):
        end = start
        while end + 1 < len(order) and not any(
            different[min(a, order[end + 1]), max(a, order[end + 1])]
            for a in order[start : end + 1]
        ):
            end += 1
        if end > start and (not runs or end > runs[-1][1]):
            runs.append((start, end))
    return runs


@dataclass(frozen=True)
class Ranking:
    """Ranks of methods over blocks.

    Attributes:
        methods: names, in the order given.
        blocks: number of columns that all of them have.
        mean_ranks: of each method; 1 is best.
        friedman: p-value of no difference between any methods; None for fewer than three methods or
            two blocks.
        difference: critical difference of mean ranks.
        pairs: (first, second) -> Holm-adjusted p of Wilcoxon's signed-rank test over blocks,
            ascending indices.
        cliques: runs of methods that do not differ, as (first place, last place) in the order of
            mean ranks.
    """

    methods: tuple[str, ...]
    blocks: int
    mean_ranks: tuple[float, ...]
    friedman: float | None
    difference: float
    pairs: Mapping[tuple[int, int], float]
    cliques: tuple[tuple[int, int], ...]

    @property
    def order(self) -> list[int]:
        """Methods by mean rank, ties in the order given."""
        return sorted(range(len(self.methods)), key=lambda i: self.mean_ranks[i])


def ranking(methods: Sequence[str], values: Matrix) -> Ranking:
    """Rank methods over blocks.

    ``values``: (B, k), higher is better, B and k at least 1, none missing.
    """
    from scipy import stats  # late: a second, not needed for a page of one run

    blocks, k = values.shape
    mean_ranks = tuple(float(r) for r in ranks(values).mean(axis=0))
    index_pairs = list(combinations(range(k), 2))
    raw = [
        (test.p if (test := wilcoxon(values[:, a], values[:, b])) else 1.0) for a, b in index_pairs
    ]
    pairs = dict(zip(index_pairs, holm(raw), strict=True))
    friedman = None
    if k > 2 and blocks > 1 and np.ptp(values, axis=1).any():
        friedman = float(stats.friedmanchisquare(*np.round(values, 12).T).pvalue)
    order = sorted(range(k), key=lambda i: mean_ranks[i])
    runs = cliques(order, {pair: p < LEVEL for pair, p in pairs.items()})
    difference = critical_difference(k, blocks) if k > 1 else 0.0
    return Ranking(tuple(methods), blocks, mean_ranks, friedman, difference, pairs, tuple(runs))


NO_TEST = Signed(0.0, 1.0, 0)  # all pairs are equal, or there are none


def paired(row: ComparisonRow, rival: ComparisonRow) -> tuple[list[float], list[float]]:
    """Return paired values of the same clients: each the mean over the seeds in which both have
    one.

    A client's seeds share its samples, so counting them individually would inflate the number of
    clients.
    """
    first, second = row.clients(), rival.clients()
    by_client = grouped(
        (client, (a, b))
        for seed in first
        for client, (a, b) in enumerate(zip(first[seed], second.get(seed, []), strict=False))
        if a is not None and b is not None
    )
    means = [np.mean(pairs, axis=0) for pairs in by_client.values()]
    return [float(a) for a, _ in means], [float(b) for _, b in means]


def wilcoxon_table(comparison: Comparison) -> Table | None:
    """Return Wilcoxon's signed-rank test over clients: the suite's own methods against others."""
    rows = [
        line
        for scenario in comparison.scenarios
        for line in _tests(comparison, comparison.in_scenario(scenario))
    ]
    note = (
        "Two-sided test of the values of the same clients, each its mean over seeds, in the round "
        "best on validation; pairs that are equal are dropped; p is corrected for the lines of its "
        "scenario (Holm). The paired clients of one run have trained together, so they are not "
        "quite independent, here as in the papers."
    )
    if any(len(client_keys(entry)) > 1 for entry in comparison.entries):
        note += " Seeds draw other clients: a pair averages those with the same number."
    header = ["scenario", "method", "against", "pairs", "median difference", "p, corrected"]
    return Table("wilcoxon", "Tests over clients", [note], header, rows, range(3)) if rows else None


def client_keys(entry: ComparisonRow) -> set[str]:
    """Return keys that identify the clients of each cell: the partition's settings if they name
    owners, a file or a published draw; else the hash of the cell's own draw.
    """
    partition = entry.settings.get("partition")
    settings = partition if isinstance(partition, Mapping) else {}
    if settings.get("name") in {"natural", "file"} or settings.get("draw", "own") != "own":
        return {repr(settings)} if entry.cells else set()
    return {str(cell["figures"]["partition"]) for cell in entry.cells}


def _tests(comparison: Comparison, entries: Sequence[ComparisonRow]) -> list[list[str]]:
    finished = [e for e in entries if e.cells]
    suite = [e for e in finished if e.method in comparison.bench.results["own"]]
    pairs = [
        (e, rival) for i, e in enumerate(suite) for rival in finished if rival not in suite[: i + 1]
    ]
    tests = [_compared(e, rival) for e, rival in pairs]
    corrected = holm([test.p for test, _ in tests])
    return [
        [e.column, e.row, rival.row, str(test.pairs), e.metric.number(middle, "+"), f"{p:.2g}"]
        for (e, rival), (test, middle), p in zip(pairs, tests, corrected, strict=True)
    ]


def _compared(row: ComparisonRow, rival: ComparisonRow) -> tuple[Signed, float]:
    """Return the test of two methods, and the median of their differences."""
    a, b = paired(row, rival)
    if not a:
        return NO_TEST, 0.0
    return wilcoxon(a, b) or NO_TEST, float(np.median(np.subtract(a, b)))

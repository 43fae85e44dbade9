"""Clients behind the means: those worse than with local training, the worst ones, tests over
clients.
"""

from collections.abc import Sequence

import numpy as np

from pomona.core.table import NOTHING, Table
from pomona.metrics.client_statistics import Signed, holm, spread, summarize, wilcoxon
from pomona.results.comparison import Comparison, ComparisonRow, told
from pomona.results.run_numbers import ALONE
from pomona.results.tables.comparison_tables import headings

NO_TEST = Signed(0.0, 1.0, 0)  # all pairs are equal, or there are none
SPREAD = {
    "mean": "mean",
    "worst": "worst client",
    "percentile_10": "10th percentile",
    "std": "std over clients",
}


def paired(one: ComparisonRow, other: ComparisonRow) -> tuple[list[float], list[float]]:
    """Return paired values of the same clients, each the mean over the seeds in which both have
    one.

    A client's seeds share its samples, so counting them individually would inflate the number of
    clients.
    """
    first, second = one.clients(), other.clients()
    found: dict[int, list[tuple[float, float]]] = {}
    for seed in first:
        for client, (a, b) in enumerate(zip(first[seed], second.get(seed, []), strict=False)):
            if a is not None and b is not None:
                found.setdefault(client, []).append((a, b))
    means = [np.mean(pairs, axis=0) for pairs in found.values()]
    return [float(a) for a, _ in means], [float(b) for _, b in means]


def gains(made: Comparison, scenario: str) -> dict[str, list[float]]:
    """Return each client's gain over local training by method, the mean over seeds; empty without
    Separate.
    """
    alone = made.at(scenario, ALONE)
    if alone is None or not alone.cells:
        return {}
    found = {}
    for entry in made.of(scenario):
        if entry.method != ALONE and entry.cells:
            own, without = paired(entry, alone)
            good = entry.metric.goodness
            found[entry.row] = [good(a) - good(b) for a, b in zip(own, without, strict=True)]
    return {row: values for row, values in found.items() if values}


def shared_seeds(made: Comparison, scenario: str) -> str:
    """Return ``, mean over 3 seeds`` for gains over several seeds; empty for one."""
    alone, others = (
        made.at(scenario, ALONE),
        [e for e in made.of(scenario) if e.method != ALONE and e.cells],
    )
    counts = (
        sorted({len(e.clients().keys() & alone.clients().keys()) for e in others} - {0})
        if alone
        else []
    )
    if not counts or counts[-1] < 2:
        return ""
    return f", mean over {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} seeds"


def spread_table(made: Comparison) -> Table | None:
    """Return worst client, 10th percentile, and share worse than with local training."""
    rows = [row for e in made.entries if (row := _spread(made, e))]
    header = ["scenario", "method", *SPREAD.values(), "worse than alone (%)"]
    alone = any(e.method == ALONE for e in made.entries)
    note = (
        f"Test {headings(made)}, in the round best on validation (the last, where nothing is held "
        "out), mean ± standard deviation over seeds; a tenth of the clients are worse than the "
        "10th percentile. Worse than alone: the share of clients that are worse than with "
        f"Separate{'.' if alone else ', which this table does not have.'}"
    )
    return Table("clients", "Clients", [note], header, rows, range(2)) if rows else None


def _spread(made: Comparison, entry: ComparisonRow) -> list[str]:
    """Return the row of one scenario and method; empty without results."""
    alone = made.at(entry.scenario, ALONE)
    base = alone.clients() if alone and alone is not entry else {}
    sums = []
    for seed, values in entry.clients().items():
        reference = base.get(seed, [])
        same = reference if len(reference) == len(values) else None
        sums.append(summarize(values, [1] * len(values), same, entry.metric))
    if not sums:
        return []
    texts = [told(spread([one[key] for one in sums]), entry.metric) for key in SPREAD]
    hurt = spread([one["hurt"] for one in sums]) if base else None
    return [entry.column, entry.row, *texts, f"{100 * hurt.mean:.0f}" if hurt else NOTHING]


def wilcoxon_table(made: Comparison) -> Table | None:
    """Return Wilcoxon's signed-rank test over clients: the suite's own methods against all
    others.
    """
    rows = [line for scenario in made.scenarios for line in _tests(made, made.of(scenario))]
    note = (
        "Two-sided test of the values of the same clients, each its mean over seeds, in the round "
        "best on validation; pairs that are equal are dropped; p is corrected for the lines of its "
        "scenario (Holm). The paired clients of one run have trained together, so they are not "
        "quite independent, here as in the papers."
    )
    header = ["scenario", "method", "against", "pairs", "median difference", "p, corrected"]
    return Table("wilcoxon", "Tests over clients", [note], header, rows, range(3)) if rows else None


def _tests(made: Comparison, entries: Sequence[ComparisonRow]) -> list[list[str]]:
    done = [e for e in entries if e.cells]
    own = [e for e in done if e.method in made.bench.results["own"]]
    pairs = [
        (one, other) for i, one in enumerate(own) for other in done if other not in own[: i + 1]
    ]
    found = [_compared(one, other) for one, other in pairs]
    corrected = holm([test.p for test, _ in found])
    return [
        [
            one.column,
            one.row,
            other.row,
            str(test.pairs),
            one.metric.number(middle, "+"),
            f"{p:.2g}",
        ]
        for (one, other), (test, middle), p in zip(pairs, found, corrected, strict=True)
    ]


def _compared(one: ComparisonRow, other: ComparisonRow) -> tuple[Signed, float]:
    """Return the test of two methods, and the median of their differences."""
    a, b = paired(one, other)
    if not a:
        return NO_TEST, 0.0
    return wilcoxon(a, b) or NO_TEST, float(np.median(np.subtract(a, b)))

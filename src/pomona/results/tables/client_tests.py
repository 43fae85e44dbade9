"""Clients behind the means: those worse than with local training, the worst ones, tests over clients."""

from collections.abc import Sequence

import numpy as np

from pomona.core.table import NOTHING, Table
from pomona.metrics.client_statistics import holm, spread, summarize, wilcoxon
from pomona.results.comparison import Comparison, ComparisonRow, told
from pomona.results.run_numbers import ALONE
from pomona.results.tables.comparison_tables import headings


def paired(one: ComparisonRow, other: ComparisonRow) -> tuple[list[float], list[float]]:
    """Return paired values of the same clients, each the mean over the seeds in which both have one.

    A client's seeds share its samples, so counting them individually would inflate the number of clients.
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
    """Return each client's gain over local training by method, the mean over seeds; empty without Separate."""
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
    alone, others = made.at(scenario, ALONE), [e for e in made.of(scenario) if e.method != ALONE and e.cells]
    counts = sorted({len(e.clients().keys() & alone.clients().keys()) for e in others} - {0}) if alone else []
    if not counts or counts[-1] < 2:
        return ""
    return f", mean over {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} seeds"


def spread_table(made: Comparison) -> Table | None:
    """Return worst client, 10th percentile, and share worse than with local training."""
    rows = []
    for e in made.entries:
        if not e.cells:
            continue
        alone = made.at(e.scenario, ALONE)
        base = alone.clients() if alone and alone is not e else {}
        sums = [
            summarize(
                values, [1] * len(values), base.get(seed) if len(base.get(seed, [])) == len(values) else None, e.metric
            )
            for seed, values in e.clients().items()
        ]
        if sums:
            figures = [spread([s[key] for s in sums]) for key in ("mean", "worst", "percentile_10", "std")]
            hurt = spread([s["hurt"] for s in sums]) if base else None
            texts = [told(figure, e.metric) for figure in figures]
            rows.append([e.column, e.row, *texts, f"{100 * hurt.mean:.0f}" if hurt else NOTHING])
    header = [
        "scenario",
        "method",
        "mean",
        "worst client",
        "10th percentile",
        "std over clients",
        "worse than alone (%)",
    ]
    note = (
        f"Test {headings(made)}, in the round best on validation (the last, where nothing is held out), mean ± "
        "standard deviation over seeds; a tenth of the clients are worse than the 10th percentile. Worse than alone: "
        "the share of clients that are worse than with Separate"
        + ("." if any(e.method == ALONE for e in made.entries) else ", which this table does not have.")
    )
    return Table("clients", "Clients", [note], header, rows, range(2)) if rows else None


def wilcoxon_table(made: Comparison) -> Table | None:
    """Return Wilcoxon's signed-rank test over clients: the suite's own methods against all others."""
    rows = [line for scenario in made.scenarios for line in _tests(made, made.of(scenario))]
    note = (
        "Two-sided test of the values of the same clients, each its mean over seeds, in the round best on validation; "
        "pairs that are equal are dropped; p is corrected for the lines of its scenario (Holm). The paired clients of "
        "one run have trained together, so they are not quite independent, here as in the papers."
    )
    header = ["scenario", "method", "against", "pairs", "median difference", "p, corrected"]
    return Table("wilcoxon", "Tests over clients", [note], header, rows, range(3)) if rows else None


def _tests(made: Comparison, entries: Sequence[ComparisonRow]) -> list[list[str]]:
    done = [e for e in entries if e.cells]
    own = [e for e in done if e.method in made.bench.results["own"]]
    found = []
    for one in own:
        for other in done:
            if other in own[: own.index(one) + 1]:
                continue
            a, b = paired(one, other)
            test = wilcoxon(a, b) if a else None
            middle = float(np.median(np.subtract(a, b))) if a else 0.0
            found.append((one, other, test.pairs if test else 0, middle, test.p if test else 1.0))
    corrected = holm([line[4] for line in found])
    return [
        [one.column, one.row, other.row, str(pairs), one.metric.number(middle, "+"), f"{p:.2g}"]
        for (one, other, pairs, middle, _), p in zip(found, corrected, strict=True)
    ]

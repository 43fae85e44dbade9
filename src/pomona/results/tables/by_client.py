"""Tables behind a comparison's means: gains over training alone; worst client, 10th percentile, and
each client by name.
"""

from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import Any

from pomona.core.errors import listed
from pomona.core.table import PLACEHOLDER, Table, grouped
from pomona.experiments import bench_gains
from pomona.experiments.bench_gains import GainsOrReason
from pomona.experiments.bench_table import format_spread
from pomona.metrics.client_statistics import spread, summarize
from pomona.results.comparison import Comparison, ComparisonRow
from pomona.results.gain_presentation import EXCLUSION, MINUS
from pomona.results.run_numbers import SEPARATE
from pomona.results.significance import client_keys
from pomona.results.wording import counted, listing, span

SPREAD = {
    "mean": "mean",
    "worst": "worst client",
    "percentile_10": "10th percentile",
    "std": "std over clients",
}
MAX_NAMES = 10  # clients named in a sentence
MAX_COLUMNS = 12  # clients in a table


def tested(comparison: Comparison) -> list[str]:
    """Return the clients of each scenario with their numbers of test samples, in sentences."""
    scenarios = map(comparison.in_scenario, comparison.scenarios)
    by_text = grouped(
        (_tested(seeds), entries[0].column)
        for entries in scenarios
        if (seeds := [clients for entry in entries for clients in entry.tested()])
    )
    return [
        f"Clients{f' in {listing(columns)}' if len(by_text) > 1 else ''}: {text}."
        for text, columns in by_text.items()
    ]


def _tested(seeds: Sequence[Mapping[str, int]]) -> str:
    """Format ``2, with test samples: A (30), B (5 to 6)``; a range for many clients."""
    first = seeds[0]
    if len(first) > MAX_NAMES or any(counts.keys() != first.keys() for counts in seeds):
        samples = f"{span([n for counts in seeds for n in counts.values()])} test samples each"
    else:
        names = [f"{name} ({span([counts[name] for counts in seeds])})" for name in first]
        samples = f"test samples: {', '.join(names)}"
    return f"{span([len(counts) for counts in seeds])}, with {samples}"


def spread_table(comparison: Comparison) -> Table | None:
    """Return worst client, 10th percentile, and the share with a gain below 0."""
    rows = [
        row
        for e, gained in zip(comparison.entries, comparison.gained, strict=True)
        if (row := _spread(e, gained))
    ]
    header = ["scenario", "method", *SPREAD.values(), "worse than alone (%)"]
    note = (
        f"Test {comparison.headings}, in the round best on validation (the last without validation "
        "samples), mean ± standard deviation over seeds; a tenth of the clients are worse than the "
        "10th percentile. Worse than alone: the share of clients whose gain over Separate "
        "is below 0, which may be chance; models and samples are those of the table of gains, "
        "which also says why a method has no gain."
    )
    return Table("clients", "Clients", [note], header, rows, range(2)) if rows else None


def _spread(entry: ComparisonRow, gained: GainsOrReason) -> list[str]:
    """Return the row of one scenario and method; empty without results."""
    sums = [
        summarize(values, [1] * len(values), metric=entry.metric)
        for values in entry.clients().values()
    ]
    if not sums:
        return []
    texts = [format_spread(spread([s[key] for s in sums]), entry.metric) for key in SPREAD]
    return [entry.column, entry.row, *texts, _worse(gained)]


def _worse(gained: GainsOrReason) -> str:
    """Format the percentage of clients whose gain is below 0."""
    if isinstance(gained, str):
        return PLACEHOLDER
    return f"{100 * fmean(gain.value < 0 for gain in gained[0] if gain):.0f}"


def clients_table(comparison: Comparison) -> Table | None:
    """Return each client's metric; None for many clients, or if runs have different ones."""
    finished = [e for e in comparison.entries if e.cells]
    clients = {tuple(cell["figures"]["clients"]) for e in finished for cell in e.cells}
    differ = len(set[str]().union(*map(client_keys, finished))) > 1
    if len(clients) != 1 or len(*clients) > MAX_COLUMNS or differ:
        return None
    seeds = set.intersection(*(set(e.clients()) for e in finished))
    rows = [[e.column, e.row, *_means(e, seeds)] for e in finished]
    note = (
        f"Test {comparison.headings}, in the round best on validation (the last without validation "
        f"samples), mean over {counted(len(seeds), 'seed')}."
    )
    header = ["scenario", "method", *clients.pop()]
    return Table("each-client", "Each client", [note], header, rows, range(2)) if seeds else None


def _means(entry: ComparisonRow, seeds: Collection[int]) -> list[str]:
    """Return each client's mean over those of the seeds that have a value for it."""
    by_client = [
        [value for value in values if value is not None]
        for values in zip(*(entry.clients()[seed] for seed in sorted(seeds)), strict=True)
    ]
    return [entry.metric.number(fmean(values) if values else None) for values in by_client]


def gains_table(comparison: Comparison) -> Table | None:
    """Return gains with intervals, and the reasons without; None if no other method has a result.

    It has no rows if no gain is defined.
    """
    summaries = bench_gains.rows(comparison.bench.results, comparison.gained)
    compared = [
        (entry, row)
        for entry, row in zip(comparison.entries, summaries, strict=True)
        if entry.method != SEPARATE and entry.cells
    ]
    rows = [
        [
            entry.column,
            entry.row,
            str(row["seeds"]),
            *(text.replace("-", MINUS) for text in bench_gains.gain_cells(row, entry.metric)),
        ]
        for entry, row in compared
        if row["gain"] is not None
    ]
    note = (
        "Gain over Separate on the same test samples, averaged over clients and seeds, in the "
        "last round (with keep=best, in the round best on validation); more than 0 is better. "
        "Where an interval includes 0, there is no significant difference; verdicts are corrected "
        "for the lines of their scenario (Holm)."
    )
    by_reason = grouped(
        (row["reason"], f"{entry.row} in {entry.column}")
        for entry, row in compared
        if row["reason"]
    )
    notes = [note] if rows else []
    notes += _sides(compared) + _exclusions(comparison)
    notes += [f"Not compared: {listed(names)}: {reason}." for reason, names in by_reason.items()]
    header = ["scenario", "method", "seeds", "gain", "95 % interval", "on average"]
    if compared:
        return Table("gains", "Does it beat training alone?", notes, header, rows, {0, 1, 5})
    return None


def _sides(compared: Sequence[tuple[ComparisonRow, Mapping[str, Any]]]) -> list[str]:
    """Name the models that the gains compare, with their rounds."""
    by_text = grouped(
        (f"{row['judged']}, against {row['base']}", f"{entry.row} in {entry.column}")
        for entry, row in compared
        if row["judged"] and row["base"]
    )
    return [f"Compared on test data, {listed(names)}: {text}." for text, names in by_text.items()]


def _exclusions(comparison: Comparison) -> list[str]:
    """Name the clients that gains leave out."""
    by_text: dict[str, list[str]] = {}
    for entry, gained in zip(comparison.entries, comparison.gained, strict=True):
        if not isinstance(gained, str) and (excluded := gained[1].excluded):
            names = entry.cells[0]["figures"]["clients"]
            clients = listed([names[e.client] for e in excluded], MAX_NAMES)
            text = f"mean over {gained[1].clients} of {len(names)} clients; left out {EXCLUSION}: "
            by_text.setdefault(text + clients, []).append(f"{entry.row} in {entry.column}")
    return [f"{listed(rows)}: {text}." for text, rows in by_text.items()]

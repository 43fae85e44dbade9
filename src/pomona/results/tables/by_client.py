"""Tables of the clients behind a comparison's means: worst, 10th percentile, and each by name."""

from collections.abc import Collection, Mapping, Sequence
from statistics import fmean

from pomona.core.table import NOTHING, Table
from pomona.experiments.bench_gains import GainsOrReason
from pomona.experiments.bench_table import format_spread
from pomona.metrics.client_statistics import spread, summarize
from pomona.results.comparison import Comparison, ComparisonRow
from pomona.results.significance import who
from pomona.results.wording import counted, listing, span

SPREAD = {
    "mean": "mean",
    "worst": "worst client",
    "percentile_10": "10th percentile",
    "std": "std over clients",
}
MOST_NAMED = 10  # clients that a sentence has room for
MOST_COLUMNS = 12  # clients that a page has room for


def tested(made: Comparison) -> list[str]:
    """Return the clients of each scenario with their numbers of test samples, in sentences."""
    by_samples: dict[str, list[str]] = {}
    for scenario in made.scenarios:
        seeds = [clients for entry in made.of(scenario) for clients in entry.tested()]
        if seeds:
            by_samples.setdefault(_tested(seeds), []).append(made.of(scenario)[0].column)
    return [
        f"Clients{f' in {listing(columns)}' if len(by_samples) > 1 else ''}: {text}."
        for text, columns in by_samples.items()
    ]


def _tested(seeds: Sequence[Mapping[str, int]]) -> str:
    """Format ``2, with test samples: A (30), B (5 to 6)``; a range for many clients."""
    first = seeds[0]
    if len(first) > MOST_NAMED or any(of.keys() != first.keys() for of in seeds):
        each = f"{span([n for of in seeds for n in of.values()])} test samples each"
    else:
        named = [f"{name} ({span([of[name] for of in seeds])})" for name in first]
        each = f"test samples: {', '.join(named)}"
    return f"{span([len(of) for of in seeds])}, with {each}"


def spread_table(made: Comparison) -> Table | None:
    """Return worst client, 10th percentile, and the share with a gain below 0."""
    rows = [
        row
        for e, gained in zip(made.entries, made.gained, strict=True)
        if (row := _spread(e, gained))
    ]
    header = ["scenario", "method", *SPREAD.values(), "worse than alone (%)"]
    note = (
        f"Test {made.headings}, in the round best on validation (the last, where nothing is held "
        "out), mean ± standard deviation over seeds; a tenth of the clients are worse than the "
        "10th percentile. Worse than alone: the share of clients with a gain over Separate below "
        "0, of the models and samples of the table of gains, which says why others have none; a "
        "gain below 0 may be chance."
    )
    return Table("clients", "Clients", [note], header, rows, range(2)) if rows else None


def _spread(entry: ComparisonRow, gained: GainsOrReason) -> list[str]:
    """Return the row of one scenario and method; empty without results."""
    sums = [summarize(own, [1] * len(own), metric=entry.metric) for own in entry.clients().values()]
    if not sums:
        return []
    texts = [format_spread(spread([one[key] for one in sums]), entry.metric) for key in SPREAD]
    return [entry.column, entry.row, *texts, _worse(gained)]


def _worse(gained: GainsOrReason) -> str:
    """Format the percentage of clients whose gain is below 0."""
    if isinstance(gained, str):
        return NOTHING
    return f"{100 * fmean(gain.value < 0 for gain in gained[0] if gain):.0f}"


def clients_table(made: Comparison) -> Table | None:
    """Return each client's metric; None if there are many, or any run has others."""
    done = [e for e in made.entries if e.cells]
    clients = {tuple(cell["figures"]["clients"]) for e in done for cell in e.cells}
    others = len({one for e in done for one in who(e)}) > 1
    if len(clients) != 1 or len(*clients) > MOST_COLUMNS or others:
        return None
    seeds = set.intersection(*(set(e.clients()) for e in done))
    rows = [[e.column, e.row, *_means(e, seeds)] for e in done]
    note = (
        f"Test {made.headings}, in the round best on validation (the last, where nothing is held "
        f"out), mean over {counted(len(seeds), 'seed')}."
    )
    header = ["scenario", "method", *clients.pop()]
    return Table("each-client", "Each client", [note], header, rows, range(2)) if seeds else None


def _means(entry: ComparisonRow, seeds: Collection[int]) -> list[str]:
    """Return each client's mean over those of the seeds that have a value for it."""
    found = [
        [value for value in values if value is not None]
        for values in zip(*(entry.clients()[seed] for seed in sorted(seeds)), strict=True)
    ]
    return [entry.metric.number(fmean(values) if values else None) for values in found]

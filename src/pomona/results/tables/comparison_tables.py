"""Tables of results: reference numbers next to ours, ranks, chosen settings, epsilon."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pomona.core.table import PLACEHOLDER, Table
from pomona.experiments.bench_table import format_spread, point
from pomona.experiments.reference import AVERAGES, ROUNDS, Number
from pomona.metrics.client_statistics import spread
from pomona.results.comparison import Comparison, ComparisonRow
from pomona.results.significance import LEVEL, Ranking
from pomona.results.tables.by_client import tested

Cells = Sequence[Sequence[tuple[str, bool]]]  # texts, and whether they are the best


def as_printed(number: Number | None) -> str:
    """Format a reference number as it is printed; a dash if there is none."""
    return PLACEHOLDER if number is None else str(number)


def state(entry: ComparisonRow, text: str) -> str:
    """Return a text, or the reason for its absence."""
    return text if entry.cells else entry.state


def grid(comparison: Comparison) -> Table:
    """Return the reference's table next to ours; the shorter of methods and scenarios becomes the
    columns.
    """
    sides = _sides(comparison)
    compared = len(sides) > 1
    columns = {s: comparison.in_scenario(s)[0].column for s in comparison.scenarios}
    names = _rows_by_method(comparison)
    entries = [[comparison.entry(scenario, method) for scenario in columns] for method in names]
    row_names, column_names, corner = names, columns, "method"
    if len(columns) > len(names):
        entries = [list(line) for line in zip(*entries, strict=True)]
        row_names, column_names, corner = columns, names, "scenario"
    cells = _cells(comparison, entries, list(sides))
    header = [
        f"{name}: {side}" if compared else name
        for name in column_names.values()
        for side in sides.values()
    ]
    header.insert(0, corner)
    title = "Reference and ours" if compared else "Results"
    return Table(
        "results",
        title,
        [_grid_note(comparison), *tested(comparison)],
        header,
        _with_names(row_names.values(), cells),
        marked=_bold(cells),
    )


def _sides(comparison: Comparison) -> dict[bool, str]:
    """Return the headings of the reference's column, if it has numbers of this bench, and of
    ours.
    """
    if comparison.reference and any(e.printed.number for e in comparison.entries):
        return {False: comparison.reference.label, True: "ours"}
    return {True: "ours"}


def _rows_by_method(comparison: Comparison) -> dict[str, str]:
    """Return labels of the methods' rows, in the suite's order."""
    rows = {e.method: e.row for e in reversed(comparison.entries)}
    return {m: rows.get(m, m) for m in comparison.methods}


def _grid_note(comparison: Comparison) -> str:
    counting, values = str(comparison.count), "values are"
    if comparison.reference:
        counting, values = f"{comparison.count}, as in {comparison.reference.title}", "ours is"
    return (
        f"Test {comparison.headings}, {counting}; {values} mean ± standard deviation over seeds "
        "(how many). The best of each scenario is bold."
    )


def _with_names(names: Iterable[str], cells: Cells) -> list[list[str]]:
    """Return the texts of rows after their names."""
    return [[name, *(text for text, _ in line)] for name, line in zip(names, cells, strict=True)]


def _cells(
    comparison: Comparison, entries: Sequence[Sequence[ComparisonRow | None]], sides: Sequence[bool]
) -> Cells:
    """Return the text of each entry and side, and whether it is the best of its scenario; empty
    without an entry.
    """
    best = {s: _best(comparison, s) for s in comparison.scenarios}
    return [
        [
            (_text(entry, comparison, ours), (entry.method, ours) in best[entry.scenario])
            if entry
            else ("", False)
            for entry in line
            for ours in sides
        ]
        for line in entries
    ]


def _bold(cells: Cells) -> frozenset[tuple[int, int]]:
    """Return the positions of the best cells, after a first column of names."""
    return frozenset(
        (i, j) for i, line in enumerate(cells) for j, (_, best) in enumerate(line, 1) if best
    )


def _text(entry: ComparisonRow, comparison: Comparison, ours: bool) -> str:
    if ours:
        return state(entry, format_spread(comparison.ours(entry), entry.metric))
    number = entry.printed.number
    return as_printed(number) + ("*" if number and number.note else "")


def _best(comparison: Comparison, scenario: str) -> set[tuple[str, bool]]:
    best, entries = set(), comparison.in_scenario(scenario)
    metric = next((e.metric for e in entries if e.cells), entries[0].metric)
    for ours in (False, True):
        values = {e.method: _mean(e, comparison, ours) for e in entries}
        top = metric.best(values.values())
        best |= {(m, ours) for m, v in values.items() if v is not None and v == top}
    return best


def _mean(entry: ComparisonRow, comparison: Comparison, ours: bool) -> float | None:
    if not ours:
        return entry.printed.value
    measured = comparison.ours(entry)
    return measured.mean if measured else None


def records(comparison: Comparison) -> list[dict[str, str]]:
    """Return all information on every cell, one record each, for the CSV.

    Ours are shares, not percent; the reference and the difference to it are in the unit of the
    metric's heading.
    """
    return [_record(comparison, entry) for entry in comparison.entries]


def _record(comparison: Comparison, e: ComparisonRow) -> dict[str, str]:
    spreads = {name: spread(e.values(count)) for name, count in AVERAGES.items()}
    ours, printed = comparison.ours(e), e.printed.value
    numbers = {
        f"{name}_{statistic}": getattr(s, statistic, None)
        for name, s in spreads.items()
        for statistic in ("mean", "std")
    }
    numbers["reference"] = printed
    numbers["reference_std"] = e.printed.number.std if e.printed.number else None
    numbers["difference"] = (
        e.metric.scaled(ours.mean) - printed if ours and printed is not None else None
    )
    return {
        "scenario": e.scenario,
        "title": e.column,
        "method": e.method,
        "row": e.row,
        "state": e.state,
        "n": str(len(e.cells)),
        "metric": e.metric.name,
        **{key: "" if value is None else f"{value:.6g}" for key, value in numbers.items()},
    }


def moments(comparison: Comparison) -> Table:
    """Return our results in all three counted rounds, over clients and over samples."""
    finished = [e for e in comparison.entries if e.cells]
    counts = [
        c for c in AVERAGES.values() if any(v is not None for e in finished for v in e.values(c))
    ]
    rows = [
        [e.column, e.row, *(format_spread(spread(e.values(count)), e.metric) for count in counts)]
        for e in finished
    ]
    note = (
        f"Test {comparison.headings}. Over clients each client counts once; over samples each test "
        "sample does. The best round on test is chosen on test data, so it is optimistic, "
        "more so the more often a run is evaluated; the one best on validation is not."
    )
    header = [f"{ROUNDS[count.moment]}, over {count.unit}" for count in counts]
    title = "Ours, by round and average" if comparison.reference else "By round and average"
    return Table("moments", title, [note], ["scenario", "method", *header], rows, range(2))


def chosen(comparison: Comparison) -> Table | None:
    """Return the settings chosen by a search, next to those of the reference."""
    searched = [e for e in comparison.entries if e.tried and e.cells]
    if not searched:
        return None
    header = ["scenario", "method", "points tried", "chosen"]
    rows = [[e.column, e.row, str(e.tried), point(e.chosen) or PLACEHOLDER] for e in searched]
    if any(e.printed.chosen for e in searched):
        header.append(_label(comparison))
        for row, e in zip(rows, searched, strict=True):
            row.append(point(e.printed.chosen) or PLACEHOLDER)
    tuning = comparison.bench.results["tuning"]
    note = f"Tried on seed {tuning['seed']}; chosen: {tuning['rule']}. Test data were not used."
    return Table("chosen", "Settings searched", [note], header, rows, range(2))


def rank_table(ranking: Ranking) -> Table:
    """Return mean ranks and significant differences."""
    rows = []
    for rank, i in enumerate(ranking.order, 1):
        different = [
            ranking.methods[b if a == i else a]
            for (a, b), p in ranking.pairs.items()
            if i in (a, b) and p < LEVEL
        ]
        mean, names = f"{ranking.mean_ranks[i]:.2f}", ", ".join(different)
        rows.append([str(rank), ranking.methods[i], mean, names or "none"])
    friedman = reach = ""
    if ranking.friedman is not None:
        friedman = f"Friedman's test: p = {ranking.friedman:.3g}. "
    if (smallest := 2.0 ** (1 - ranking.blocks)) * len(ranking.pairs) >= LEVEL:
        reach = (
            f" With {ranking.blocks} scenarios the smallest p that the test can give is "
            f"{smallest:.3g} before Holm's correction for {len(ranking.pairs)} pairs, so no pair "
            "can differ significantly."
        )
    note = (
        f"Mean rank over {ranking.blocks} scenarios that all these methods have (1 is best). "
        f"{friedman}Nemenyi's critical difference at 5 %: {ranking.difference:.2f} ranks (Demšar "
        "2006). Pairs are compared by Wilcoxon's signed-rank test over scenarios with Holm's "
        f"correction at 5 %.{reach}"
    )
    header = ["place", "method", "mean rank", "differs significantly from"]
    return Table("ranks", "Ranks", [note], header, rows, range(2))


def privacy(comparison: Comparison) -> Table | None:
    """Return epsilon next to the reference's."""
    rows = []
    for e in comparison.entries:
        accounts = [account for c in e.cells if (account := c["figures"]["privacy"])]
        if accounts or e.printed.epsilon:
            ours = state(e, _largest_epsilon(accounts) if accounts else PLACEHOLDER)
            rows.append([e.column, e.row, ours, as_printed(e.printed.epsilon)])
    note = (
        "The largest epsilon of a client, over all rounds and seeds. It follows from the sampling "
        "rate, the noise, the steps and delta alone."
    )
    header = ["scenario", "method", "ours", _label(comparison)]
    return Table("epsilon", "Privacy spent", [note], header, rows, range(2)) if rows else None


def _largest_epsilon(accounts: Sequence[Mapping[str, Any]]) -> str:
    """Return the largest epsilon of private runs; unbounded if that of any is."""
    if any(account.get("void") or account["epsilon"] is None for account in accounts):
        return "unbounded"
    return f"{max(account['epsilon'] for account in accounts):.3g}"


def _label(comparison: Comparison) -> str:
    return comparison.reference.label if comparison.reference else "reference"

"""Tables of results: reference numbers beside ours, ranks, chosen settings, epsilon."""

from collections.abc import Iterable, Sequence

from pomona.core.table import NOTHING, Table
from pomona.experiments.bench_table import format_spread, point
from pomona.experiments.reference import AVERAGES, ROUNDS, Number
from pomona.metrics.client_statistics import spread
from pomona.results.comparison import Comparison, ComparisonRow
from pomona.results.significance import LEVEL, Ranking
from pomona.results.tables.by_client import tested


def as_printed(number: Number | None) -> str:
    """Format a reference number as it is printed; a dash if there is none."""
    return NOTHING if number is None else str(number)


def state(entry: ComparisonRow, text: str) -> str:
    """Return a text, or the reason for its absence."""
    return text if entry.cells else entry.state


def grid(made: Comparison) -> Table:
    """Return the reference's table beside ours; the shorter of methods and scenarios becomes the
    columns.
    """
    sides = _sides(made)
    compared = len(sides) > 1
    columns = {s: made.of(s)[0].column for s in made.scenarios}
    names = _rows_by_method(made)
    entries = [[made.at(scenario, method) for scenario in columns] for method in names]
    down, across, first = names, columns, "method"
    if len(columns) > len(names):
        entries = [list(line) for line in zip(*entries, strict=True)]
        down, across, first = columns, names, "scenario"
    cells = _cells(made, entries, list(sides))
    header = [
        f"{name}: {side}" if compared else name
        for name in across.values()
        for side in sides.values()
    ]
    header.insert(0, first)
    title = "The table beside ours" if compared else "Results"
    return Table(
        "results",
        title,
        [_grid_note(made), *tested(made)],
        header,
        _named(down.values(), cells),
        marked=_bold(cells),
    )


def _sides(made: Comparison) -> dict[bool, str]:
    """Return the headings of the reference's column, if it has numbers of this bench, and of
    ours.
    """
    if made.reference and any(e.printed.number for e in made.entries):
        return {False: made.reference.label, True: "ours"}
    return {True: "ours"}


def _rows_by_method(made: Comparison) -> dict[str, str]:
    """Return labels of the methods' rows, in the suite's order."""
    rows = {e.method: e.row for e in reversed(made.entries)}
    return {m: rows.get(m, m) for m in made.methods}


def _grid_note(made: Comparison) -> str:
    counting, values = str(made.count), "values are"
    if made.reference:
        counting, values = f"{made.count}, as in {made.reference.title}", "ours is"
    return (
        f"Test {made.headings}, {counting}; {values} mean ± standard deviation over seeds (how "
        "many). The best of each scenario is bold."
    )


def _named(names: Iterable[str], cells: Sequence[Sequence[tuple[str, bool]]]) -> list[list[str]]:
    """Return the texts of rows after their names."""
    return [[name, *(text for text, _ in line)] for name, line in zip(names, cells, strict=True)]


def _cells(
    made: Comparison, entries: Sequence[Sequence[ComparisonRow | None]], sides: Sequence[bool]
) -> list[list[tuple[str, bool]]]:
    """Return the text of each entry and side, and whether it is the best of its scenario; empty
    without an entry.
    """
    best = {s: _best(made, s) for s in made.scenarios}
    return [
        [
            (_text(entry, made, ours), (entry.method, ours) in best[entry.scenario])
            if entry
            else ("", False)
            for entry in line
            for ours in sides
        ]
        for line in entries
    ]


def _bold(cells: Sequence[Sequence[tuple[str, bool]]]) -> frozenset[tuple[int, int]]:
    """Return the positions of the best cells, after a first column of names."""
    return frozenset(
        (i, j) for i, line in enumerate(cells) for j, (_, best) in enumerate(line, 1) if best
    )


def _text(entry: ComparisonRow, made: Comparison, ours: bool) -> str:
    if ours:
        return state(entry, format_spread(made.ours(entry), entry.metric))
    number = entry.printed.number
    return as_printed(number) + ("*" if number and number.note else "")


def _best(made: Comparison, scenario: str) -> set[tuple[str, bool]]:
    best, entries = set(), made.of(scenario)
    metric = next((e.metric for e in entries if e.cells), entries[0].metric)
    for ours in (False, True):
        values = {e.method: _mean(e, made, ours) for e in entries}
        top = metric.best(values.values())
        best |= {(m, ours) for m, v in values.items() if v is not None and v == top}
    return best


def _mean(entry: ComparisonRow, made: Comparison, ours: bool) -> float | None:
    if not ours:
        return entry.printed.value
    own = made.ours(entry)
    return own.mean if own else None


def records(made: Comparison) -> list[dict[str, str]]:
    """Return all information on every cell, one record each, for the CSV.

    Ours are shares, not percent; the reference and the difference to it are in the unit of the
    metric's heading.
    """
    return [_record(made, entry) for entry in made.entries]


def _record(made: Comparison, e: ComparisonRow) -> dict[str, str]:
    spreads = {name: spread(e.values(count)) for name, count in AVERAGES.items()}
    own, printed = made.ours(e), e.printed.value
    numbers = {
        f"{name}_{what}": getattr(s, what, None)
        for name, s in spreads.items()
        for what in ("mean", "std")
    }
    numbers["reference"] = printed
    numbers["reference_std"] = e.printed.number.std if e.printed.number else None
    numbers["difference"] = (
        e.metric.scaled(own.mean) - printed if own and printed is not None else None
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


def moments(made: Comparison) -> Table:
    """Return our results in all three counted rounds, over clients and over samples."""
    done = [e for e in made.entries if e.cells]
    counts = [c for c in AVERAGES.values() if any(v is not None for e in done for v in e.values(c))]
    rows = [
        [e.column, e.row, *(format_spread(spread(e.values(count)), e.metric) for count in counts)]
        for e in done
    ]
    note = (
        f"Test {made.headings}. Over clients each client counts once; over samples each test "
        "sample does. The best round on test is chosen by test data, so it is optimistic, and the "
        "more so the more often a run is evaluated; the one best on validation is not."
    )
    header = [f"{ROUNDS[count.moment]}, over {count.unit}" for count in counts]
    title = "Ours, by what counts" if made.reference else "By what counts"
    return Table("moments", title, [note], ["scenario", "method", *header], rows, range(2))


def chosen(made: Comparison) -> Table | None:
    """Return the settings chosen by a search, beside those of the reference."""
    found = [e for e in made.entries if e.tried and e.cells]
    if not found:
        return None
    compared = any(e.printed.chosen for e in found)
    rows = [
        [
            e.column,
            e.row,
            str(e.tried),
            point(e.chosen) or NOTHING,
            *([point(e.printed.chosen) or NOTHING] if compared else []),
        ]
        for e in found
    ]
    header = ["scenario", "method", "points tried", "chosen", *([_label(made)] if compared else [])]
    tuning = made.bench.results["tuning"]
    note = f"Tried on seed {tuning['seed']}; chosen was {tuning['rule']}. Test data chose nothing."
    return Table("chosen", "Settings searched", [note], header, rows, range(2))


def rank_table(ranking: Ranking) -> Table:
    """Return mean ranks and significant differences."""
    rows = []
    for place, i in enumerate(ranking.order, 1):
        unlike = [
            ranking.methods[b if a == i else a]
            for (a, b), p in ranking.pairs.items()
            if i in (a, b) and p < LEVEL
        ]
        rows.append(
            [
                str(place),
                ranking.methods[i],
                f"{ranking.mean_ranks[i]:.2f}",
                ", ".join(unlike) or "none",
            ]
        )
    smallest = 2.0 ** (1 - ranking.blocks)
    friedman = (
        f"Friedman's test: p = {ranking.friedman:.3g}. " if ranking.friedman is not None else ""
    )
    reach = (
        f" With {ranking.blocks} scenarios the smallest p that the test can give is "
        f"{smallest:.3g} before Holm's "
        f"correction for {len(ranking.pairs)} pairs, so no pair can differ significantly."
        if smallest * len(ranking.pairs) >= LEVEL
        else ""
    )
    note = (
        f"Mean rank over {ranking.blocks} scenarios that all these methods have (1 is best). "
        f"{friedman}Nemenyi's critical difference at 5 %: {ranking.difference:.2f} ranks (Demsar "
        "2006). Pairs are compared by Wilcoxon's signed-rank test over scenarios with Holm's "
        f"correction at 5 %.{reach}"
    )
    header = ["place", "method", "mean rank", "differs significantly from"]
    return Table("ranks", "Ranks", [note], header, rows, range(2))


def privacy(made: Comparison) -> Table | None:
    """Return epsilon beside the reference's."""
    rows = []
    for e in made.entries:
        figures = [privacy for c in e.cells if (privacy := c["figures"]["privacy"])]
        spent = [None if privacy.get("void") else privacy["epsilon"] for privacy in figures]
        if spent or e.printed.epsilon:
            bounds = [epsilon for epsilon in spent if epsilon is not None]
            bounded = len(bounds) == len(spent)
            largest = f"{max(bounds):.3g}" if bounds and bounded else "unbounded"
            ours = state(e, largest if spent else NOTHING)
            rows.append([e.column, e.row, ours, as_printed(e.printed.epsilon)])
    note = (
        "The largest epsilon of a client, over all rounds and seeds. It follows from the sampling "
        "rate, the noise, the steps and delta alone."
    )
    header = ["scenario", "method", "ours", _label(made)]
    return Table("epsilon", "Privacy spent", [note], header, rows, range(2)) if rows else None


def _label(made: Comparison) -> str:
    return made.reference.label if made.reference else "reference"

"""Cost of methods: bytes, seconds, and rounds and seconds to 99 % of a method's own best accuracy."""

from collections.abc import Mapping, Sequence
from typing import Any

from pomona.core.table import NOTHING, Table
from pomona.metrics.client_statistics import spread
from pomona.results.comparison import Comparison, ComparisonRow
from pomona.results.tables.comparison_tables import as_printed

SHARE = 0.99
FLOAT = 4  # bytes


def converged(rounds: Sequence[int], accuracy: Sequence[float | None]) -> int | None:
    """Return the first round with at least 99 % of the best accuracy; None without accuracies."""
    known = [a for a in accuracy if a is not None]
    if not known:
        return None
    return next(r for r, a in zip(rounds, accuracy, strict=True) if a is not None and a >= SHARE * max(known))


def cost_table(made: Comparison) -> Table | None:
    """Return traffic and time of every cell."""
    said = any(e.printed.minutes for e in made.entries)
    label = made.reference.label if made.reference else ""
    rows = [_line(e, made.bench.timing, said) for e in made.entries if e.cells]
    header = [
        "scenario",
        "method",
        "models down",
        "models up",
        "MB a client and round",
        "seconds a round",
        "seconds",
        "rounds to 99 %",
        "seconds to 99 %",
        *([f"{label}: minutes", f"{label}: minutes a round"] if said else []),
    ]
    note = (
        "Models and megabytes (10⁶ bytes), down and up, are means over clients and rounds. Seconds are wall time of "
        "training and evaluation where the cells ran, means over seeds; cells that ran side by side share the machine. "
        "99 % is of a method's own best mean test accuracy, counted at rounds that were evaluated."
    )
    return Table("cost", "Cost", [note], header, rows, range(2)) if rows else None


def _line(entry: ComparisonRow, timing: Mapping[str, Sequence[float]], said: bool) -> list[str]:
    figures = [c["figures"] for c in entry.cells]
    seconds = [list(timing.get(c["folder"], ())) for c in entry.cells]
    ends = [converged(f["curve"]["round"], f["curve"]["test_accuracy"]) for f in figures]
    first = figures[0]
    model = max(1, first["parameters"]) * FLOAT
    visits = max(1, len(first["clients"]) * first["rounds"])
    down, up = first["bytes_down"] / visits, first["bytes_up"] / visits
    after = [s[e - 1] for s, e in zip(seconds, ends, strict=True) if e is not None and len(s) >= e]
    return [
        entry.column,
        entry.row,
        f"{down / model:.2f}",
        f"{up / model:.2f}",
        f"{(down + up) / 1e6:.2f}",
        _mean([s[-1] / len(s) for s in seconds if s], ".2f"),
        _mean([s[-1] for s in seconds if s], ".1f"),
        _mean(ends, ".1f"),
        _mean(after, ".1f"),
        *([as_printed(entry.printed.minutes), as_printed(entry.printed.minutes_a_round)] if said else []),
    ]


def _mean(values: Sequence[Any], form: str) -> str:
    found = spread(values)
    return f"{found.mean:{form}}" if found else NOTHING

"""Cost of methods: bytes and seconds in all, and rounds, bytes and seconds to an accuracy."""

from collections.abc import Mapping, Sequence
from typing import Any

from pomona.core.table import NOTHING, Table
from pomona.metrics.client_statistics import spread
from pomona.results.comparison import Comparison, ComparisonRow
from pomona.results.run_numbers import ALONE
from pomona.results.tables.comparison_tables import as_printed
from pomona.results.wording import size

CONVERGED, NEAR = 0.99, 0.95  # of the best accuracy, and of the last one
FLOAT = 4  # bytes
NEVER = "not reached"


def converged(rounds: Sequence[int], accuracy: Sequence[float | None]) -> int | None:
    """Return the first round with at least 99 % of the best accuracy; None without accuracies."""
    known = [a for a in accuracy if a is not None]
    if not known:
        return None
    return next(
        r
        for r, a in zip(rounds, accuracy, strict=True)
        if a is not None and a >= CONVERGED * max(known)
    )


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
        "sent a client and round",
        "seconds a round",
        "seconds",
        "rounds to 99 %",
        "seconds to 99 %",
        *([f"{label}: minutes", f"{label}: minutes a round"] if said else []),
    ]
    note = (
        "Models and bytes (1 MB is 10⁶), down and up, are means over clients and rounds, of the "
        "first seed. Seconds "
        "are wall time of training and evaluation where the cells ran, means over seeds; cells "
        "that ran side by side share the machine. 99 % is of a method's own best mean test "
        "accuracy, counted at rounds that were evaluated."
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
        size(down + up),
        _mean([s[-1] / len(s) for s in seconds if s], ".2f"),
        _mean([s[-1] for s in seconds if s], ".1f"),
        _mean(ends, ".1f"),
        _mean(after, ".1f"),
        *(
            [as_printed(entry.printed.minutes), as_printed(entry.printed.minutes_a_round)]
            if said
            else []
        ),
    ]


def _mean(values: Sequence[Any], form: str) -> str:
    found = spread(values)
    return f"{found.mean:{form}}" if found else NOTHING


def first_at(rounds: Sequence[int], values: Sequence[float | None], target: float) -> int | None:
    """Return the first round with at least the target; None if it is not reached."""
    return next(
        (r for r, v in zip(rounds, values, strict=True) if v is not None and v >= target), None
    )


def speed_table(made: Comparison) -> Table | None:
    """Return rounds and bytes of every cell whose metric is better if higher."""
    rows = [_speed(made, e) for e in made.entries if e.cells and e.metric.higher]
    header = [
        "scenario",
        "method",
        "rounds to 95 %",
        "sent to 95 %",
        "rounds to Separate",
        "sent to Separate",
    ]
    note = (
        "Rounds until the mean over clients, of the headline model of a method, first has 95 % of "
        "its own last value, and the last value of Separate with the same seed; counted at rounds "
        "that were evaluated, means over the seeds that reach it (how many, if not all). Sent is "
        "by all clients, down and up, at the run's mean traffic a round."
    )
    return (
        Table("speed", "Rounds and bytes to an accuracy", [note], header, rows, range(2))
        if rows
        else None
    )


def _speed(made: Comparison, entry: ComparisonRow) -> list[str]:
    alone = made.at(entry.scenario, ALONE)
    floor = _last(alone) if alone else {}
    own = {seed: NEAR * value for seed, value in _last(entry).items()}
    return [entry.column, entry.row, *_reached(entry, own), *_reached(entry, floor)]


def _last(entry: ComparisonRow) -> dict[int, float]:
    """Return the last value of each seed."""
    ends = {
        cell["seed"]: values[-1]
        for cell, (_, values) in zip(entry.cells, entry.curve(), strict=True)
        if values
    }
    return {seed: value for seed, value in ends.items() if value is not None}


def _reached(entry: ComparisonRow, targets: dict[int, float]) -> list[str]:
    """Return the seeds' rounds and bytes to the targets, as text."""
    rounds, bytes_ = list[int](), list[float]()
    asked = [
        pair for pair in zip(entry.cells, entry.curve(), strict=True) if pair[0]["seed"] in targets
    ]
    for cell, (numbers, values) in asked:
        if (number := first_at(numbers, values, targets[cell["seed"]])) is not None:
            figures = cell["figures"]
            rounds.append(number)
            bytes_.append(
                (figures["bytes_down"] + figures["bytes_up"]) / figures["rounds"] * number
            )
    found, sent = spread(rounds), spread(bytes_)
    if not found or not sent:
        return [NEVER if asked else "-", "-"]
    of = "" if len(rounds) == len(asked) else f" ({len(rounds)} of {len(asked)})"
    return [f"{found.mean:.1f}{of}", size(sent.mean)]

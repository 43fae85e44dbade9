"""Cost of methods: total bytes and seconds, and rounds, bytes and seconds to a test value."""

from collections.abc import Mapping, Sequence
from typing import Any

from pomona.core.table import PLACEHOLDER, Table
from pomona.metrics.client_statistics import spread
from pomona.metrics.metric import Metric
from pomona.results.comparison import Comparison, ComparisonRow
from pomona.results.run_numbers import SEPARATE
from pomona.results.tables.comparison_tables import as_printed
from pomona.results.wording import size

CONVERGED, TARGET = 0.99, 0.95  # shares of the best value, and of the last one
FLOAT = 4  # bytes
NEVER = "not reached"


def converged(rounds: Sequence[int], values: Sequence[float | None], metric: Metric) -> int | None:
    """Return the first round within 1 % of the best value; None without values."""
    scores = [None if value is None else metric.goodness(value) for value in values]
    best = max((score for score in scores if score is not None), default=0.0)
    return first_reaching(rounds, scores, best - (1 - CONVERGED) * abs(best))


def cost_table(comparison: Comparison) -> Table | None:
    """Return traffic and time of every cell."""
    timed = any(e.printed.minutes for e in comparison.entries)
    label = comparison.reference.label if comparison.reference else ""
    rows = [_line(e, comparison.bench.timing, timed) for e in comparison.entries if e.cells]
    header = ["scenario", "method", "models down", "models up", "sent a client and round"]
    header += ["seconds a round", "seconds", "rounds to 99 %", "seconds to 99 %"]
    header += [f"{label}: minutes", f"{label}: minutes a round"] if timed else []
    titles = " or ".join(metric.title for metric in comparison.metrics)
    note = (
        "Models and bytes (1 MB is 10⁶), down and up, are means over clients and rounds, of the "
        "first seed. Seconds are wall time of training and evaluation where the cells ran, means "
        "over seeds; cells that ran at the same time share the machine. To 99 %: until the mean "
        f"over clients is within 1 % of the method's own best test {titles}."
    )
    return Table("cost", "Cost", [note], header, rows, range(2)) if rows else None


def _line(entry: ComparisonRow, timing: Mapping[str, Sequence[float]], timed: bool) -> list[str]:
    figures = [c["figures"] for c in entry.cells]
    seconds = [list(timing.get(c["folder"], ())) for c in entry.cells]
    converged_at = [converged(*curve, entry.metric) for curve in entry.curve()]
    first = figures[0]
    model = max(1, first["parameters"]) * FLOAT
    visits = max(1, len(first["clients"]) * first["rounds"])
    download, upload = first["bytes_down"] / visits, first["bytes_up"] / visits
    seconds_to = [
        s[e - 1]
        for s, e in zip(seconds, converged_at, strict=True)
        if e is not None and len(s) >= e
    ]
    printed = [as_printed(entry.printed.minutes), as_printed(entry.printed.minutes_a_round)]
    return [
        entry.column,
        entry.row,
        f"{download / model:.2f}",
        f"{upload / model:.2f}",
        size(download + upload),
        _mean([s[-1] / len(s) for s in seconds if s], ".2f"),
        _mean([s[-1] for s in seconds if s], ".1f"),
        _mean(converged_at, ".1f"),
        _mean(seconds_to, ".1f"),
        *(printed if timed else []),
    ]


def _mean(values: Sequence[Any], spec: str) -> str:
    statistics = spread(values)
    return f"{statistics.mean:{spec}}" if statistics else PLACEHOLDER


def first_reaching(
    rounds: Sequence[int], values: Sequence[float | None], target: float
) -> int | None:
    """Return the first round with at least the target; None if it is not reached."""
    return next(
        (r for r, v in zip(rounds, values, strict=True) if v is not None and v >= target), None
    )


def speed_table(comparison: Comparison) -> Table | None:
    """Return rounds and bytes of every cell whose metric is better if higher."""
    rows = [_speed(comparison, e) for e in comparison.entries if e.cells and e.metric.higher]
    header = ["scenario", "method", "rounds to 95 %", "sent to 95 %"]
    header += ["rounds to Separate", "sent to Separate"]
    note = (
        "Rounds until the headline model's mean over clients first reaches 95 % of its own last "
        "value, and the last value of Separate with the same seed: means over the seeds that reach "
        "it (how many, if not all). Sent: the traffic of all clients by then, down and up."
    )
    title = "Rounds and bytes to a value"
    return Table("speed", title, [note], header, rows, range(2)) if rows else None


def _speed(comparison: Comparison, entry: ComparisonRow) -> list[str]:
    baseline = comparison.entry(entry.scenario, SEPARATE)
    floor = _last_values(baseline) if baseline else {}
    targets = {seed: TARGET * value for seed, value in _last_values(entry).items()}
    return [entry.column, entry.row, *_reached(entry, targets), *_reached(entry, floor)]


def _last_values(entry: ComparisonRow) -> dict[int, float]:
    """Return the last value of each seed."""
    finals = {
        cell["seed"]: values[-1]
        for cell, (_, values) in zip(entry.cells, entry.curve(), strict=True)
        if values
    }
    return {seed: value for seed, value in finals.items() if value is not None}


def _reached(entry: ComparisonRow, targets: dict[int, float]) -> list[str]:
    """Return the seeds' rounds and bytes to the targets, as text."""
    rounds, bytes_ = list[int](), list[float]()
    pairs = zip(entry.cells, entry.curve(), strict=True)
    cells = [(cell, curve) for cell, curve in pairs if cell["seed"] in targets]
    for cell, curve in cells:
        if (number := first_reaching(*curve, targets[cell["seed"]])) is not None:
            figures = cell["figures"]
            rounds.append(number)
            sent = figures["bytes_down"] + figures["bytes_up"]
            bytes_.append(sent / figures["rounds"] * number)
    rounds_spread, bytes_spread = spread(rounds), spread(bytes_)
    if not rounds_spread or not bytes_spread:
        return [NEVER if cells else "-", "-"]
    count = "" if len(rounds) == len(cells) else f" ({len(rounds)} of {len(cells)})"
    return [f"{rounds_spread.mean:.1f}{count}", size(bytes_spread.mean)]

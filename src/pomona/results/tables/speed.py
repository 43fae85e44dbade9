"""Rounds and bytes to reach an accuracy: 95 % of a method's own last one, and the final one of local training."""

from collections.abc import Sequence

from pomona.core.table import Table
from pomona.metrics.client_statistics import spread
from pomona.results.comparison import Comparison, ComparisonRow
from pomona.results.run_numbers import ALONE

SHARE = 0.95
NEVER = "not reached"


def first_at(rounds: Sequence[int], values: Sequence[float | None], target: float) -> int | None:
    """Return the first round with at least the target; None if it is not reached."""
    return next((r for r, v in zip(rounds, values, strict=True) if v is not None and v >= target), None)


def speed_table(made: Comparison) -> Table | None:
    """Return rounds and megabytes of every cell whose metric is better if higher."""
    rows = [_line(made, e) for e in made.entries if e.cells and e.metric.higher]
    header = ["scenario", "method", "rounds to 95 %", "MB to 95 %", "rounds to Separate", "MB to Separate"]
    note = (
        "Rounds until the mean over clients, of the headline model of a method, first has 95 % of its own last "
        "value, and the last value of Separate with the same seed; counted at rounds that were evaluated, means over "
        "the seeds that reach it (how many, if not all). Megabytes (10⁶ bytes) are those of all clients, down and up, "
        "at the run's mean traffic a round."
    )
    return Table("speed", "Rounds and bytes to an accuracy", [note], header, rows, range(2)) if rows else None


def _line(made: Comparison, entry: ComparisonRow) -> list[str]:
    alone = made.at(entry.scenario, ALONE)
    floor = _last(alone) if alone else {}
    own = {seed: SHARE * value for seed, value in _last(entry).items()}
    return [entry.column, entry.row, *_reached(entry, own), *_reached(entry, floor)]


def _last(entry: ComparisonRow) -> dict[int, float]:
    """Return the last value of each seed."""
    ends = {cell["seed"]: values[-1] for cell, (_, values) in zip(entry.cells, entry.curve(), strict=True) if values}
    return {seed: value for seed, value in ends.items() if value is not None}


def _reached(entry: ComparisonRow, targets: dict[int, float]) -> list[str]:
    """Return the seeds' rounds and megabytes to the targets, as text."""
    rounds, bytes_ = list[int](), list[float]()
    asked = [pair for pair in zip(entry.cells, entry.curve(), strict=True) if pair[0]["seed"] in targets]
    for cell, (numbers, values) in asked:
        if (number := first_at(numbers, values, targets[cell["seed"]])) is not None:
            figures = cell["figures"]
            rounds.append(number)
            bytes_.append((figures["bytes_down"] + figures["bytes_up"]) / figures["rounds"] * number / 1e6)
    found, sent = spread(rounds), spread(bytes_)
    if not found or not sent:
        return [NEVER if asked else "-", "-"]
    of = "" if len(rounds) == len(asked) else f" ({len(rounds)} of {len(asked)})"
    return [f"{found.mean:.1f}{of}", f"{sent.mean:.3g}"]

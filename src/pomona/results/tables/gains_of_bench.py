"""Table of the gain of each method of a bench over training alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from pomona.core.errors import listed
from pomona.core.table import Table
from pomona.experiments import bench_gains
from pomona.results.comparison import Comparison, ComparisonRow
from pomona.results.gain_presentation import MINUS
from pomona.results.run_numbers import SEPARATE


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
        "Where an "
        "interval includes 0, there is no significant difference; verdicts are "
        "corrected for the lines of their scenario (Holm)."
    )
    by_reason: dict[str, list[str]] = {}
    for entry, row in compared:
        if row["reason"]:
            by_reason.setdefault(row["reason"], []).append(f"{entry.row} in {entry.column}")
    notes = [note] if rows else []
    notes += _sides(compared)
    notes += [f"Not compared: {listed(names)}: {reason}." for reason, names in by_reason.items()]
    header = ["scenario", "method", "seeds", "gain", "95 % interval", "on average"]
    if compared:
        return Table("gains", "Does it beat training alone?", notes, header, rows, {0, 1, 5})
    return None


def _sides(compared: Sequence[tuple[ComparisonRow, Mapping[str, Any]]]) -> list[str]:
    """Name the models that the gains compare, with their rounds."""
    by_text: dict[str, list[str]] = {}
    for entry, row in compared:
        if row["judged"] and row["base"]:
            text = f"{row['judged']}, against {row['base']}"
            by_text.setdefault(text, []).append(f"{entry.row} in {entry.column}")
    return [f"Compared on test data, {listed(names)}: {text}." for text, names in by_text.items()]

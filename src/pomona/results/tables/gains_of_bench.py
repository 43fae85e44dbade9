"""Table of what each method of a bench gains over training alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from pomona.core.errors import listed
from pomona.core.table import Table
from pomona.experiments import bench_gains
from pomona.results.comparison import Comparison, ComparisonRow
from pomona.results.gain_presentation import MINUS
from pomona.results.run_numbers import ALONE


def gains_table(made: Comparison) -> Table | None:
    """Return gains with intervals, and why others have none; None if no other method has a result.

    It has no rows where no gain is defined.
    """
    every = bench_gains.rows(made.bench.results, made.gained)
    found = [
        (entry, row)
        for entry, row in zip(made.entries, every, strict=True)
        if entry.method != ALONE and entry.cells
    ]
    rows = [
        [
            entry.column,
            entry.row,
            str(row["seeds"]),
            *(text.replace("-", MINUS) for text in bench_gains.gain_cells(row, entry.metric)),
        ]
        for entry, row in found
        if row["gain"] is not None
    ]
    note = (
        "Gain over Separate, mean over clients and seeds, in the last round (with keep=best in the "
        "one best on validation), of the same test samples; more than 0 is better. Where an "
        "interval holds 0, there is no difference that these data can show; verdicts are corrected "
        "for the lines of their scenario (Holm)."
    )
    without: dict[str, list[str]] = {}
    for entry, row in found:
        if row["reason"]:
            without.setdefault(row["reason"], []).append(f"{entry.row} in {entry.column}")
    notes = [note] if rows else []
    notes += _sides(found)
    notes += [
        f"Not compared: {listed(names)}, here and in “Gain by client”: {reason}."
        for reason, names in without.items()
    ]
    header = ["scenario", "method", "seeds", "gain", "95 % interval", "on average"]
    return (
        Table("gains", "Does it beat training alone?", notes, header, rows, {0, 1, 5})
        if found
        else None
    )


def _sides(found: Sequence[tuple[ComparisonRow, Mapping[str, Any]]]) -> list[str]:
    """Name the models that the gains compare, with their rounds."""
    each: dict[str, list[str]] = {}
    for entry, row in found:
        if row["judged"] and row["base"]:
            text = f"{row['judged']}, against {row['base']}"
            each.setdefault(text, []).append(f"{entry.row} in {entry.column}")
    return [f"Compared on test data, {listed(names)}: {text}." for text, names in each.items()]

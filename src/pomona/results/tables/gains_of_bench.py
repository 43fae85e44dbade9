"""Table of what each method of a bench gains over training alone."""

from pomona.core.table import Table
from pomona.experiments import bench_gains
from pomona.results.comparison import Comparison
from pomona.results.gain_presentation import MINUS
from pomona.results.run_numbers import ALONE


def gains_table(made: Comparison) -> Table | None:
    """Return gains with intervals; None where no gain is defined, or the runs' folders lack."""
    bench, entries = made.bench, {(e.scenario, e.method): e for e in made.entries}
    found = [
        (entries[row["scenario"], row["method"]], row)
        for row in bench_gains.rows(bench.folder, bench.results, ALONE)
        if row["gain"] is not None
    ]
    rows = [
        [
            entry.column,
            entry.row,
            str(row["seeds"]),
            *(text.replace("-", MINUS) for text in bench_gains.shown(row, entry.metric)),
        ]
        for entry, row in found
    ]
    note = (
        "Gain over Separate, mean over clients and seeds, in the last round, of the same test "
        "samples; more than 0 is better. Where an interval holds 0, there is no difference that "
        "these data can show. A method is missing where each seed has other test samples: save the "
        "partition."
    )
    header = ["scenario", "method", "seeds", "gain", "95 % interval", "on average"]
    return (
        Table("gains", "Does it beat training alone?", [note], header, rows, {0, 1, 5})
        if rows
        else None
    )

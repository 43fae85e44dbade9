"""Table of what each method of a bench gains over training alone."""

from pomona.core.table import NOTHING, Table
from pomona.experiments import bench_gains
from pomona.results.comparison import Comparison
from pomona.results.gain_presentation import MINUS
from pomona.results.run_numbers import ALONE


def gains_table(made: Comparison) -> Table | None:
    """Return gains with intervals; None where no gain is defined, or the runs' folders lack."""
    bench, entries = made.bench, {(e.scenario, e.method): e for e in made.entries}
    rows = []
    for row in bench_gains.rows(bench.folder, bench.results, ALONE):
        entry = entries.get((row["scenario"], row["method"]))
        if entry is None or row["gain"] is None:
            continue
        ends = [row[end] for end in ("low", "high") if row[end] is not None]
        numbers = [entry.metric.number(n, "+").replace("-", MINUS) for n in (row["gain"], *ends)]
        rows.append(
            [
                entry.column,
                entry.row,
                str(row["seeds"]),
                numbers[0],
                " to ".join(numbers[1:]) or NOTHING,
                row["verdict"],
            ]
        )
    header = ["scenario", "method", "seeds", "gain", "95 % interval", "on average"]
    note = (
        "Gain over Separate, mean over clients and seeds, in the last round, of the same test "
        "samples; more than 0 is better. Where an interval holds 0, there is no difference that "
        "these data can show. A method is missing where each seed has other test samples: save the "
        "partition."
    )
    return (
        Table("gains", "Does it beat training alone?", [note], header, rows, {0, 1, 5})
        if rows
        else None
    )

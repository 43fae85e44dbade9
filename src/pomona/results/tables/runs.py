"""Single runs side by side, as a table for the terminal, Markdown or LaTeX."""

from collections.abc import Callable, Sequence
from typing import Any

from pomona.core.table import NOTHING, Table
from pomona.metrics.metric import ACCURACY, LOSS, metric_named
from pomona.results.summary_table import distinct


def run_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the rows of ``pomona.results.table``, each in its metric, with headline models marked.

    If runs differ in their metric or training loss, a column names it, since different losses are not comparable.
    """
    shown = distinct(list(rows))
    metrics = list(dict.fromkeys(metric_named(row["metric"]) for row in shown))
    tenth = "10th pct." if all(metric.higher for metric in metrics) else "10th/90th pct."
    counted = {
        "last": "last",
        "best val.": "test_at_best_validation",
        "BMCTA" if metrics == [ACCURACY] else "best test": "best_on_test",
        "all samples": "pooled",
        "worst": "worst",
        tenth: "percentile_10",
    }
    if not any(metric.pools for metric in metrics):
        del counted["all samples"]
    words: dict[str, Callable[[dict[str, Any]], str]] = {
        "method": _named,
        "model": lambda row: row["model"],
        "when": lambda row: row["when"],
    }
    if len(metrics) > 1:
        words["metric"] = lambda row: metric_named(row["metric"]).heading
    if len({row["loss_name"] for row in shown}) > 1:
        words["minimises"] = lambda row: row["loss_name"] or NOTHING
    lines = [
        [
            *(told(row) for told in words.values()),
            *(metric_named(row["metric"]).number(row[key]) for key in counted.values()),
            LOSS.number(row["loss"]),
            NOTHING if row["bytes_down"] is None else f"{(row['bytes_down'] + row['bytes_up']) / 1e6:,.2f}",
            NOTHING if row["seconds"] is None else f"{row['seconds']:.1f}",
        ]
        for row in shown
    ]
    title = f"Test {metrics[0].heading}" if len(metrics) == 1 else "On test data, each run in its own metric"
    pooled = " (all samples: over samples)" if "all samples" in counted else ""
    best = "BMCTA: best mean client test accuracy, as papers report" if metrics == [ACCURACY] else "which is optimistic"
    note = (
        f"Means over clients{pooled}: in the last round, in the round best on validation, in the round best on test "
        f"({best}). Spread and loss: last round; “{tenth}”: a percentile of the clients. MB: traffic down "
        "and up. Bold: the model that the method's paper reports."
    )
    header = [*words, *counted, "loss", "MB", "seconds"]
    marked = frozenset((i, 0) for i, row in enumerate(shown) if row["headline"])
    return Table("runs", title, [note], header, lines, range(len(words)), marked)


def _named(row: dict[str, Any]) -> str:
    return str(row["run"]) if row["finished"] else f"{row['run']} (unfinished, round {row['round']})"

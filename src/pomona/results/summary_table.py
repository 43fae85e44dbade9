"""The summary of runs, one row per named model, for tables, pages and notebooks."""

from collections.abc import Callable, Sequence
from typing import Any

from pomona.core.table import NOTHING, Table
from pomona.metrics.metric import ACCURACY, LOSS, Metric, metric_named
from pomona.metrics.nan_safe import mean_of_known
from pomona.record.result import Result
from pomona.record.run_summary import best_and_spread
from pomona.results.run_numbers import Key, Run, finished, runs, views
from pomona.results.wording import size


def table(results: list[Result]) -> list[dict[str, Any]]:
    """Return the named summary numbers, one row per run and named model.

    ``metric`` is the run's headline metric; all values except ``best_validation`` are on the test
    split, None if undefined. ``last``, ``test_at_best_validation`` (in the best validation round,
    whose validation value is ``best_validation``) and ``best_on_test`` (best over rounds; with
    accuracy the papers' BMCTA) are means over clients; ``pooled`` (all test samples together; None
    for a metric that is not a mean over samples), ``worst``, ``percentile_10`` and ``loss`` (mean
    over clients, of the loss in ``loss_name``) are for the last round evaluated. Bytes and seconds
    are totals over all recorded rounds and clients.
    """
    rows: list[dict[str, Any]] = []
    for run in runs(results):
        keys = views(run.result)
        rows += [_row(run, key, headline=position == 0) for position, key in enumerate(keys)]
    return rows


def _row(run: Run, key: Key, *, headline: bool) -> dict[str, Any]:
    result = run.result
    last = result.curve(*key)[-1]
    return {
        "run": run.label,
        "method": result.name,
        "model": key[0],
        "when": key[1],
        "headline": headline,
        "finished": finished(result),
        "metric": run.metric.name,
        "clients": len(last.clients),
        "round": last.round,
        "last": last.mean,
        **_over_clients(run, key),
        "loss": mean_of_known(last.loss),
        "loss_name": run.loss,
        "bytes_down": sum(sum(r.bytes_down) for r in result.rounds),
        "bytes_up": sum(sum(r.bytes_up) for r in result.rounds),
        "seconds": float(sum(r.seconds for r in result.rounds)),
    }


def _over_clients(run: Run, key: Key) -> dict[str, Any]:
    """Return the best rounds on validation and on test, and the worst client and the 10th
    percentile of the last round, of the clients that were ever evaluated on test data.
    """
    test = run.result.curve(*key)
    clients = sorted({client for e in test for client in e.clients})
    best, spread = best_and_spread(run.result, *key, clients)
    worst = spread["worst"]
    moments = (
        ("best_validation", best.best_validation, "validation"),
        ("test_at_best_validation", best.best_validation, "test"),
        ("validation_round", best.best_validation, "round"),
        ("best_on_test", best.best_test, "test"),
        ("test_round", best.best_test, "round"),
    )
    last = test[-1].by_client(test[-1].value, clients)
    return {
        **{name: moment and getattr(moment, what) for name, moment, what in moments},
        "pooled": test[-1].pooled,
        "worst": worst,
        "worst_client": None if worst is None else run.client(clients[last.index(worst)]),
        "percentile_10": spread["percentile_10"],
    }


def distinct(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Remove repeated models: FedAvg-FT trains the same global model as FedAvg."""

    def figures(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(
            row[k]
            for k in (
                "model",
                "when",
                "metric",
                "last",
                "best_on_test",
                "worst",
                "loss",
                "loss_name",
            )
        )

    seen, kept = {figures(row) for row in rows if row["headline"]}, []
    for row in rows:
        if row["headline"] or figures(row) not in seen:
            kept.append(row)
            seen.add(figures(row))
    return kept


def run_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the rows of ``pomona.results.table``, each in its metric, with headline models marked.

    If runs differ in their metric or training loss, a column names it, since different losses are
    not comparable.
    """
    shown = distinct(list(rows))
    metrics = list(dict.fromkeys(metric_named(row["metric"]) for row in shown))
    words, numbers = _word_columns(shown, len(metrics) > 1), _number_columns(metrics)
    lines = [
        [
            *(told(row) for told in words.values()),
            *(metric_named(row["metric"]).number(row[key]) for key in numbers.values()),
            *_costs(row),
        ]
        for row in shown
    ]
    title = (
        f"Test {metrics[0].heading}"
        if len(metrics) == 1
        else "On test data, each run in its own metric"
    )
    header = [*words, *numbers, "loss", "sent", "seconds"]
    marked = frozenset((i, 0) for i, row in enumerate(shown) if row["headline"])
    return Table("runs", title, [_run_note(metrics)], header, lines, range(len(words)), marked)


def _word_columns(
    rows: Sequence[dict[str, Any]], several: bool
) -> dict[str, Callable[[dict[str, Any]], str]]:
    """Return the columns of text; ``several``: whether there are several metrics, so that each row
    names its own.
    """
    words: dict[str, Callable[[dict[str, Any]], str]] = {
        "method": _named,
        "model": lambda row: row["model"],
        "when": lambda row: row["when"],
    }
    if several:
        words["metric"] = lambda row: metric_named(row["metric"]).heading
    if len({row["loss_name"] for row in rows}) > 1:
        words["minimises"] = lambda row: row["loss_name"] or NOTHING
    return words


def _number_columns(metrics: Sequence[Metric]) -> dict[str, str]:
    """Return the columns of the metric, with their keys."""
    pooled = {"all samples": "pooled"} if any(metric.pools for metric in metrics) else {}
    return {
        "last": "last",
        "best val.": "test_at_best_validation",
        "BMCTA" if metrics == [ACCURACY] else "best test": "best_on_test",
        **pooled,
        "worst": "worst",
        _tenth(metrics): "percentile_10",
    }


def _tenth(metrics: Sequence[Metric]) -> str:
    return "10th pct." if all(metric.higher for metric in metrics) else "10th/90th pct."


def _costs(row: dict[str, Any]) -> list[str]:
    down, up, seconds = row["bytes_down"], row["bytes_up"], row["seconds"]
    return [
        LOSS.number(row["loss"]),
        NOTHING if down is None else size(down + up),
        NOTHING if seconds is None else f"{seconds:.1f}",
    ]


def _run_note(metrics: Sequence[Metric]) -> str:
    pooled = " (all samples: over samples)" if any(metric.pools for metric in metrics) else ""
    best = (
        "BMCTA: best mean client test accuracy, as papers report"
        if metrics == [ACCURACY]
        else "which is optimistic"
    )
    return (
        f"Means over clients{pooled}: in the last round, in the round best on validation, in the "
        f"round best on test ({best}). Spread and loss: last round; “{_tenth(metrics)}”: a "
        "percentile of the clients. Sent: down and up, 1 MB is 10⁶ bytes. Bold: the model that the "
        "method's paper reports."
    )


def _named(row: dict[str, Any]) -> str:
    return (
        str(row["run"]) if row["finished"] else f"{row['run']} (unfinished, round {row['round']})"
    )

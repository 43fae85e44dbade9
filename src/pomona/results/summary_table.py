"""The summary of runs, one row per named model, for tables, pages and notebooks."""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from pomona.core.table import PLACEHOLDER, Table
from pomona.metrics.metric import ACCURACY, LOSS, Metric, metric_named
from pomona.metrics.nan_safe import mean_of_known
from pomona.record.headline import Key, finished, views
from pomona.record.result import Result
from pomona.record.run_summary import best_and_spread
from pomona.results.gain_presentation import Gains, over_training_alone
from pomona.results.run_numbers import Run, runs
from pomona.results.wording import size


def table(results: list[Result]) -> list[dict[str, Any]]:
    """Return the named summary numbers, one row per run and named model.

    ``metric`` is the run's headline metric; all values except ``best_validation`` are on the test
    split, None if undefined. ``judged`` is what gains compare, in ``judged_round``: with keep=best
    the round best on validation, else the last; None for models other than the headline one.
    ``last``, ``test_at_best_validation`` (in the best validation round,
    whose validation value is ``best_validation``) and ``best_on_test`` (best over rounds; with
    accuracy the papers' BMCTA) are means over clients; ``pooled`` (all test samples together; None
    for a metric that is not a mean over samples), ``worst``, ``percentile_10`` and ``loss`` (mean
    over clients, of the loss in ``loss_name``) are for the last round evaluated. Bytes and seconds
    are totals over all recorded rounds and clients. Private runs have ``epsilon``, the largest of a
    client (None: no bound), at ``delta``, for one ``unit`` of its training data, and where others'
    noise counts ``epsilon_alone``, by own noise alone; where a row is the unit and groups have
    several, ``epsilon_group``, for the ``group_rows`` of the largest group.
    """
    rows: list[dict[str, Any]] = []
    for run in runs(results):
        keys = views(run.result)
        rows += [_row(run, key, headline=position == 0) for position, key in enumerate(keys)]
    return rows


def _row(run: Run, key: Key, *, headline: bool) -> dict[str, Any]:
    result = run.result
    last, judged = result.curve(*key)[-1], run.reported if headline else None
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
        "judged": judged and judged.mean,
        "judged_round": judged and judged.round,
        **_over_clients(run, key),
        "loss": mean_of_known(last.loss),
        "loss_name": run.loss,
        "bytes_down": sum(sum(r.bytes_down) for r in result.rounds),
        "bytes_up": sum(sum(r.bytes_up) for r in result.rounds),
        "seconds": float(sum(r.seconds for r in result.rounds)),
        **_privacy(result),
    }


def _privacy(result: Result) -> dict[str, Any]:
    """Return the largest epsilon of a client with delta and unit, and that by own noise alone if
    others' noise counts; empty without privacy.
    """
    account = result.summary.get("privacy")
    if not account:
        return {}
    epsilon = None if account["void"] else account["epsilon"]
    own_noise = account.get("alone")
    largest = None if account["void"] or not own_noise or None in own_noise else max(own_noise)
    added = {"epsilon_alone": largest} if own_noise else {}
    return {
        "epsilon": epsilon,
        "delta": account["delta"],
        "unit": account.get("unit", "row"),
        **added,
        **_of_groups(account),
    }


def _of_groups(account: dict[str, Any]) -> dict[str, Any]:
    """Return the most training rows of one group and the epsilon for so many together, the largest
    of a client; empty unless rows are the unit and groups have several.
    """
    if not (groups := account.get("groups")):
        return {}
    unbounded = account["void"] or None in groups["clients"]
    return {
        "group_rows": max(groups["rows"]),
        "epsilon_group": None if unbounded else max(groups["clients"]),
    }


def _over_clients(run: Run, key: Key) -> dict[str, Any]:
    """Return the best rounds on validation and on test, and the worst client and the 10th
    percentile of the last round, over all clients ever evaluated on test data.
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
        **{name: moment and getattr(moment, attribute) for name, moment, attribute in moments},
        "pooled": test[-1].pooled,
        "worst": worst,
        "worst_client": None if worst is None else run.client(clients[last.index(worst)]),
        "percentile_10": spread["percentile_10"],
    }


def gain_columns(prepared: list[Run], cautions: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return by a run's label its mean gain over training alone (None without one) with its verdict
    among all runs, the compared models, and cautions on the comparison.
    """
    # the runs of several seeds have the gain over seeds
    by_label = {
        run.label: gains
        for gains in over_training_alone(prepared)
        for run in gains.run.seeds or (gains.run,)
    }
    return {
        run.label: _gain_of(by_label.get(run.label)) | {"cautions": [*cautions]} for run in prepared
    }


def _gain_of(gains: Gains | None) -> dict[str, Any]:
    gain = gains.mean if gains else None
    return {
        "gain": gain and gain.value,
        "gain_low": gain and gain.low,
        "gain_high": gain and gain.high,
        "gain_verdict": gains and gains.verdict,
        "gain_over": gains.base.label if gains and gain else None,
        "gain_judged": gain and gain.model,
        "gain_base": gain and gain.base_model,
    }


def distinct(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Remove repeated models: FedAvg-FT trains the same global model as FedAvg."""
    columns = ("model", "when", "metric", "last", "best_on_test", "worst", "loss", "loss_name")
    figures = itemgetter(*columns)
    headlines, unique = {figures(row) for row in rows if row["headline"]}, []
    for row in rows:
        if row["headline"] or figures(row) not in headlines:
            unique.append(row)
            headlines.add(figures(row))
    return unique


def run_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the rows of ``pomona.results.table``, each in its metric, with headline models marked.

    If runs differ in their metric or training loss, a column names it, since different losses are
    not comparable.
    """
    selected = distinct(list(rows))
    metrics = list(dict.fromkeys(metric_named(row["metric"]) for row in selected))
    texts, numbers = _word_columns(selected, len(metrics) > 1), _number_columns(metrics)
    private = any("epsilon" in row for row in selected)
    lines = [
        [
            *(text(row) for text in texts.values()),
            *(metric_named(row["metric"]).number(row[key]) for key in numbers.values()),
            *[_epsilon(row)] * private,
            *_costs(row),
        ]
        for row in selected
    ]
    title = "On test data, each run in its own metric"
    if len(metrics) == 1:
        title = f"Test {metrics[0].heading}"
    header = [*texts, *numbers, *["epsilon"] * private, "loss", "sent", "seconds"]
    bold = [(i, 0) for i, row in enumerate(selected) if row["headline"]]
    bold += [
        (i, len(texts) + list(numbers.values()).index(key))
        for i, row in enumerate(selected)
        if (key := _judged(row))
    ]
    marked = frozenset(bold)
    return Table("runs", title, [_run_note(metrics)], header, lines, range(len(texts)), marked)


def _word_columns(
    rows: Sequence[dict[str, Any]], several: bool
) -> dict[str, Callable[[dict[str, Any]], str]]:
    """Return the columns of text; ``several``: whether there are several metrics, so that each row
    names its own.
    """
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "method": _run_name,
        "model": lambda row: row["model"],
        "when": lambda row: row["when"],
    }
    if several:
        columns["metric"] = lambda row: metric_named(row["metric"]).heading
    if len({row["loss_name"] for row in rows}) > 1:
        columns["minimises"] = lambda row: row["loss_name"] or PLACEHOLDER
    return columns


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


def _judged(row: dict[str, Any]) -> str:
    """Return the key of the column with the value that gains compare; empty without one."""
    rounds = {"last": row["round"], "test_at_best_validation": row.get("validation_round")}
    judged = row.get("judged_round")
    return next((key for key, number in rounds.items() if judged and number == judged), "")


def _tenth(metrics: Sequence[Metric]) -> str:
    percentiles = {"10th" if metric.higher else "90th" for metric in metrics}
    return f"{'/'.join(sorted(percentiles))} pct."


def _epsilon(row: dict[str, Any]) -> str:
    """Return a run's epsilon with its delta and unit, in one cell."""
    if "epsilon" not in row:
        return "no privacy"
    if row["epsilon"] is None:
        return "no bound"
    own_noise = row.get("epsilon_alone")
    summed = "" if own_noise is None else f" in sums, {own_noise:.3g} by own noise alone"
    bound = f"{row['epsilon']:.3g}{summed} (delta {row['delta']:g}, one {row['unit']})"
    return f"{bound}{_group_text(row)}"


def _group_text(row: dict[str, Any]) -> str:
    if "group_rows" not in row:
        return ""
    epsilon = row["epsilon_group"]
    bound = "no bound" if epsilon is None else f"{epsilon:.3g}"
    return f", {bound} for all rows of a group, up to {row['group_rows']}"


def _costs(row: dict[str, Any]) -> list[str]:
    download, upload, seconds = row["bytes_down"], row["bytes_up"], row["seconds"]
    return [
        LOSS.number(row["loss"]),
        PLACEHOLDER if download is None else size(download + upload),
        PLACEHOLDER if seconds is None else f"{seconds:.1f}",
    ]


def _run_note(metrics: Sequence[Metric]) -> str:
    pooled = " (all samples: over samples)" if any(metric.pools for metric in metrics) else ""
    best = "which is optimistic"
    if metrics == [ACCURACY]:
        best = "BMCTA: best mean client test accuracy, as papers report"
    return (
        f"Means over clients{pooled}: last round, round best on validation, round best on test "
        f"({best}). Spread and loss: last round; “{_tenth(metrics)}”: a percentile of the clients. "
        "Sent: down and up, 1 MB is 10⁶ bytes. Seconds: of training, not of evaluation. Bold: the "
        "headline model, and its value in gains."
    )


def _run_name(row: dict[str, Any]) -> str:
    suffix = "" if row["finished"] else f" (unfinished, round {row['round']})"
    return f"{row['run']}{suffix}"

"""The summary of runs, one row per named model, for tables, pages and notebooks."""

from typing import Any

from pomona.metrics.client_statistics import best_rounds, summarize
from pomona.metrics.nan_safe import mean_of_known
from pomona.record.result import Result
from pomona.record.rows import Evaluation
from pomona.results.run_numbers import Key, Run, finished, runs, views


def table(results: list[Result]) -> list[dict[str, Any]]:
    """Return the named summary numbers, one row per run and named model.

    ``metric`` is the run's headline metric; all values except ``best_validation`` are on the test split, None if
    undefined. ``last``, ``test_at_best_validation`` (in the best validation round, whose validation value is
    ``best_validation``) and ``best_on_test`` (best over rounds; with accuracy the papers' BMCTA) are means over
    clients; ``pooled`` (all test samples together; None for a metric that is not a mean over samples), ``worst``,
    ``percentile_10`` and ``loss`` (mean over clients, of the loss in ``loss_name``) are for the last round evaluated.
    Bytes and seconds are totals over all recorded rounds and clients.
    """
    rows: list[dict[str, Any]] = []
    for run in runs(results):
        keys = views(run.result)
        rows += [_row(run, key, headline=position == 0) for position, key in enumerate(keys)]
    return rows


def _row(run: Run, key: Key, *, headline: bool) -> dict[str, Any]:
    result, metric = run.result, run.metric
    test = result.curve(*key)
    last = test[-1]
    held_out = {e.round: e for e in result.curve(*key, "validation")}
    clients = sorted({c for e in test for c in e.clients})

    def each(evaluation: Evaluation | None, what: str = "value") -> list[float | None]:
        return evaluation.by_client(getattr(evaluation, what), clients) if evaluation else [None] * len(clients)

    tested = [each(e) for e in test]
    seen = [held_out.get(e.round) for e in test]
    samples = [s or 0 for s in last.by_client(last.samples, clients)]
    best = best_rounds(
        [e.round for e in test], tested, samples, [each(e) for e in seen], metric, [each(e, "loss") for e in seen]
    )
    over_clients = summarize(tested[-1], samples, metric=metric)
    worst = over_clients["worst"]
    return {
        "run": run.label,
        "method": result.name,
        "model": key[0],
        "when": key[1],
        "headline": headline,
        "finished": finished(result),
        "metric": metric.name,
        "clients": len(last.clients),
        "round": last.round,
        "last": last.mean,
        "best_validation": best.best_validation and best.best_validation.validation,
        "test_at_best_validation": best.best_validation and best.best_validation.test,
        "validation_round": best.best_validation and best.best_validation.round,
        "best_on_test": best.best_test and best.best_test.test,
        "test_round": best.best_test and best.best_test.round,
        "pooled": last.pooled,
        "worst": worst,
        "worst_client": None if worst is None else run.client(clients[tested[-1].index(worst)]),
        "percentile_10": over_clients["percentile_10"],
        "loss": mean_of_known(last.loss),
        "loss_name": run.loss,
        "bytes_down": sum(sum(r.bytes_down) for r in result.rounds),
        "bytes_up": sum(sum(r.bytes_up) for r in result.rounds),
        "seconds": float(sum(r.seconds for r in result.rounds)),
    }


def distinct(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Remove repeated models: FedAvg-FT trains the same global model as FedAvg."""

    def figures(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[k] for k in ("model", "when", "metric", "last", "best_on_test", "worst", "loss", "loss_name"))

    seen, kept = {figures(row) for row in rows if row["headline"]}, []
    for row in rows:
        if row["headline"] or figures(row) not in seen:
            kept.append(row)
            seen.add(figures(row))
    return kept

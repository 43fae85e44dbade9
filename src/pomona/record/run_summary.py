"""Summary of a run: metric over clients and rounds, traffic and time, as in ``summary.json``."""

from collections.abc import Iterable, Sequence
from typing import Any

from pomona.core.training_settings import Stop
from pomona.metrics.best_round import Point, best, reason
from pomona.metrics.client_statistics import At, best_rounds, summarize
from pomona.metrics.nan_safe import mean_of_known
from pomona.record.result import Result
from pomona.record.rows import Evaluation

FAR = 10.0
"""Factor over the initial loss, or over that of a constant prediction, from which training counts
as diverging.
"""


def summarise(result: Result, seconds: float) -> dict[str, Any]:
    """Summarise a finished run.

    ``metric`` is the metric of all values; ``minimised`` the name of the loss, without which losses
    cannot be compared. ``models`` has one entry per named model ("personal, trained"): ``last``,
    ``best_validation`` (and its criterion, ``chosen_by``), ``best_test`` (the papers' BMCTA) and
    ``best_test_pooled`` (BTA), each with its ``round``, the metric on ``test`` after it and, except
    for BTA, on ``validation``, means over clients: a hyperparameter search optimises
    ``["best_validation"]["validation"]``; ``clients``, the spread over clients, ``loss`` and
    ``accuracy``, their means over clients, in the last round. ``stopped`` is the reason for an
    early end, otherwise empty. ``diverging`` is the reason to consider the loss diverging,
    otherwise empty. ``unseen`` has the test values of clients that did not train, by client and
    named model, and their mean. Bytes are those of training; downloads for evaluation only are
    excluded.
    """
    n = len(result.about["clients"])
    named = sorted({(e.model, e.when) for e in result.evaluations})
    models = {f"{model}, {when}": _outcome(result, model, when, n) for model, when in named}
    return {
        "method": result.name,
        "headline": ", ".join(result.about["headline"]),
        "metric": result.metric.name,
        "minimised": (result.config.get("model") or {}).get("loss", "auto"),
        "diverging": diverging(result),
        "stopped": stopped(result),
        "rounds": len(result.rounds),
        "models": {name: outcome for name, outcome in models.items() if outcome},
        "unseen": _unseen(result.unseen),
        "bytes_down": sum(sum(r.bytes_down) for r in result.rounds),
        "bytes_up": sum(sum(r.bytes_up) for r in result.rounds),
        "seconds": seconds,
    }


def _outcome(result: Result, model: str, when: str, n: int) -> dict[str, Any] | None:
    test = result.curve(model, when, "test")
    if not test:
        return None
    last, metric = test[-1], result.metric
    values = [e.by_client(e.value, range(n)) for e in test]
    samples = [s or 0 for s in last.by_client(last.samples, range(n))]
    seen = {e.round: e for e in result.curve(model, when, "validation")}
    held_out, losses = zip(*(_held_out(seen.get(e.round), n) for e in test), strict=True)
    found = best_rounds([e.round for e in test], values, samples, held_out, metric, losses)
    return {
        **{name: at._asdict() if isinstance(at, At) else at for name, at in vars(found).items()},
        "clients": summarize(values[-1], samples, metric=metric),
        "loss": mean_of_known(last.loss),
        "accuracy": last.accuracy_mean,
    }


def _held_out(
    validation: Evaluation | None, n: int
) -> tuple[list[float | None], list[float | None]]:
    """Return values and losses of n clients; None without an evaluation."""
    if validation is None:
        return [None] * n, [None] * n
    return validation.by_client(validation.value, range(n)), validation.by_client(
        validation.loss, range(n)
    )


def stopped(result: Result) -> str:
    """Return the reason why a run ended before all its rounds; otherwise empty."""
    last, said = len(result.rounds), result.config.get("stop")
    if not said or last >= int(result.config.get("rounds") or last):
        return ""
    stop = Stop.model_validate(said)
    model, when = headline(result)
    curve = result.curve(model, when, "validation")
    # a received model is evaluated one round later
    known = [e for e in curve if e.round < last or when == "trained"]
    points = [Point(e.round, mean_of_known(e.value), mean_of_known(e.loss)) for e in known]
    found = best(points, result.metric, stop.min_gain)
    return reason(found, last) if found and found.since >= stop.patience else ""


def headline(result: Result) -> tuple[str, str]:
    """Return the headline model and its moment; empty names if they are not on record."""
    model, when = result.about.get("headline") or ("", "")
    return model, when


def diverging(result: Result) -> str:
    """Return the reason to consider a run's loss diverging; otherwise empty.

    Compares the mean training loss of the last round with that of the first, and the headline
    model's test loss with its first value and with that of a constant prediction, all clients' most
    frequent class or mean.
    """
    trained = _means(row.loss for row in result.rounds)
    tested = _means(e.loss for e in result.curve(*headline(result), "test"))
    constant = _constant(result)
    for what, losses, first in (
        ("training loss", trained, "in the first round"),
        ("test loss", tested, "when first evaluated"),
    ):
        if losses and losses[-1] > FAR * losses[0] > 0:
            return f"the {what} ended at {losses[-1]:.4g}, from {losses[0]:.4g} {first}; lower lr"
    if tested and constant and tested[-1] > FAR * constant:
        return (
            f"the test loss ended at {tested[-1]:.4g}, where a constant answer has "
            f"{constant:.4g}; lower lr"
        )
    return ""


def _constant(result: Result) -> float | None:
    """Return the mean test loss of a constant prediction; None if it is not on record."""
    found: float | None = (
        (result.about.get("constant") or {}).get("all", {}).get("loss") or {}
    ).get("mean")
    return found


def _means(each: Iterable[Sequence[float | None]]) -> list[float]:
    """Return the means over clients that are defined."""
    return [mean for losses in each if (mean := mean_of_known(losses)) is not None]


def _unseen(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    tests = [e for e in evaluations if e.split == "test"]
    values = {
        name: {str(e.clients[0]): e.value[0] for e in tests if f"{e.model}, {e.when}" == name}
        for name in sorted({f"{e.model}, {e.when}" for e in tests})
    }
    return {
        name: {"clients": each, "mean": mean_of_known(list(each.values()))}
        for name, each in values.items()
    }

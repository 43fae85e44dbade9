"""Values that a bench takes from a run: per client, for every named model, in the chosen rounds."""

from dataclasses import replace
from typing import Any, NamedTuple

from pomona.metrics.best_round import Point, best
from pomona.metrics.client_statistics import summarize
from pomona.metrics.metric import ACCURACY
from pomona.metrics.nan_safe import mean_of_known
from pomona.record.result import Result
from pomona.record.rows import Evaluation

Figures = dict[str, Any]


def figures(result: Result) -> Figures:
    """Return a finished run's record in a bench; it contains no timing.

    ``models`` has for each named model ("personal, trained") its test values in the ``last`` round and in the best
    validation round (``best_validation``, None without validation samples): the round, each client's ``value`` of the
    run's ``metric``, accuracy, loss and samples (None for a client that was not evaluated), and the values' summary
    over clients. ``validation`` is the headline model's score there: the metric, negated if less is better; or the
    negated loss, if no validation samples define the metric. ``curve`` has the headline model's means over clients by
    round; ``test_accuracy_pooled`` is over samples.
    """
    headline, n = tuple(result.about["headline"]), len(result.about["clients"])
    named = {(e.model, e.when) for e in result.evaluations} - {()}
    order = sorted(named, key=lambda kind: (kind != headline, kind))
    chosen = best_on_validation(result, *headline)
    return {
        "headline": ", ".join(headline),
        "metric": result.metric.name,
        "parameters": result.about["parameters"],
        "clients": list(result.about["clients"]),
        "data": result.about["data"]["fingerprint"],
        "partition": result.about["partition_sha256"],
        "rounds": len(result.rounds),
        "bytes_down": sum(sum(r.bytes_down) for r in result.rounds),
        "bytes_up": sum(sum(r.bytes_up) for r in result.rounds),
        "validation": chosen._asdict() if chosen else None,
        "models": {f"{m}, {w}": moments for m, w in order if (moments := _moments(result, m, w, n))},
        "curve": _curve(result, *headline),
        "unseen": result.summary["unseen"],
        "privacy": result.summary.get("privacy"),
        "versions": result.about["versions"],
    }


def seconds(result: Result) -> list[float]:
    """Return the wall time from the first round's start to each round's end, with evaluation, without interruptions."""
    total, passed = 0.0, []
    for row in result.rounds:
        total += row.seconds
        passed.append(total)
    return passed


class ValidationScore(NamedTuple):
    """A client mean on validation, where more is better, and its round."""

    value: float
    round: int


def best_on_validation(result: Result, model: str, when: str) -> ValidationScore | None:
    """Return the best client mean on validation and its round, the first in case of ties.

    The untrained model is used only if there is no other.
    """
    curve = [Point(e.round, e.mean, mean_of_known(e.loss)) for e in result.curve(model, when, "validation")]
    found = best(curve, result.metric) or best(curve, result.metric, least=0)
    return ValidationScore(found.metric.goodness(found.value), found.round) if found else None


def _moments(result: Result, model: str, when: str, n: int) -> dict[str, Any] | None:
    tests = {e.round: e for e in result.curve(model, when, "test")}
    if not tests:
        return None
    chosen = best_on_validation(result, model, when)
    return {
        "last": _moment(tests[max(tests)], n),
        "best_validation": _moment(tests[chosen.round], n) if chosen and chosen.round in tests else None,
    }


def _moment(evaluation: Evaluation, n: int) -> dict[str, Any]:
    parts = {key: evaluation.by_client(getattr(evaluation, key), range(n)) for key in ("value", "accuracy", "loss")}
    samples = [s or 0 for s in evaluation.by_client(evaluation.samples, range(n))]
    spread = summarize(parts["value"], samples, metric=evaluation.judged)
    means = {"loss": mean_of_known(evaluation.loss), "accuracy": evaluation.accuracy_mean}
    return {"round": evaluation.round, **parts, "samples": samples, "summary": {**spread, **means}}


def _curve(result: Result, model: str, when: str) -> dict[str, list[Any]]:
    tests = result.curve(model, when, "test")
    held_out = {e.round: e for e in result.curve(model, when, "validation")}
    paired = [held_out.get(e.round) for e in tests]
    return {
        "round": [e.round for e in tests],
        "test_value": [e.mean for e in tests],
        "test_accuracy": [e.accuracy_mean for e in tests],
        "test_accuracy_pooled": [_pooled(e) for e in tests],
        "test_loss": [mean_of_known(e.loss) for e in tests],
        "validation_value": [e.mean if e else None for e in paired],
        "validation_accuracy": [e.accuracy_mean if e else None for e in paired],
    }


def _pooled(evaluation: Evaluation) -> float | None:
    """Return the accuracy over all samples, whatever the metric."""
    return replace(evaluation, value=evaluation.accuracy, metric=ACCURACY.name).pooled

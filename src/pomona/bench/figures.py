"""What a bench takes from a run: plain numbers per client, of every named model, in the rounds that count."""

from collections.abc import Sequence
from typing import Any

from pomona.metrics.summary import At, best_rounds, summarize
from pomona.record import Evaluation, Result

Figures = dict[str, Any]


def figures(result: Result) -> Figures:
    """The record of a finished run inside a bench; nothing in it depends on a clock.

    ``models`` has for each named model ("personal, trained") its test values in the ``last`` round and in the round
    of the best client mean on validation (``best_validation``, None without validation samples): the round, accuracy,
    loss and samples of each client (None for a client that was not evaluated), and the accuracies' summary over
    clients. ``validation`` is the headline model's score there: accuracy, or loss with its sign turned.
    ``curve`` holds the headline model's means by round: over clients, and over samples (``test_pooled``).
    """
    headline, n = tuple(result.about["headline"]), len(result.about["clients"])
    named = {(e.model, e.when) for e in result.evaluations} - {()}
    order = sorted(named, key=lambda kind: (kind != headline, kind))
    best = _best(result, *headline)
    return {
        "headline": ", ".join(headline),
        "parameters": result.about["parameters"],
        "clients": list(result.about["clients"]),
        "data": result.about["data"]["fingerprint"],
        "partition": result.about["partition_sha256"],
        "rounds": len(result.rounds),
        "bytes_down": sum(sum(r.bytes_down) for r in result.rounds),
        "bytes_up": sum(sum(r.bytes_up) for r in result.rounds),
        "validation": best._asdict() if best else None,
        "models": {f"{m}, {w}": moments for m, w in order if (moments := _moments(result, m, w, n))},
        "curve": _curve(result, *headline),
        "unseen": result.summary["unseen"],
        "privacy": result.summary.get("privacy"),
        "versions": result.about["versions"],
    }


def seconds(result: Result) -> list[float]:
    """Wall time from the first round's start to each round's end, training and evaluation, breaks not counted."""
    total, passed = 0.0, []
    for row in result.rounds:
        total += row.seconds
        passed.append(total)
    return passed


def _goodness(evaluation: Evaluation) -> tuple[float | None, ...]:
    """One value a client, higher is better: its accuracy, or its loss with the sign turned."""
    if any(a is not None for a in evaluation.accuracy):
        return evaluation.accuracy
    return tuple(None if loss is None else -loss for loss in evaluation.loss)


def _best(result: Result, model: str, when: str) -> At | None:
    """The best client mean on validation and its round, of equally good rounds the first."""
    n, curve = len(result.about["clients"]), result.curve(model, when, "validation")
    values = [_all(e, _goodness(e), n) for e in curve]
    return best_rounds([e.round for e in curve], values, [1] * n, values).best_validation


def _moments(result: Result, model: str, when: str, n: int) -> dict[str, Any] | None:
    tests = {e.round: e for e in result.curve(model, when, "test")}
    if not tests:
        return None
    best = _best(result, model, when)
    return {
        "last": _moment(tests[max(tests)], n),
        "best_validation": _moment(tests[best.round], n) if best and best.round in tests else None,
    }


def _moment(evaluation: Evaluation, n: int) -> dict[str, Any]:
    accuracy, loss = _all(evaluation, evaluation.accuracy, n), _all(evaluation, evaluation.loss, n)
    samples = [s or 0 for s in _all(evaluation, evaluation.samples, n)]
    return {
        "round": evaluation.round,
        "accuracy": accuracy,
        "loss": loss,
        "samples": samples,
        "summary": {**summarize(accuracy, samples), "loss": mean(loss)},
    }


def _curve(result: Result, model: str, when: str) -> dict[str, list[Any]]:
    tests = result.curve(model, when, "test")
    held_out = {e.round: e for e in result.curve(model, when, "validation")}
    return {
        "round": [e.round for e in tests],
        "test_accuracy": [e.mean for e in tests],
        "test_pooled": [e.pooled for e in tests],
        "test_loss": [mean(e.loss) for e in tests],
        "validation_accuracy": [held_out[e.round].mean if e.round in held_out else None for e in tests],
    }


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of what is known, each counting once."""
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def _all(evaluation: Evaluation, values: Sequence[Any], n: int) -> list[Any]:
    known = dict(zip(evaluation.clients, values, strict=True))
    return [known.get(i) for i in range(n)]

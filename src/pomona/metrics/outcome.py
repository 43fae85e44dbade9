"""What a run comes to: named accuracies over clients and rounds, traffic and time, as ``summary.json`` holds them."""

from collections.abc import Sequence
from typing import Any

from pomona.metrics.summary import best_rounds, summarize
from pomona.record import Evaluation, Result


def summarise(result: Result, seconds: float) -> dict[str, Any]:
    """The figures of a finished run.

    ``models`` has one entry a named model ("personal, trained"): ``last``, ``best_validation``, ``best_test`` (the
    papers' BMCTA) and ``best_test_pooled`` (BTA), each with value and round; ``clients``, the spread over clients, and
    ``loss``, its mean over clients, in the last round. ``unseen`` holds the test accuracies of clients that were never
    trained with, by client and named model, and their mean. Bytes are those of training: what clients download only to
    evaluate does not count.
    """
    n = len(result.about["clients"])
    named = sorted({(e.model, e.when) for e in result.evaluations})
    models = {f"{model}, {when}": _outcome(result, model, when, n) for model, when in named}
    return {
        "method": result.name,
        "headline": ", ".join(result.about["headline"]),
        "rounds": len(result.rounds),
        "models": {name: outcome for name, outcome in models.items() if outcome},
        "unseen": _unseen(result.unseen),
        "bytes_down": sum(sum(r.bytes_down) for r in result.rounds),
        "bytes_up": sum(sum(r.bytes_up) for r in result.rounds),
        "seconds": seconds,
    }


def _outcome(result: Result, model: str, when: str, n: int) -> dict[str, Any] | None:
    test, validation = result.curve(model, when, "test"), result.curve(model, when, "validation")
    if not test:
        return None
    accuracies, samples = [_all(e, e.accuracy, n) for e in test], [s or 0 for s in _all(test[-1], test[-1].samples, n)]
    held_out = [_all(e, e.accuracy, n) for e in validation] if len(validation) == len(test) else None
    best = best_rounds([e.round for e in test], accuracies, samples, held_out)
    return {
        **{name: at._asdict() if at else None for name, at in vars(best).items()},
        "clients": summarize(accuracies[-1], samples),
        "loss": _mean(test[-1].loss),
    }


def _unseen(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    tests = [e for e in evaluations if e.split == "test"]
    accuracies = {
        name: {str(e.clients[0]): e.accuracy[0] for e in tests if f"{e.model}, {e.when}" == name}
        for name in sorted({f"{e.model}, {e.when}" for e in tests})
    }
    return {name: {"clients": each, "mean": _mean(list(each.values()))} for name, each in accuracies.items()}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def _all(evaluation: Evaluation, values: Sequence[Any], n: int) -> list[Any]:
    """Values for all n clients, None for those that were not evaluated yet."""
    known = dict(zip(evaluation.clients, values, strict=True))
    return [known.get(i) for i in range(n)]

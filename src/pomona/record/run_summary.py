"""Summary of a run: metric over clients and rounds, traffic and time, as in ``summary.json``."""

from collections.abc import Iterable, Sequence
from typing import Any

from pomona.core.attack import Attack
from pomona.core.training_settings import Stop
from pomona.metrics.best_round import best, reason
from pomona.metrics.client_statistics import BestRounds, RoundScore, best_rounds, summarize
from pomona.metrics.nan_safe import mean_of_known
from pomona.record.result import Result
from pomona.record.rows import Evaluation

DIVERGENCE_FACTOR = 10.0
"""Factor over the initial loss, or over that of a constant prediction, from which training counts
as diverging.
"""
REMEDIES = ("lower lr", "lower lr or method.server_lr")  # the second for methods with that setting


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
    named model, and their mean. With malicious clients (``attack``) a model's ``honest`` is its
    spread over the others. Bytes are those of training; downloads for evaluation only are
    excluded.
    """
    n = result.clients
    model_keys = sorted({(e.model, e.when) for e in result.evaluations})
    models = {f"{model}, {stage}": _outcome(result, model, stage, n) for model, stage in model_keys}
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


def _outcome(result: Result, model: str, stage: str, n: int) -> dict[str, Any] | None:
    test = result.curve(model, stage)
    if not test:
        return None
    scores, spread = best_and_spread(result, model, stage, range(n))
    liars = attack_of(result)
    honest = liars.honest(n) if liars else ()
    return {
        **{
            name: score._asdict() if isinstance(score, RoundScore) else score
            for name, score in vars(scores).items()
        },
        "clients": spread,
        **({"honest": best_and_spread(result, model, stage, honest)[1]} if honest else {}),
        "loss": mean_of_known(test[-1].loss),
        "accuracy": test[-1].accuracy_mean,
    }


def attack_of(result: Result) -> Attack | None:
    """Return the attack of a run; None if all clients are honest."""
    settings = result.config.get("attack")
    return Attack.model_validate(settings) if settings else None


def best_and_spread(
    result: Result, model: str, stage: str, clients: Sequence[int]
) -> tuple[BestRounds, dict[str, Any]]:
    """Return the best rounds of a named model that was evaluated on the test split, and its spread
    over clients in the last round, as ``summarize`` returns it.
    """
    test = result.curve(model, stage)
    validated = {e.round: e for e in result.curve(model, stage, "validation")}
    validation = [validated.get(e.round) for e in test]

    def table(evaluations: Sequence[Evaluation | None], name: str) -> list[list[Any]]:
        unknown: list[Any] = [None] * len(clients)
        return [e.by_client(getattr(e, name), clients) if e else unknown for e in evaluations]

    values, samples = table(test, "value"), [n or 0 for n in table(test[-1:], "samples")[0]]
    rounds, metric = [e.round for e in test], result.metric
    best_scores = best_rounds(
        rounds, values, samples, table(validation, "value"), metric, table(validation, "loss")
    )
    return best_scores, summarize(values[-1], samples, metric=metric)


def stopped(result: Result) -> str:
    """Return the reason why a run ended before all its rounds; otherwise empty."""
    last, settings = len(result.rounds), result.config.get("stop")
    if not settings or last >= int(result.config.get("rounds") or last):
        return ""
    stop = Stop.model_validate(settings)
    model, stage = headline(result)
    curve = result.curve(model, stage, "validation")
    # a received model is evaluated one round later
    evaluated = [e for e in curve if e.round < last or stage == "trained"]
    points = [e.point for e in evaluated]
    best_point = best(points, result.metric, stop.min_gain)
    if best_point and stop.should_stop(best_point.since, points[-1].round):
        return reason(best_point, last)
    return ""


def headline(result: Result) -> tuple[str, str]:
    """Return the headline model and its stage; empty names if they are not on record."""
    model, stage = result.about.get("headline") or ("", "")
    return model, stage


def diverging(result: Result) -> str:
    """Return the reason to consider a run's loss diverging; otherwise empty.

    It diverges if no client with samples has a finite last test loss of the headline model. Else
    this compares the mean training loss of the last round with that of the first, and the headline
    model's test loss with its first value and with that of a constant prediction, all clients' most
    frequent class or mean.
    """
    trained = _means(row.loss for row in result.rounds)
    remedy = REMEDIES["server_lr" in str(result.config.get("method"))]
    curve = result.curve(*headline(result), "test")
    if curve and any(curve[-1].samples) and mean_of_known(curve[-1].loss) is None:
        return f"the last test loss of no client is finite; {remedy}"
    tested = _means(e.loss for e in curve)
    constant = _constant(result)
    comparisons = (
        ("training loss", trained, trained[:1], "from {:.4g} in the first round"),
        ("test loss", tested, tested[:1], "from {:.4g} when first evaluated"),
        ("test loss", tested, [constant], "where a constant answer has {:.4g}"),
    )
    for quantity, losses, base, basis in comparisons:
        if losses and base[0] and losses[-1] > DIVERGENCE_FACTOR * base[0] > 0:
            return f"the {quantity} ended at {losses[-1]:.4g}, {basis.format(base[0])}; {remedy}"
    return ""


def _constant(result: Result) -> float | None:
    """Return the mean test loss of a constant prediction; None if it is not on record."""
    loss: float | None = (
        (result.about.get("constant") or {}).get("all", {}).get("loss") or {}
    ).get("mean")
    return loss


def _means(rows: Iterable[Sequence[float | None]]) -> list[float]:
    """Return the means over clients that are defined."""
    return [mean for losses in rows if (mean := mean_of_known(losses)) is not None]


def _unseen(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    tests = [e for e in evaluations if e.split == "test"]
    values = {
        name: {str(e.clients[0]): e.value[0] for e in tests if f"{e.model}, {e.when}" == name}
        for name in sorted({f"{e.model}, {e.when}" for e in tests})
    }
    return {
        name: {"clients": by_client, "mean": mean_of_known(list(by_client.values()))}
        for name, by_client in values.items()
    }

"""Metrics of a model's outputs, one or all that its task defines; the default headline metric of a
run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isinf
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import ConfigError, suggestion
from pomona.core.registry import import_own_code
from pomona.core.rng import stream
from pomona.metrics.auroc_intervals import Components
from pomona.metrics.influence import FEW, unit_count
from pomona.metrics.intervals import (
    Interval,
    Statistics,
    intervals,
    mean_of_proportions,
    proportion,
)
from pomona.metrics.metric import (
    ACCURACY,
    DETAILS,
    EVERY_METRIC,
    LOSS,
    METRICS,
    Arrays,
    Metric,
    array,
    is_own,
    metric_named,
)
from pomona.metrics.nan_safe import Array, defined, divide, exact
from pomona.metrics.outcomes import Predictions, ThresholdTarget, evaluate_outcomes
from pomona.tasks.task import Task

if TYPE_CHECKING:
    from torch import Tensor


SHARES = frozenset(metric.name for metric in METRICS.values() if metric.is_share)
IMBALANCE = 0.7
"""Share of one answer in the training labels above which accuracy depends more on the labels than
on the model.
"""
RARE = "auroc"


@dataclass(frozen=True)
class Choice:
    """A metric, with a sentence on the reason; empty if a user chose it, or for the usual
    choice.
    """

    metric: Metric
    reason: str = ""


def choose(
    requested: str | None, task: Task, labels: NDArray[Any], classes: Sequence[str] = ()
) -> Choice:
    """Choose the metric of a run.

    Args:
        requested: the user's choice.
        task: of the targets.
        labels: training targets of all clients: (N,) class numbers, or (N, K).
        classes: class names.

    Raises:
        ConfigError: the user's choice is not defined for these targets.
    """
    if requested is not None:
        return Choice(require(requested, task))
    usual = METRICS[task.usual]
    if task.commonest is None:
        return Choice(
            usual,
            f"the metric is {usual.title}, as the targets are {task.title}; another: metric=NAME",
        )
    if not labels.size:
        return Choice(usual)
    share, answer = task.commonest(labels, classes)
    if share <= IMBALANCE:
        return Choice(usual)
    rare = METRICS[RARE]
    return Choice(
        rare,
        f"the metric is {rare.title}: {100 * share:.1f} % of the training {answer}, so that a "
        f"constant answer has this {ACCURACY.title}; to use it anyway, metric={ACCURACY.name}",
    )


def require(name: str, task: Task) -> Metric:
    """Return the metric with a name.

    Raises ConfigError if it is unknown, undefined for the task, or not importable.
    """
    if is_own(name):
        import_own_code(name.removeprefix("-"))
        return metric_named(name)
    fitting = [m for m in METRICS if m in task.measures]
    if name not in METRICS:
        raise ConfigError(f"metric = {name!r}: {suggestion(name, METRICS)}")
    if name not in fitting:
        raise ConfigError(
            f"metric = {name!r}, but the targets are {task.title}; choose one of "
            f"{', '.join(fitting)}, or leave it out"
        )
    return METRICS[name]


Answers = tuple["Tensor", "Tensor"]  # outputs (n, K) and targets of one model on one client's split


def compute(name: str, outputs: Arrays, targets: Arrays, task: Task) -> float | None:
    """Compute a metric of a model's outputs on some samples; None if they do not define it.

    Args:
        name: of the metric; "loss" is the task's, whatever loss the run minimised. A user's own,
            ``module:function``, is called with predictions and targets.
        outputs: of the network.
        targets: as stored in the data set.
        task: of the targets. Raises KeyError if it does not define the metric.
    """
    truth = array(targets)
    if is_own(name):
        return _own_metric(name, task.natural(array(outputs)), truth) if len(truth) else None
    return defined(
        measured(
            METRICS[name], task, task.natural(array(outputs)), truth, np.ones((1, len(truth)))
        )[0]
    )


def _own_metric(name: str, predictions: Array, targets: NDArray[Any]) -> float | None:
    """Compute a user's own metric. Raises ConfigError if it is neither a finite number nor NaN."""
    try:
        value = import_own_code(name.removeprefix("-"))(predictions, targets)
    except Exception as fault:
        raise ConfigError(f"metric = {name!r} failed: {type(fault).__name__}: {fault}") from fault
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as fault:
        raise ConfigError(
            f"metric = {name!r} gave {type(value).__name__}; return a number, NaN where undefined"
        ) from fault
    if isinf(number):
        raise ConfigError(f"metric = {name!r} gave {number}; return NaN where it is undefined")
    return defined(number)


def measured(
    metric: Metric, task: Task, predictions: Array, targets: NDArray[Any], weights: Array
) -> Array:
    """Compute a metric of predictions, see ``Task``, for sample weights (R, n): (R,), NaN where
    undefined.
    """
    if not len(targets):
        return np.full(len(weights), np.nan)
    measure: Any = task.measures[metric.name]
    truth = exact(targets)
    if metric.pools:
        return divide(weights @ measure(predictions, truth), weights.sum(axis=1))
    figures: Array = measure(predictions, truth, weights)
    return figures


def evaluate(
    task: Task,
    predictions: Array,
    targets: NDArray[Any],
    generator: Callable[[], np.random.Generator] | None = None,
    resamples: int | None = None,
    groups: NDArray[np.int64] | None = None,
) -> dict[str, Any]:
    """Return every metric of predictions, see ``Task``, as JSON values, with None for undefined
    ones.

    The keys: ``samples``; the task's measures and details; ``intervals``, 95 % confidence intervals
    of the measures but the loss and the calibration error, which is biased: Wilson's of
    proportions, ``mean_of_proportions`` for the balanced accuracy of classes, those of
    ``auroc_intervals`` for two answers, else by the bootstrap within strata, from ``FEW`` samples
    on. A resample that lacks one of a label's values averages over the other labels.

    Args:
        task: of the targets.
        predictions: of the model.
        targets: as stored in the data set.
        generator: creates the bootstrap's generator, the same each time; None for no bootstrap.
        resamples: number of bootstrap resamples; None as in ``intervals``.
        groups: (n,) each sample's group, of numbers from 0 on, if samples of one group are not
            independent; the bootstrap then draws groups, from ``FEW`` on, in one stratum.
    """
    n, truth = len(targets), exact(targets)

    def resample(statistics: Statistics) -> dict[str, Interval]:
        draws = generator() if generator and unit_count(n, groups) >= FEW else None
        return intervals(statistics, task.strata(truth), resamples, draws, groups, SHARES)

    details = task.details(predictions, truth, resample)
    # a measure with two names has the last: the loss of numbers is their mse
    names = {measure: name for name, measure in task.measures.items()}.values()
    metrics = [EVERY_METRIC[name] for name in names]
    interval_metrics = [metric for metric in metrics if metric not in {LOSS, DETAILS["ece"]}]

    def statistics(weights: Array) -> dict[str, Array]:
        return {m.name: measured(m, task, predictions, truth, weights) for m in interval_metrics}

    bootstrap = resample(statistics)
    once = np.ones((1, n))
    point = {m.name: defined(measured(m, task, predictions, truth, once)[0]) for m in metrics}
    return {
        "samples": n,
        **point,
        **details,
        "intervals": {
            **{m.name: bootstrap.get(m.name) for m in interval_metrics},
            **{p: proportion(_hits(task, p, predictions, truth), groups) for p in task.proportions},
            **_area(task, predictions, truth, groups),
            **_sensitivity(task, predictions, truth, groups),
        },
    }


def _hits(task: Task, name: str, predictions: Array, targets: NDArray[Any]) -> Array:
    """Return what each sample adds to a proportion (n,)."""
    measure: Any = task.measures[name]
    return np.asarray(measure(predictions, targets) if len(targets) else (), np.float64)


def _area(
    task: Task, predictions: Array, targets: NDArray[Any], groups: NDArray[np.int64] | None
) -> dict[str, Interval]:
    """Return the interval of the AUROC of two answers; none for others, for less than ``FEW``
    samples, and for groups.
    """
    if groups is not None or "auroc" not in task.measures or len(targets) < FEW:
        return {}
    components = Components.of_answers(predictions, targets)
    return {"auroc": list(components.interval())} if components else {}


def _sensitivity(
    task: Task, predictions: Array, targets: NDArray[Any], groups: NDArray[np.int64] | None
) -> dict[str, Interval]:
    """Return the interval of the balanced accuracy of classes that occur; none for other tasks, for
    less than ``FEW`` samples or two classes, and for groups.
    """
    occurring = np.unique(targets)
    if task.targets != "classes" or groups is not None or len(targets) < FEW or len(occurring) < 2:
        return {}
    hits = _hits(task, "accuracy", predictions, targets)
    return {"balanced_accuracy": mean_of_proportions([hits[targets == c] for c in occurring])}


def full_metrics(
    answers: Answers, task: Task, *, seed: int, client: int, groups: NDArray[np.int64] | None = None
) -> dict[str, Any]:
    """Return ``evaluate`` of a model's outputs on a client's samples."""
    draws = partial(stream, seed, "bootstrap", client)
    return evaluate(task, *_predictions(answers, task), draws, groups=groups)


def confidence(
    name: str, answers: Answers, task: Task, *, seed: int, client: int
) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of a metric; None if the task or the samples do not
    define one.
    """
    if is_own(name) or not len(answers[1]):
        return None
    interval = full_metrics(answers, task, seed=seed, client=client)["intervals"].get(name)
    return (interval[0], interval[1]) if interval else None


def outcome_metrics(
    tested: Answers,
    validation: Answers | None,
    task: Task,
    *,
    seed: int,
    client: int,
    target: ThresholdTarget | None,
    groups: NDArray[np.int64] | None = None,
) -> dict[str, Any]:
    """Return ``outcomes``: metrics of each class or label at a threshold from ``validation``; empty
    for numeric targets.

    ``tested``, ``validation``: of the test and of the validation samples. ``target``, ``groups``:
    as in ``evaluate_outcomes``.
    """
    if not task.outcomes:
        return {}
    chosen_on = _predictions(validation, task) if validation else None
    draws = partial(stream, seed, "bootstrap", client)
    predictions = _predictions(tested, task)
    outcomes = evaluate_outcomes(predictions, chosen_on, draws, target=target, groups=groups)
    return {"outcomes": outcomes}


def _predictions(answers: Answers, task: Task) -> Predictions:
    outputs, targets = answers
    return task.natural(array(outputs)), array(targets)

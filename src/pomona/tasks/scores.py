"""Figures of a model's outputs: one metric, or everything that its task defines."""

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import ConfigError
from pomona.core.registry import own
from pomona.core.rng import stream
from pomona.metrics.metric import METRICS, Arrays, Metric, array, is_own
from pomona.metrics.nan_safe import Array, defined, divide
from pomona.metrics.outcomes import Judged, evaluate_outcomes
from pomona.tasks.task import Task

if TYPE_CHECKING:
    from torch import Tensor

Answers = tuple["Tensor", "Tensor"]  # outputs (n, K) and targets of one model on one client's split


def compute(name: str, outputs: Arrays, targets: Arrays, task: Task) -> float | None:
    """A metric of a model's outputs on some samples; None where they do not define it.

    Args:
        name: of the metric; "loss" is that of the task, whatever a run minimised. A user's own, ``module:function``, is
            called with predictions and targets.
        outputs: as a network gives them.
        targets: as a data set holds them.
        task: what the targets are. Raises KeyError where the metric is not defined for it.
    """
    truth = array(targets)
    if is_own(name):
        return _own(name, task.natural(array(outputs)), truth) if len(truth) else None
    return defined(measured(METRICS[name], task, task.natural(array(outputs)), truth, np.ones((1, len(truth))))[0])


def _own(name: str, predictions: Array, targets: NDArray[Any]) -> float | None:
    """A user's own metric. Raises ConfigError where it gives no number."""
    value = own(name.removeprefix("-"))(predictions, targets)
    try:
        return defined(float(value))
    except (TypeError, ValueError) as fault:
        raise ConfigError(
            f"metric = {name!r} gave {type(value).__name__}; return a number, NaN where undefined"
        ) from fault


def measured(metric: Metric, task: Task, predictions: Array, targets: NDArray[Any], weights: Array) -> Array:
    """A metric of predictions, see ``Task``, for sample weights (R, n): (R,), NaN where undefined."""
    if not len(targets):
        return np.full(len(weights), np.nan)
    truth = targets if targets.dtype.kind in "iu" else targets.astype(float)
    measure: Any = task.measures[metric.name]
    if metric.pools:
        return divide(weights @ measure(predictions, truth), weights.sum(axis=1))
    figures: Array = measure(predictions, truth, weights)
    return figures


def full_metrics(answers: Answers, task: Task, *, seed: int, client: int) -> dict[str, Any]:
    """Every metric that the task defines, with confidence intervals; None where a client's data cannot define one."""
    return task.evaluate(*_judged(answers, task), stream(seed, "bootstrap", client))


def confidence(name: str, answers: Answers, task: Task, *, seed: int, client: int) -> tuple[float, float] | None:
    """The 95 % confidence interval of a metric; None where the task or the samples define none."""
    if is_own(name) or not len(answers[1]):
        return None
    ends = full_metrics(answers, task, seed=seed, client=client).get("intervals", {}).get(name)
    return (ends[0], ends[1]) if ends else None


def outcome_metrics(
    tested: Answers, held_out: Answers | None, task: Task, *, seed: int, client: int, specificity: float | None
) -> dict[str, Any]:
    """Under ``outcomes`` the figures of each class or label at a threshold from ``held_out``; nothing of numbers.

    ``tested``, ``held_out``: of the test and of the validation samples. ``specificity``: as ``evaluate_outcomes``.
    """
    if not task.outcomes:
        return {}
    chosen_on = _judged(held_out, task) if held_out else None
    draws = partial(stream, seed, "bootstrap", client)
    return {"outcomes": evaluate_outcomes(_judged(tested, task), chosen_on, draws, specificity=specificity)}


def _judged(answers: Answers, task: Task) -> Judged:
    outputs, targets = answers
    return task.natural(array(outputs)), array(targets)

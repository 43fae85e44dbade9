"""Default headline metric of a run, from the type of targets and the label imbalance."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from pomona.core.errors import ConfigError, near
from pomona.core.registry import own
from pomona.metrics.metric import ACCURACY, METRICS, Metric, is_own, metric_named
from pomona.tasks.task import Task

MOST = 0.7
"""Share of one answer in the training labels above which accuracy depends more on the labels than on the model."""
RARE = "auroc"


@dataclass(frozen=True)
class Choice:
    """A metric, with a sentence on the reason; empty if a user chose it, or for the usual choice."""

    metric: Metric
    reason: str = ""


def choose(asked: str | None, task: Task, labels: NDArray[Any], classes: Sequence[str] = ()) -> Choice:
    """Choose the metric of a run.

    Args:
        asked: the user's choice.
        task: of the targets.
        labels: training targets of all clients: (N,) class numbers, or (N, K).
        classes: class names.

    Raises:
        ConfigError: the user's choice is not defined for these targets.
    """
    if asked is not None:
        return Choice(require(asked, task))
    usual = METRICS[task.usual]
    if task.commonest is None:
        return Choice(usual, f"the metric is the {usual.title}: the targets are {task.title}; metric=... names another")
    if not labels.size:
        return Choice(usual)
    share, answer = task.commonest(labels, classes)
    if share <= MOST:
        return Choice(usual)
    rare = METRICS[RARE]
    return Choice(
        rare,
        f"the metric is {rare.title}: {100 * share:.1f} % of the training {answer}, so a model that always says so "
        f"has that {ACCURACY.title} without having learned anything; metric={ACCURACY.name} takes it all the same",
    )


def require(name: str, task: Task) -> Metric:
    """Return the metric with a name. Raises ConfigError if it is unknown, undefined for the task, or not importable."""
    if is_own(name):
        own(name.removeprefix("-"))
        return metric_named(name)
    fitting = [known for known in METRICS if known in task.measures]
    if name not in METRICS:
        raise ConfigError(f"metric = {name!r}: {near(name, METRICS)}")
    if name not in fitting:
        raise ConfigError(
            f"metric = {name!r}, but the targets are {task.title}; choose one of {', '.join(fitting)}, or leave it out"
        )
    return METRICS[name]

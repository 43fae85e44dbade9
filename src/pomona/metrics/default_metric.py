"""Default choice of a run's metric, from the kind of targets and the label imbalance."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import ConfigError, near
from pomona.metrics.metric import ACCURACY, METRICS, Metric
from pomona.models import Targets

MOST = 0.7
"""The share of one answer among the training labels above which accuracy says more of the labels than of a model."""
USUAL: dict[Targets, str] = {"classes": "accuracy", "multilabel": "accuracy", "regression": "mae"}
RARE = "auroc"


@dataclass(frozen=True)
class Choice:
    """A metric, and a sentence on why it was chosen; empty where a user or nothing unusual chose it."""

    metric: Metric
    reason: str = ""


def choose(asked: str | None, kind: Targets, labels: NDArray[Any], classes: Sequence[str] = ()) -> Choice:
    """The metric of a run.

    Args:
        asked: the user's choice.
        kind: what the targets are.
        labels: training targets of all clients: (N,) class numbers, or (N, K).
        classes: class names.

    Raises:
        ConfigError: the user's choice is not defined for these targets.
    """
    if asked is not None:
        return Choice(require(asked, kind))
    usual = METRICS[USUAL[kind]]
    if kind == "regression":
        return Choice(usual, f"the metric is the {usual.title}: the targets are numbers; metric=... names another")
    share, answer = _commonest(kind, labels, classes)
    if share <= MOST:
        return Choice(usual)
    rare = METRICS[RARE]
    return Choice(
        rare,
        f"the metric is {rare.title}: {100 * share:.1f} % of the training {answer}, so a model that always says so "
        f"has that {ACCURACY.title} without having learned anything; metric={ACCURACY.name} takes it all the same",
    )


def require(name: str, kind: Targets) -> Metric:
    """The metric of a name. Raises ConfigError if it is unknown or not defined for a kind of targets."""
    fitting = [metric.name for metric in METRICS.values() if kind in metric.fits]
    if name not in METRICS:
        raise ConfigError(f"metric = {name!r}: {near(name, METRICS)}")
    if name not in fitting:
        what = {"classes": "classes", "multilabel": "several labels a sample", "regression": "numbers"}[kind]
        raise ConfigError(
            f"metric = {name!r}, but the targets are {what}; choose one of {', '.join(fitting)}, or leave it out"
        )
    return METRICS[name]


def _commonest(kind: Targets, labels: NDArray[Any], classes: Sequence[str]) -> tuple[float, str]:
    """The share of the most frequent answer (for each label) among the labels, and what it is."""
    if not labels.size:
        return 0.0, ""
    if kind == "multilabel":
        # Label by label: one that nearly everybody has and one that nearly nobody has are both answered without a look.
        ones = (labels > 0.5).mean(axis=0)
        return float(np.maximum(ones, 1 - ones).mean()), "flags are what their label most often is"
    counts = np.bincount(labels)
    most = int(counts.argmax())
    name = classes[most] if most < len(classes) else str(most)
    return float(counts[most] / counts.sum()), f"samples are of class {name!r}"

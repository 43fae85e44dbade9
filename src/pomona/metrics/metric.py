"""The metric of a run: the one figure by which its models are judged, chosen by the task, used everywhere."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Union

import numpy as np
from numpy.typing import NDArray

from pomona.metrics import measures as m
from pomona.metrics.measures import Samples, Weighted
from pomona.metrics.nan_safe import Array, defined, divide
from pomona.models import Targets

if TYPE_CHECKING:
    from torch import Tensor


Arrays = Union[NDArray[Any], "Tensor"]
NOTHING = "-"


@dataclass(frozen=True)
class Metric:
    """A metric: name, direction, range, unit and how to compute it.

    Attributes:
        name: in settings and records.
        title: in text for people.
        higher: whether more is better.
        percent: whether people read it in percent.
        style: how people read it, where not in percent.
        low, high: the values between which it must lie.
        samples: by kind of targets, what each sample contributes, where it is a mean over samples.
        weighted: by kind of targets, the figure as a function of sample weights, where it is none.
    """

    name: str
    title: str
    higher: bool
    percent: bool = False
    style: str = ".3f"
    low: float = -inf
    high: float = inf
    samples: Mapping[Targets, Samples] = field(default_factory=dict, repr=False, compare=False)
    weighted: Mapping[Targets, Weighted] = field(default_factory=dict, repr=False, compare=False)

    @property
    def pools(self) -> bool:
        """Whether a mean of clients' values over their samples is the value of all samples taken together."""
        return bool(self.samples)

    @property
    def fits(self) -> frozenset[Targets]:
        """The kinds of targets that it is defined for."""
        return frozenset(self.samples) | frozenset(self.weighted)

    @property
    def heading(self) -> str:
        """Its title with the unit, over a column of ``number``."""
        return f"{self.title} in %" if self.percent else self.title

    def scaled(self, value: float) -> float:
        """A value, or a difference of two, in the unit of ``heading``."""
        return 100 * value if self.percent else value

    def number(self, value: float | None, sign: str = "") -> str:
        """A value without its unit; "-" for None. ``sign`` "+" also marks what is positive, as differences want."""
        if value is None:
            return NOTHING
        return f"{self.scaled(value):{sign}{'.2f' if self.percent else self.style}}"

    def text(self, value: float | None) -> str:
        """A value as people read it: "95.47 %", "0.731"; "-" for None."""
        return self.number(value) + (" %" if self.percent and value is not None else "")

    def gap(self, value: float | None, sign: str = "+") -> str:
        """A difference of two values: "+0.09 percentage points", "+0.046"."""
        return self.number(value, sign) + (" percentage points" if self.percent and value is not None else "")

    def better(self, a: float | None, b: float | None) -> bool:
        """Whether a is strictly better than b; any value is better than none."""
        if a is None or b is None:
            return a is not None and b is None
        return a > b if self.higher else a < b

    def goodness(self, value: float) -> float:
        """The value, with its sign turned where less is better: more is always better."""
        return value if self.higher else -value

    def best(self, values: Iterable[float | None]) -> float | None:
        """Best of the known values; None if there are none."""
        return max((v for v in values if v is not None), key=self.goodness, default=None)

    def worst(self, values: Iterable[float | None]) -> float | None:
        """Worst of the known values; None if there are none."""
        return min((v for v in values if v is not None), key=self.goodness, default=None)


_TABLE = (
    Metric(
        "accuracy",
        "accuracy",
        True,
        percent=True,
        low=0.0,
        high=1.0,
        samples={"classes": m.right_class, "multilabel": m.right_flags},
    ),
    Metric(
        "balanced_accuracy",
        "balanced accuracy",
        True,
        percent=True,
        low=0.0,
        high=1.0,
        weighted={"classes": m.balanced_accuracy, "multilabel": m.balanced_flags},
    ),
    Metric(
        "macro_f1",
        "macro F1",
        True,
        percent=True,
        low=0.0,
        high=1.0,
        weighted={"classes": m.macro_f1, "multilabel": m.flags_f1},
    ),
    Metric(
        "auroc",
        "AUROC",
        True,
        low=0.0,
        high=1.0,
        weighted={"classes": m.AUROC_CLASSES, "multilabel": m.AUROC_LABELS},
    ),
    Metric(
        "auprc",
        "AUPRC",
        True,
        low=0.0,
        high=1.0,
        weighted={"classes": m.AUPRC_CLASSES, "multilabel": m.AUPRC_LABELS},
    ),
    Metric(
        "brier",
        "Brier score",
        False,
        style=".4g",
        low=0.0,
        high=2.0,
        samples={"classes": m.class_brier, "multilabel": m.flag_brier},
    ),
    Metric(
        "loss",
        "loss",
        False,
        style=".4g",
        samples={"classes": m.class_surprise, "multilabel": m.flag_surprise, "regression": m.squared_error},
    ),
    Metric(
        "mae",
        "mean absolute error",
        False,
        style=".4g",
        low=0.0,
        samples={"regression": m.absolute_error},
    ),
    Metric(
        "mse",
        "mean squared error",
        False,
        style=".4g",
        low=0.0,
        samples={"regression": m.squared_error},
    ),
    Metric("r2", "R\N{SUPERSCRIPT TWO}", True, high=1.0, weighted={"regression": m.r2}),
)
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _TABLE}
ACCURACY, LOSS = METRICS["accuracy"], METRICS["loss"]


def compute(name: str, outputs: Arrays, targets: Arrays, kind: Targets) -> float | None:
    """A metric of a model's outputs on some samples; None where they do not define it.

    Args:
        name: of the metric; "loss" is that of the kind of targets, whatever a run minimised.
        outputs: (n, K) as a network gives them: logits, or numbers.
        targets: (n,) class numbers, (n, K) zeros and ones, or (n, K) numbers.
        kind: what the targets are. Raises KeyError where the metric is not defined for it.
    """
    truth = array(targets)
    return defined(measured(METRICS[name], kind, natural(array(outputs), kind), truth, np.ones((1, len(truth))))[0])


def measured(metric: Metric, kind: Targets, predictions: Array, targets: NDArray[Any], weights: Array) -> Array:
    """A metric of predictions (n, K), on their natural scale, for sample weights (R, n): (R,), NaN where undefined."""
    if not len(targets):
        return np.full(len(weights), np.nan)
    truth = targets if kind == "classes" else targets.astype(float)
    if kind in metric.samples:
        return divide(weights @ metric.samples[kind](predictions, truth), weights.sum(axis=1))
    return metric.weighted[kind](predictions, truth, weights)


def natural(outputs: NDArray[Any], kind: Targets) -> Array:
    """Outputs (n, K) of a network as probabilities, or as the numbers they are; float64."""
    values = np.asarray(outputs, dtype=float)
    if kind == "classes":
        shares = np.exp(values - values.max(axis=1, keepdims=True)) if values.size else values
        return np.asarray(shares / shares.sum(axis=1, keepdims=True)) if values.size else values
    if kind == "multilabel":
        # Half a hyperbolic tangent is the logistic function, and overflows nowhere.
        return np.asarray(0.5 + 0.5 * np.tanh(values / 2))
    return values


def array(values: Arrays) -> NDArray[Any]:
    """A tensor's numbers; an array as it is."""
    return values if isinstance(values, np.ndarray) else np.asarray(values.detach().cpu())

"""Metrics, one of which is the headline metric of a run, chosen by the task; a client's scores."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, inf, log10
from typing import TYPE_CHECKING, Annotated, Any, Union

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, StringConstraints

from pomona.core.bounds import Count, Label, Measured, Stage
from pomona.core.table import PLACEHOLDER

if TYPE_CHECKING:
    from torch import Tensor


Arrays = Union[NDArray[Any], "Tensor"]
FOUR_DIGITS = "#.4g"


@dataclass(frozen=True)
class Metric:
    """A metric: name, direction, range and unit.

    Its computation is defined by the task (``tasks/``).

    Attributes:
        name: in settings and records.
        title: for display.
        higher: whether more is better.
        percent: whether it is displayed in percent.
        style: display format if not in percent.
        low, high: its range.
        pools: whether it is a mean over samples, so that the sample-weighted mean of clients'
            values is the value of all samples together.
    """

    name: str
    title: str
    higher: bool
    percent: bool = False
    style: str = ".3f"
    low: float = -inf
    high: float = inf
    pools: bool = False

    @property
    def heading(self) -> str:
        """Title with the unit, for a column of ``number``."""
        return f"{self.title} in %" if self.percent else self.title

    @property
    def is_share(self) -> bool:
        """Whether it lies between 0 and 1, and more is better."""
        return self.higher and (self.low, self.high) == (0.0, 1.0)

    def scaled(self, value: float) -> float:
        """Convert a value, or a difference, to the unit of ``heading``."""
        return 100 * value if self.percent else value

    def number(self, value: float | None, sign: str = "") -> str:
        """Format a value without its unit; "-" for None.

        ``sign`` "+" also marks positive values.
        """
        return PLACEHOLDER if value is None else self.numbers([value], sign)[0]

    def numbers(self, values: Sequence[float], sign: str = "") -> list[str]:
        """Format values that stand together, such as the ends of an interval, as ``number``: those
        in the data's unit with the decimals that give the largest four digits.
        """
        style = ".2f" if self.percent else self.style
        largest = max(map(abs, values), default=0.0)
        if style == FOUR_DIGITS and 1e-4 <= largest < 1e6:
            style = f".{max(3 - floor(log10(largest)), 0)}f"
        return [f"{self.scaled(value):{sign}{style}}" for value in values]

    def text(self, value: float | None) -> str:
        """Format a value for display: "95.47 %", "0.731"; "-" for None."""
        return self.number(value) + (" %" if self.percent and value is not None else "")

    @property
    def unit_of_gaps(self) -> str:
        """The unit of a difference of two values, after a blank; empty for none."""
        return " percentage points" if self.percent else ""

    def gap(self, value: float | None) -> str:
        """Format a difference of two values: "+0.09 percentage points", "+0.046"; "-" for None."""
        return self.number(value, "+") + self.unit_of_gaps * (value is not None)

    def better(self, a: float | None, b: float | None) -> bool:
        """Return whether a is strictly better than b; any value is better than None."""
        if a is None or b is None:
            return a is not None and b is None
        return a > b if self.higher else a < b

    def goodness(self, value: float) -> float:
        """Return the value, negated if less is better, so that more is always better."""
        return value if self.higher else -value

    def best(self, values: Iterable[float | None]) -> float | None:
        """Return the best of the values that are not None; None if there are none."""
        return max((v for v in values if v is not None), key=self.goodness, default=None)

    def worst(self, values: Iterable[float | None]) -> float | None:
        """Return the worst of the values that are not None; None if there are none."""
        return min((v for v in values if v is not None), key=self.goodness, default=None)


_TABLE = (
    Metric("accuracy", "accuracy", True, percent=True, low=0.0, high=1.0, pools=True),
    Metric("balanced_accuracy", "balanced accuracy", True, percent=True, low=0.0, high=1.0),
    Metric("macro_f1", "macro F1", True, percent=True, low=0.0, high=1.0),
    Metric("auroc", "AUROC", True, low=0.0, high=1.0),
    Metric("auprc", "AUPRC", True, low=0.0, high=1.0),
    Metric("brier", "Brier score", False, style=".4f", low=0.0, high=2.0, pools=True),
    Metric("dice", "Dice", True, low=0.0, high=1.0),
    Metric("iou", "IoU", True, low=0.0, high=1.0),
    Metric("loss", "loss", False, style=FOUR_DIGITS, pools=True),
    Metric("mae", "mean absolute error", False, style=FOUR_DIGITS, low=0.0, pools=True),
    Metric("mse", "mean squared error", False, style=FOUR_DIGITS, low=0.0, pools=True),
    Metric("c_index", "C-index", True, low=0.0, high=1.0),
    Metric("uno_c", "Uno's C-index", True, low=0.0, high=1.0),
    Metric("dynamic_auroc", "time-dependent AUROC", True, low=0.0, high=1.0),
    Metric("integrated_brier", "integrated Brier score", False, low=0.0),
    Metric("r2", "R\N{SUPERSCRIPT TWO}", True, high=1.0),
)
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _TABLE}
DETAILS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("subset_accuracy", "all labels right", True, True, low=0.0, high=1.0, pools=True),
        Metric("ece", "calibration error", False, True, low=0.0, high=1.0),
    )
}
"""Further metrics of a model, which cannot be a run's headline metric."""
EVERY_METRIC: Mapping[str, Metric] = {**METRICS, **DETAILS}
ACCURACY, LOSS = METRICS["accuracy"], METRICS["loss"]
_OWN = re.compile(r"-?[A-Za-z_][\w.]{0,99}:[A-Za-z_]\w{0,99}", re.ASCII)


def is_own(name: str) -> bool:
    """Return whether a metric's name is a user's own: ``module:function``, after a minus if less is
    better.
    """
    return bool(_OWN.fullmatch(name))


def metric_named(name: str) -> Metric:
    """Return the metric with a name; for a user's own, which is not imported, the name contains
    everything.

    Raises KeyError for an unknown name.
    """
    if not is_own(name):
        return METRICS[name]
    title = name.partition(":")[2].replace("_", " ")
    return Metric(name, title, higher=not name.startswith("-"), style=FOUR_DIGITS)


def array(values: Arrays) -> NDArray[Any]:
    """Convert a tensor to an array; arrays are returned unchanged."""
    return values if isinstance(values, np.ndarray) else np.asarray(values.detach().cpu())


EvaluationSplit = Annotated[str, StringConstraints(pattern="^(validation|test)$")]
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, slots=True)
class Score:
    """One client's scores for one named model on one split; None if its samples do not define them,
    or its loss is not finite.

    Creating one checks nothing. Where one comes from a message or a file, Pydantic checks it by
    these types.

    Attributes:
        model: "personal", "global" or "local".
        when: "received" (before local training) or "trained".
        split: "validation" or "test".
        samples: their number.
        loss: mean per sample.
        accuracy: share of right classes, or of right flags; None for regression.
        value: the run's metric.
        interval: its 95 % confidence interval, if requested and defined.
    """

    # unknown keys are ignored: refusing them takes a kilobyte each
    __pydantic_config__ = ConfigDict(allow_inf_nan=False, revalidate_instances="always")

    model: Label
    when: Stage
    split: EvaluationSplit
    samples: Count
    loss: Measured | None = None
    accuracy: Share | None = None
    value: Measured | None = None
    interval: tuple[Measured, Measured] | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """Key (model, when, split) of a curve over rounds."""
        return (self.model, self.when, self.split)

    @property
    def broken(self) -> bool:
        """Whether there are samples, and their loss is not finite."""
        return self.samples > 0 and self.loss is None

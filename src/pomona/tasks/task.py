"""A task: everything that depends on the type of targets, in one record.

A new task is a file here and a line in ``TASKS``; methods do not depend on it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.bounds import Targets
from pomona.metrics.intervals import Interval, Statistics
from pomona.metrics.measures import Samples, Weighted
from pomona.metrics.nan_safe import Array

if TYPE_CHECKING:
    from torch import Tensor

    from pomona.data.dataset import Dataset

Shape = tuple[int, ...]
# functions of sample weights -> their bootstrap intervals
Resample = Callable[[Statistics], Mapping[str, Interval]]


def _identity(outputs: "Tensor", targets: "Tensor") -> tuple["Tensor", "Tensor"]:
    return outputs, targets


def _flat(n_outputs: int, input_shape: Shape) -> Shape:
    return (n_outputs,)


@dataclass(frozen=True)
class Task:
    """A task.

    Outputs are (n, *S) as returned by the network, S of ``output_shape``; targets are (n, ...) as
    stored in a data set; predictions are the result of ``natural``: float64, on a readable scale.
    ``natural``, ``measures``, ``details``, ``strata`` and ``informative`` get outputs and targets
    after ``reduce``.

    Attributes:
        targets: its name, in settings and records.
        title: name of the targets in messages.
        output: name of one output.
        loss: the ``module:function`` of the loss of each sample: (outputs (B, *S), targets (B,
            ...)) -> (B,). It is imported on use, so that a report does not need PyTorch.
        no_target: number of outputs and shape of a sample -> a zero target as a network learns it,
            int64 or float32.
        stored_target: the same for a target as stored in a data set; None if both are the same.
        learned: stored targets, and their data set -> targets as a network learns them.
        natural: outputs -> predictions.
        measures: the metrics defined, each a mean over samples if its ``Metric.pools``, else a
            function of sample weights.
        proportions: those that are shares of right samples, with Wilson's interval.
        usual: the default headline metric, unless the labels are imbalanced.
        constant: training targets (n, ...) and K -> the best constant outputs (K,).
        constantly: a client's constant answer, in words.
        details: predictions, targets and ``Resample`` -> what an evaluation has in addition to
            ``measures``, as JSON values. It raises DivergedError for predictions that are not
            finite.
        predict: outputs and the names of outputs -> one answer per sample, as JSON values.
        reduce: a batch's outputs (n, *S) and targets -> the values needed for the metrics, samples
            first; unchanged for most tasks. Evaluation keeps only these values of a split.
        examine: the same, with additional values for the metrics of a final model.
        output_shape: number of outputs K and shape of a sample -> shape of a sample's outputs.
        right: outputs and targets -> which answers (n, ...) are right, faster than by ``measures``;
            None if not applicable.
        soften: outputs and a temperature -> targets for the loss; the outputs themselves for
            numbers.
        smooths: whether the loss accepts ``smoothing``, the share of each target that is spread
            over all classes.
        commonest: training targets and class names -> the share of the most frequent answer, and
            its name; None if not applicable.
        outcomes: whether each class or label is also evaluated as a separate outcome.
        standardised: whether a network learns standardised targets.
        strata: targets -> (n,) strata whose sizes the bootstrap keeps.
        informative: targets -> number of informative samples, for a metric that is not a mean over
            samples; None: all that differ.
        within: ends of time intervals -> the task of a run with these; None if time plays no role.
    """

    targets: Targets
    title: str
    output: str
    loss: str
    no_target: Callable[[int, Shape], NDArray[Any]] = field(repr=False)
    natural: Callable[[NDArray[Any]], Array] = field(repr=False)
    measures: Mapping[str, Samples | Weighted] = field(repr=False)
    usual: str
    constant: Callable[[NDArray[Any], int], Array] = field(repr=False)
    details: Callable[[Array, NDArray[Any], Resample], dict[str, Any]] = field(repr=False)
    predict: Callable[["Tensor", Sequence[str]], list[dict[str, Any]]] = field(repr=False)
    reduce: Callable[["Tensor", "Tensor"], tuple["Tensor", "Tensor"]] = field(
        default=_identity, repr=False
    )
    examine: Callable[["Tensor", "Tensor"], tuple["Tensor", "Tensor"]] = field(
        default=_identity, repr=False
    )
    output_shape: Callable[[int, Shape], Shape] = field(default=_flat, repr=False)
    stored_target: Callable[[int, Shape], NDArray[Any]] | None = field(default=None, repr=False)
    learned: Callable[[NDArray[Any], "Dataset"], NDArray[Any]] = field(
        default=lambda stored, _: stored, repr=False
    )
    right: Callable[["Tensor", "Tensor"], "Tensor"] | None = field(default=None, repr=False)
    soften: Callable[["Tensor", float], "Tensor"] = field(
        default=lambda outputs, _: outputs, repr=False
    )
    constantly: str = "the class frequencies of its training labels"
    smooths: bool = False
    commonest: Callable[[NDArray[Any], Sequence[str]], tuple[float, str]] | None = field(
        default=None, repr=False
    )
    outcomes: bool = False
    standardised: bool = False
    proportions: tuple[str, ...] = ()
    strata: Callable[[NDArray[Any]], NDArray[np.int64]] = field(
        default=lambda targets: np.zeros(len(targets), np.int64), repr=False
    )
    informative: Callable[[NDArray[Any]], int] | None = field(default=None, repr=False)
    within: Callable[[tuple[float, ...]], "Task"] | None = field(default=None, repr=False)

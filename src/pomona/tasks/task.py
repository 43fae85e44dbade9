"""A task: all that the kind of a data set's targets decides, in one record. A new task is a file here and a line in
``TASKS``; methods know nothing of it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.targets import Targets
from pomona.metrics.measures import Samples, Weighted
from pomona.metrics.nan_safe import Array

if TYPE_CHECKING:
    from torch import Tensor

    from pomona.data.dataset import Dataset

Shape = tuple[int, ...]


def _both(outputs: "Tensor", targets: "Tensor") -> tuple["Tensor", "Tensor"]:
    return outputs, targets


def _flat(n_outputs: int, input_shape: Shape) -> Shape:
    return (n_outputs,)


@dataclass(frozen=True)
class Task:
    """A task.

    Outputs are (n, *S) as the network gives them, S of ``output_shape``; targets are (n, ...) as a data set holds them;
    predictions are what ``natural`` makes of outputs: float64, on a scale that people read. ``natural``, ``measures``,
    ``evaluate``, ``strata`` and ``informative`` see outputs and targets as ``reduce`` leaves them.

    Attributes:
        targets: its name, in settings and records.
        title: what the targets are, in messages.
        output: what one output stands for.
        loss: the ``module:function`` of the loss of each sample: (outputs (B, *S), targets (B, ...)) -> (B,). It is
            imported when asked for, so that a report needs no PyTorch.
        no_target: number of outputs and shape of a sample -> a target as a network learns it, int64 or float32, zeros.
        held: the same of a target as a data set holds it; None where a network learns what is held.
        learned: targets as a data set holds them, and that data set -> targets as a network learns them.
        natural: outputs -> predictions.
        measures: what of the metrics is defined, each a mean over samples if its ``Metric.pools``, else a function of
            sample weights.
        usual: the metric of a run, where labels do not speak against it.
        constant: training targets (n, ...) and K -> the outputs (K,) that fit them best if nothing else is known.
        constantly: what ``constant`` answers, in words, of one client.
        evaluate: predictions, targets and a generator for the bootstrap -> all figures of a model, ready for JSON.
        predict: outputs and the names of outputs -> an answer a sample, ready for JSON.
        reduce: a batch's outputs (n, *S) and targets -> what of them the metrics are functions of, samples first; both
            as they are for most. Evaluation holds no more than this of a split.
        examine: the same, and what the figures of a last model need beside it.
        output_shape: number of outputs K and shape of a sample -> shape of a sample's outputs.
        accuracy: the share of right answers, quicker than by ``measures``; None where nothing is right or wrong.
        soften: outputs and a temperature -> targets that the loss takes; outputs themselves for numbers.
        smooths: whether the loss takes a ``smoothing``, the share of each target that is spread over all classes.
        commonest: training targets and class names -> the share of the most frequent answer, and what it is; None where
            no answer is more frequent than others.
        outcomes: whether each class or label is judged as an outcome of its own.
        standardised: whether a network learns targets with mean 0 and deviation 1.
        strata: targets -> (n,) what a bootstrap keeps the sizes of.
        informative: targets -> how many samples bear on a metric that is no mean over samples; None: all that differ.
        within: ends of intervals of time -> the task of a run with these; None where time plays no role.
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
    evaluate: Callable[[Array, NDArray[Any], np.random.Generator], dict[str, Any]] = field(repr=False)
    predict: Callable[["Tensor", Sequence[str]], list[dict[str, Any]]] = field(repr=False)
    reduce: Callable[["Tensor", "Tensor"], tuple["Tensor", "Tensor"]] = field(default=_both, repr=False)
    examine: Callable[["Tensor", "Tensor"], tuple["Tensor", "Tensor"]] = field(default=_both, repr=False)
    output_shape: Callable[[int, Shape], Shape] = field(default=_flat, repr=False)
    held: Callable[[int, Shape], NDArray[Any]] | None = field(default=None, repr=False)
    learned: Callable[[NDArray[Any], "Dataset"], NDArray[Any]] = field(default=lambda held, _: held, repr=False)
    accuracy: Callable[["Tensor", "Tensor"], float] | None = field(default=None, repr=False)
    soften: Callable[["Tensor", float], "Tensor"] = field(default=lambda outputs, _: outputs, repr=False)
    constantly: str = "its most frequent training label"
    smooths: bool = False
    commonest: Callable[[NDArray[Any], Sequence[str]], tuple[float, str]] | None = field(default=None, repr=False)
    outcomes: bool = False
    standardised: bool = False
    strata: Callable[[NDArray[Any]], NDArray[np.int64]] = field(
        default=lambda targets: np.zeros(len(targets), np.int64), repr=False
    )
    informative: Callable[[NDArray[Any]], int] | None = field(default=None, repr=False)
    within: Callable[[tuple[float, ...]], "Task"] | None = field(default=None, repr=False)

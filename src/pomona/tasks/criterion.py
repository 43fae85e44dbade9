"""The loss of a run, its task's or a user's own; and the metric values of constant predictions."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pomona.core.errors import ConfigError
from pomona.core.registry import Registry
from pomona.metrics.metric import metric_named
from pomona.metrics.nan_safe import Array, defined, row_means
from pomona.models import ModelSettings
from pomona.tasks.task import Task

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs (B, *S), targets (B, ...)) -> losses (B,)


# (metric, outputs (n, K), targets)
Score = Callable[[str, NDArray[np.float32], NDArray[Any]], float | None]


def constants(
    names: Sequence[str],
    task: Task,
    width: int,
    common: NDArray[Any],
    train: Sequence[NDArray[Any]],
    test: Sequence[NDArray[Any]],
    score: Score,
) -> dict[str, Any]:
    """Return metric values of constant predictions on each client's test samples.

    ``own``: each client always predicts the answer that fits its own training labels; ``all``:
    every client predicts the one that fits the training labels of all that are trained with in
    round 1. Each has, by metric,
    ``clients`` (one value per client, None if undefined), their ``mean``, and ``pooled``, over all
    samples (None for a metric that is not a mean over samples).

    Args:
        names: of the metrics.
        task: of the targets.
        width: K, of the outputs.
        common: training targets of all clients of round 1.
        train: training targets of each client.
        test: test targets of each client.
        score: computes a metric.
    """
    constant_answers = {
        "own": [task.constant(labels, width) for labels in train],
        "all": [task.constant(common, width)] * len(train),
    }
    samples = [len(labels) for labels in test]

    def figures(name: str, answers: Sequence[Array]) -> dict[str, Any]:
        values = [
            score(name, np.tile(fixed.astype(np.float32), (len(truth), 1)), truth)
            if len(truth)
            else None
            for fixed, truth in zip(answers, test, strict=True)
        ]
        row = np.array([values], dtype=float)
        pooled = defined(row_means(row, samples)[0]) if metric_named(name).pools else None
        return {"clients": values, "mean": defined(row_means(row)[0]), "pooled": pooled}

    return {
        scope: {name: figures(name, answers) for name in names}
        for scope, answers in constant_answers.items()
    }


def criterion(settings: ModelSettings, task: Task) -> Loss:
    """Return the loss per sample: (outputs (B, *S), targets (B, ...)) -> (B,).

    Raises ConfigError for a name that is neither ``auto`` nor an importable ``module:function``,
    and for label smoothing if the task does not define it.
    """
    share = settings.label_smoothing
    if share and (not task.smooths or settings.loss != "auto"):
        raise ConfigError(
            f"model.label_smoothing = {share} is for classes and model.loss = auto; remove it here"
        )
    loss: Callable[..., Tensor] = Registry("loss", {"auto": task.loss}).resolve(settings.loss)
    return partial(loss, smoothing=share) if share else loss


def require_per_sample(
    loss: Loss, name: str, task: Task, n_outputs: int, input_shape: tuple[int, ...]
) -> None:
    """Raise ConfigError unless a loss returns one number for each of two samples; ``name`` is for
    the message.
    """
    shape = (2, *task.output_shape(n_outputs, input_shape))
    target = torch.from_numpy(task.no_target(n_outputs, input_shape))
    try:
        got = loss(torch.zeros(shape), torch.stack([target, target]))
    except (RuntimeError, ValueError, TypeError, IndexError) as fault:
        raise ConfigError(
            f"model.loss={name} fails on outputs of shape {shape}: {fault}"
        ) from fault
    if not isinstance(got, Tensor) or tuple(got.shape) != (2,):
        description = f"shape {tuple(got.shape)}" if isinstance(got, Tensor) else type(got).__name__
        raise ConfigError(
            f"model.loss={name} returned {description} for 2 samples; return one loss per sample, "
            "(2,): reduction='none'"
        )

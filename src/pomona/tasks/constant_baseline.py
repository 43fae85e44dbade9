"""Metric values of a constant prediction: a model below them has learned nothing useful."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.metrics.metric import metric_named
from pomona.metrics.nan_safe import Array, defined, row_means
from pomona.tasks.task import Task

Judge = Callable[[str, NDArray[np.float32], NDArray[Any]], float | None]  # (metric, outputs (n, K), targets)


def constants(
    names: Sequence[str],
    task: Task,
    width: int,
    train: Sequence[NDArray[Any]],
    test: Sequence[NDArray[Any]],
    judge: Judge,
) -> dict[str, Any]:
    """Metric values of constant predictions on each client's test samples.

    ``own``: each client always gives the answer that fits its own training labels; ``all``: everybody gives the one
    that fits the training labels of all. Each holds, by metric, ``clients`` (one value a client, None where undefined),
    their ``mean``, and ``pooled``, over all samples (None for a metric that is no mean over samples).

    Args:
        names: of the metrics.
        task: what the targets are.
        width: K, of the outputs.
        train: training targets of each client.
        test: test targets of each client.
        judge: computes a metric.
    """
    common = task.constant(np.concatenate(list(train)), width) if train else np.zeros(width)
    given = {"own": [task.constant(labels, width) for labels in train], "all": [common] * len(train)}
    samples = [len(labels) for labels in test]

    def figures(name: str, answers: Sequence[Array]) -> dict[str, Any]:
        each = [
            judge(name, np.tile(fixed.astype(np.float32), (len(truth), 1)), truth) if len(truth) else None
            for fixed, truth in zip(answers, test, strict=True)
        ]
        row = np.array([each], dtype=float)
        pooled = defined(row_means(row, samples)[0]) if metric_named(name).pools else None
        return {"clients": each, "mean": defined(row_means(row)[0]), "pooled": pooled}

    return {whose: {name: figures(name, answers) for name in names} for whose, answers in given.items()}

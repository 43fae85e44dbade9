"""Classification: each sample has one of K classes; outputs are K logits, targets (n,) class
numbers.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError
from pomona.metrics import measures as m
from pomona.metrics.nan_safe import Array, defined, divide, require_finite
from pomona.tasks.task import Resample, Task

if TYPE_CHECKING:
    from torch import Tensor


def probabilities(outputs: NDArray[Any]) -> Array:
    """Convert logits (n, K) to probabilities (n, K), float64."""
    values = np.asarray(outputs, dtype=float)
    if not values.size:
        return values
    # shares of infinite logits are NaN: metrics report that, NumPy need not warn
    with np.errstate(invalid="ignore"):
        shares = np.exp(values - values.max(axis=1, keepdims=True))
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def frequencies(labels: NDArray[Any], width: int) -> Array:
    """Return logits of the class frequencies, with each count increased by one (Laplace's rule) so
    that none is 0.
    """
    return np.asarray(
        np.log((np.bincount(labels, minlength=width) + 1.0) / (len(labels) + width)), dtype=float
    )


def commonest(labels: NDArray[Any], classes: Sequence[str]) -> tuple[float, str]:
    """Return the share of the most frequent class, and its name."""
    counts = np.bincount(labels)
    top = int(counts.argmax())
    name = classes[top] if top < len(classes) else str(top)
    return float(counts[top] / counts.sum()), f"samples are of class {name!r}"


def _details(p: Array, labels: NDArray[Any], _: Resample) -> dict[str, Any]:
    """Return ``sensitivity`` (C,), the share of each class's samples that are predicted as such,
    and ``confusion`` (C, C), counts by label and prediction.

    Raises DataError for labels that are not classes of the model.
    """
    require_finite(p)
    classes = p.shape[1]
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise DataError(
            f"labels run from {labels.min()} to {labels.max()}, but the model has classes 0 to "
            f"{classes - 1}"
        )
    cells = labels.astype(np.int64) * classes + p.argmax(axis=1)
    confusion = np.bincount(cells, minlength=classes**2).reshape(classes, classes)
    recalled = divide(np.diag(confusion), confusion.sum(axis=1))
    return {"sensitivity": [defined(value) for value in recalled], "confusion": confusion.tolist()}


def _predict(outputs: "Tensor", names: Sequence[str]) -> list[dict[str, Any]]:
    """Return ``class``, its ``probability``, and ``probabilities`` by class."""
    rows = [dict(zip(names, row, strict=True)) for row in outputs.double().softmax(1).tolist()]
    best = [max(row, key=row.__getitem__) for row in rows]
    return [
        {"class": c, "probability": row[c], "probabilities": row}
        for c, row in zip(best, rows, strict=True)
    ]


TASK = Task(
    targets="classes",
    title="classes",
    output="class",
    loss="pomona.models.losses:cross_entropy",
    no_target=lambda _width, _shape: np.zeros((), np.int64),
    natural=probabilities,
    measures={
        "accuracy": m.right_class,
        "balanced_accuracy": m.balanced_accuracy,
        "macro_f1": m.macro_f1,
        "auroc": m.AUROC_CLASSES,
        "auprc": m.AUPRC_CLASSES,
        "brier": m.class_brier,
        "ece": m.calibration_error,
        "loss": m.class_surprise,
    },
    proportions=("accuracy",),
    usual="accuracy",
    constant=frequencies,
    details=_details,
    predict=_predict,
    right=lambda outputs, targets: outputs.argmax(1) == targets,
    soften=lambda outputs, temperature: (outputs / temperature).softmax(1),
    smooths=True,
    commonest=commonest,
    outcomes=True,
    strata=lambda targets: targets,
    informative=lambda targets: len(targets) - int(np.bincount(targets).max()),
)

"""Multi-label classification: outputs are K logits, targets (n, K) zeros and ones."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pomona.metrics import measures as m
from pomona.metrics.nan_safe import Array, defined, divide, require_finite
from pomona.tasks.task import Resample, Task

if TYPE_CHECKING:
    from torch import Tensor


def probabilities(outputs: NDArray[Any]) -> Array:
    """Convert logits (n, K) to probabilities (n, K), float64."""
    # The logistic function via tanh, which does not overflow.
    return np.asarray(0.5 + 0.5 * np.tanh(np.asarray(outputs, dtype=float) / 2))


def frequencies(labels: NDArray[Any], width: int) -> Array:
    """Return logits of the label frequencies, with one more sample of each value (Laplace's rule):
    none is 0.
    """
    positives = labels.sum(axis=0) + 1.0
    return np.asarray(np.log(positives) - np.log(len(labels) + 2.0 - positives), dtype=float)


def commonest(labels: NDArray[Any], classes: Sequence[str]) -> tuple[float, str]:
    """Return the share of flags that have their label's most frequent value."""
    # By label: very common and very rare labels are both predictable without looking.
    rates = (labels > 0.5).mean(axis=0)
    return float(np.maximum(rates, 1 - rates).mean()), "flags have their label's usual value"


def informative(targets: NDArray[Any]) -> int:
    """Return the number of samples with the rarer value of any label; each sample counts once."""
    flags = targets > 0.5
    rarer = flags == (2 * flags.sum(axis=0) <= len(targets))
    return int(rarer.any(axis=1).sum())


def _details(p: Array, flags: NDArray[Any], _: Resample) -> dict[str, Any]:
    """Return ``labels``, metrics of each label at a threshold of 0.5, lists of K; ``positives`` is
    how many samples have it.
    """
    require_finite(p)
    truth, guess, once = flags > 0.5, p > 0.5, np.ones((1, len(p)))
    hits, actual, predicted = (truth & guess).sum(axis=0), truth.sum(axis=0), guess.sum(axis=0)
    columns = list(zip(p.T, truth.T, strict=True))
    figures: dict[str, Sequence[float] | Array] = {
        "accuracy": divide((truth == guess).sum(axis=0), len(p)),
        "auroc": [m.auroc(*column, once)[0] for column in columns],
        "auprc": [m.average_precision(*column, once)[0] for column in columns],
        "sensitivity": divide(hits, actual),
        "specificity": divide((~truth & ~guess).sum(axis=0), (~truth).sum(axis=0)),
        "f1": divide(2 * hits, actual + predicted),
    }
    values = {name: [defined(value) for value in row] for name, row in figures.items()}
    return {"labels": {"positives": actual.tolist(), **values}}


def _predict(outputs: "Tensor", names: Sequence[str]) -> list[dict[str, Any]]:
    """Return ``probabilities`` by label."""
    rows = outputs.double().sigmoid().tolist()
    return [{"probabilities": dict(zip(names, row, strict=True))} for row in rows]


TASK = Task(
    targets="multilabel",
    title="several labels a sample",
    output="label",
    loss="pomona.models.losses:binary_cross_entropy",
    no_target=lambda width, _shape: np.zeros(width, np.float32),
    natural=probabilities,
    measures={
        "accuracy": m.right_flags,
        "balanced_accuracy": m.balanced_flags,
        "macro_f1": m.flags_f1,
        "auroc": m.AUROC_LABELS,
        "auprc": m.AUPRC_LABELS,
        "brier": m.squared_error,
        "subset_accuracy": m.every_flag,
        "loss": m.flag_surprise,
    },
    proportions=("subset_accuracy",),
    usual="accuracy",
    constant=frequencies,
    details=_details,
    predict=_predict,
    right=lambda outputs, targets: (outputs > 0) == (targets > 0.5),
    soften=lambda outputs, temperature: (outputs / temperature).sigmoid(),
    commonest=commonest,
    outcomes=True,
    informative=informative,
)

"""Regression: outputs are K numbers, targets (n, K); networks learn them standardised."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pomona.metrics import measures as m
from pomona.metrics.nan_safe import Array, defined, mean_of_known, require_finite
from pomona.tasks.task import Resample, Task

if TYPE_CHECKING:
    from torch import Tensor

    from pomona.data.dataset import Dataset


def means(numbers: NDArray[Any], width: int) -> Array:
    """Return the means of the targets; zeros without any."""
    return np.asarray(numbers.mean(axis=0) if len(numbers) else np.zeros(width), dtype=float)


def deviations(numbers: NDArray[Any], dataset: "Dataset") -> NDArray[np.float32]:
    """Return standardised targets (n, K), float32, as a network learns them."""
    standardised: Array = (np.asarray(numbers, dtype=float) - dataset.target_shift) / np.array(
        dataset.target_scale
    )
    return standardised.astype(np.float32)


def _details(predicted: Array, truth: NDArray[Any], _: Resample) -> dict[str, Any]:
    """Return ``targets``, metrics of each target, lists of K."""
    require_finite(predicted)
    once = np.ones((1, len(truth)))
    columns = [(predicted[:, [k]], truth[:, [k]]) for k in range(truth.shape[1])]
    return {
        "targets": {
            "mse": [mean_of_known(m.squared_error(*column)) for column in columns],
            "mae": [mean_of_known(m.absolute_error(*column)) for column in columns],
            "r2": [defined(m.r2(*column, once)[0]) for column in columns],
        }
    }


def _predict(outputs: "Tensor", names: Sequence[str]) -> list[dict[str, Any]]:
    """Return ``values`` by target."""
    return [{"values": dict(zip(names, row, strict=True))} for row in outputs.double().tolist()]


TASK = Task(
    targets="regression",
    title="numbers",
    output="target",
    loss="pomona.models.losses:squared_error",
    no_target=lambda width, _shape: np.zeros(width, np.float32),
    natural=lambda outputs: np.asarray(outputs, dtype=float),
    measures={"loss": m.squared_error, "mae": m.absolute_error, "mse": m.squared_error, "r2": m.r2},
    usual="mae",
    constant=means,
    details=_details,
    predict=_predict,
    constantly="its mean training target",
    standardised=True,
    learned=deviations,
)

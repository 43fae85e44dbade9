"""Segmentation: each pixel (or voxel) has one of C classes, the first the background; outputs are
(n, C, *S) logits.

Targets are (n, *S) class numbers, uint8. Metrics need only counts of pixels, so evaluation keeps a
few numbers per
sample: outputs become (n, 3C) true positive, false positive and false negative pixels by class,
float32, and targets (n, C) true pixels by class, int64.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pomona.metrics.nan_safe import Array
from pomona.metrics.overlap import (
    evaluate_regions,
    mean_dice,
    mean_iou,
    surface_distances,
    surfaces_measurable,
)
from pomona.tasks.task import Shape, Task

if TYPE_CHECKING:
    from torch import Tensor

TOLERANCE = 1.0  # tolerance of the surface Dice in pixels


def output_shape(n_outputs: int, input_shape: Shape) -> Shape:
    """Return the shape of one map per class, of the image's size."""
    return (n_outputs, *input_shape[1:])


def regions(numbers: "Tensor", classes: int) -> "Tensor":
    """Return one-hot masks: (n, *S) class numbers -> (n, C, pixels) bool."""
    import torch

    return numbers.flatten(1).unsqueeze(1) == torch.arange(
        classes, device=numbers.device
    ).unsqueeze(1)


def counts(outputs: "Tensor", targets: "Tensor") -> tuple["Tensor", "Tensor"]:
    """Return counts (n, 3C) float32 and true pixels (n, C) int64 from outputs (n, C, *S) and
    targets (n, *S).
    """
    import torch

    classes = outputs.shape[1]
    predicted, true = regions(outputs.argmax(1), classes), regions(targets, classes)
    overlap, all_predicted, all_true = (predicted & true).sum(2), predicted.sum(2), true.sum(2)
    return torch.cat([overlap, all_predicted - overlap, all_true - overlap], 1).float(), all_true


def with_surfaces(outputs: "Tensor", targets: "Tensor") -> tuple["Tensor", "Tensor"]:
    """Return ``counts`` and, if MONAI is installed, the distances between surfaces: (n, 5C)."""
    import torch

    pixel_counts, true = counts(outputs, targets)
    if not surfaces_measurable():
        return pixel_counts, true
    predicted, numbers = (values.cpu().numpy() for values in (outputs.argmax(1), targets))
    distances = torch.from_numpy(surface_distances(predicted, numbers, outputs.shape[1], TOLERANCE))
    return torch.cat([pixel_counts, distances.to(pixel_counts)], 1), true


def frequencies(masks: NDArray[Any], width: int) -> Array:
    """Return logits of the classes' pixel shares, with each count increased by one (Laplace's
    rule).
    """
    pixels = np.bincount(masks.ravel(), minlength=width) + 1.0
    return np.asarray(np.log(pixels / pixels.sum()), dtype=float)


def _predict(outputs: "Tensor", names: Sequence[str]) -> list[dict[str, Any]]:
    """Return ``mask``, the class number of each pixel, uint8, and ``pixels`` by class."""
    masks = outputs.argmax(1).cpu().numpy().astype(np.uint8)
    pixels = [np.bincount(mask.ravel(), minlength=len(names)).tolist() for mask in masks]
    return [
        {"mask": mask, "pixels": dict(zip(names, row, strict=True))}
        for mask, row in zip(masks, pixels, strict=True)
    ]


TASK = Task(
    targets="segmentation",
    title="masks",
    output="class",
    loss="pomona.models.losses:cross_entropy_dice",
    no_target=lambda _width, shape: np.zeros(shape[1:], np.int64),
    natural=lambda outputs: np.asarray(outputs, dtype=float),
    measures={"dice": mean_dice, "iou": mean_iou},
    usual="dice",
    constant=frequencies,
    details=lambda figures, pixels, resample: {
        "regions": evaluate_regions(figures, pixels, resample)
    },
    predict=_predict,
    reduce=counts,
    examine=with_surfaces,
    output_shape=output_shape,
    soften=lambda outputs, temperature: (outputs / temperature).softmax(1),
)

"""Overlap of predicted and true regions, from counts of pixels.

Counts are (n, 3C): for each sample and each of C classes, the true positive, false positive and
false negative pixels. A class that is neither present nor predicted in a sample is undefined there,
NaN, and ignored in means; class 0 is the background, and excluded from means over classes.
"""

import warnings
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.metrics.intervals import Interval, Statistics
from pomona.metrics.nan_safe import Array, defined, divide, row_means


def surfaces_measurable() -> bool:
    """Return whether MONAI is installed."""
    return find_spec("monai") is not None


def surface_distances(
    claimed: NDArray[np.integer], true: NDArray[np.integer], classes: int, tolerance: float
) -> Array:
    """Return each sample's and class's 95 % Hausdorff distance in pixels, then the surface Dice,
    (n, 2C).

    The distance is NaN if either region is empty. The surface Dice is the share of both surfaces
    that lies within ``tolerance`` of the other (Nikolov et al., JMIR 2021): 0 if only one region is
    empty, NaN if both are. For the background, class 0, both are NaN.

    Args:
        claimed: (n, *S) predicted class numbers.
        true: (n, *S) class numbers.
        classes: C.
        tolerance: in pixels.
    """
    hausdorff, dice = (np.full((len(true), classes), np.nan) for _ in range(2))
    for k in range(len(true)):
        for c in range(1, classes):
            regions = claimed[k] == c, true[k] == c
            filled = [bool(region.any()) for region in regions]
            if all(filled):
                hausdorff[k, c], dice[k, c] = _surface_metrics(*regions, tolerance)
            elif any(filled):
                dice[k, c] = 0.0
    return np.concatenate([hausdorff, dice], axis=1)


def _surface_metrics(
    claimed: NDArray[np.bool_], true: NDArray[np.bool_], tolerance: float
) -> tuple[float, float]:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from MONAI's own imports
        from monai.metrics.hausdorff_distance import compute_hausdorff_distance
        from monai.metrics.surface_dice import compute_surface_dice

        prediction, target = (torch.from_numpy(region)[None, None] for region in (claimed, true))
        hausdorff = compute_hausdorff_distance(
            prediction, target, include_background=True, percentile=95
        )
        surface_dice = compute_surface_dice(
            prediction, target, class_thresholds=[tolerance], include_background=True
        )
    return float(hausdorff), float(surface_dice)


def dice(counts: Array) -> Array:
    """Return 2 TP / (2 TP + FP + FN), (n, C) (Dice, Ecology 1945)."""
    hits, false_positives, false_negatives = _split_counts(counts)
    return divide(2 * hits, 2 * hits + false_positives + false_negatives)


def iou(counts: Array) -> Array:
    """Return TP / (TP + FP + FN), (n, C) (Jaccard 1912)."""
    hits, false_positives, false_negatives = _split_counts(counts)
    return divide(hits, hits + false_positives + false_negatives)


def mean_dice(counts: Array, pixels: NDArray[Any], weights: Array) -> Array:
    """Return Dice averaged over foreground classes, then over samples with weights (R, n): (R,)."""
    return _over_samples(dice(counts[:, : 3 * pixels.shape[1]]), weights)


def mean_iou(counts: Array, pixels: NDArray[Any], weights: Array) -> Array:
    """Return IoU averaged over foreground classes, then over samples with weights (R, n): (R,)."""
    return _over_samples(iou(counts[:, : 3 * pixels.shape[1]]), weights)


def evaluate_regions(
    figures: Array, pixels: NDArray[Any], resample: Callable[[Statistics], Mapping[str, Interval]]
) -> dict[str, Any]:
    """Evaluate each class: JSON lists of length C, with None for undefined values.

    Its mean ``dice`` and ``iou`` over the ``seen`` samples in which it is present or predicted,
    with ``dice_interval``; its true ``pixels``; and, if distances are given, the mean ``hd95`` over
    the ``measured`` samples in which it is both, and the mean ``surface_dice``.

    Args:
        figures: (n, 3C) counts, or (n, 5C): counts and then ``surface_distances``.
        pixels: (n, C) true pixels of each class in each sample.
        resample: returns the intervals of statistics.
    """
    n, classes = pixels.shape
    counts, hd95, surface = np.split(figures, [3 * classes, 4 * classes], axis=1)
    scores = dice(counts)

    def statistics(weights: Array) -> dict[str, Array]:
        return {str(c): _mean(scores[:, c], weights) for c in range(classes)}

    bootstrapped = resample(statistics)
    return {
        "seen": (~np.isnan(scores)).sum(axis=0).tolist(),
        "pixels": np.asarray(pixels, dtype=np.int64).sum(axis=0).tolist(),
        "dice": [defined(value[0]) for value in statistics(np.ones((1, n))).values()],
        "dice_interval": [bootstrapped.get(str(c)) for c in range(classes)],
        "iou": [defined(value) for value in row_means(iou(counts).T)],
        **(_distances(hd95, surface) if hd95.size else {}),
    }


def _distances(hd95: Array, surface: Array) -> dict[str, list[Any]]:
    return {
        "measured": (~np.isnan(hd95)).sum(axis=0).tolist(),
        "hd95": [defined(value) for value in row_means(hd95.T)],
        "surface_dice": [defined(value) for value in row_means(surface.T)],
    }


def _split_counts(counts: Array) -> list[Array]:
    return np.split(np.asarray(counts, dtype=float), 3, axis=1)


def _over_samples(figures: Array, weights: Array) -> Array:
    """Average over foreground classes and weighted samples: (n, C) -> (R,)."""
    return _mean(row_means(figures[:, 1:]), weights)


def _mean(values: Array, weights: Array) -> Array:
    """Return the mean of the defined values in (n,), for sample weights (R, n): (R,)."""
    return divide(weights @ np.nan_to_num(values), weights @ ~np.isnan(values))

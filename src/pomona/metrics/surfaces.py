"""Distances between the surfaces of predicted and true regions, computed by MONAI (the extra ``monai``)."""

import warnings
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from pomona.metrics.nan_safe import Array


def available() -> bool:
    """Return whether MONAI is installed."""
    return find_spec("monai") is not None


def surface_distances(claimed: NDArray[np.integer], true: NDArray[np.integer], classes: int, tolerance: float) -> Array:
    """Return each sample's and class's 95 % Hausdorff distance in pixels, then the surface Dice, (n, 2C).

    The distance is NaN if either region is empty. The surface Dice is the share of both surfaces that lies within
    ``tolerance`` of the other (Nikolov et al., JMIR 2021): 0 if only one region is empty, NaN if both are. For the
    background, class 0, both are NaN.

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
                hausdorff[k, c], dice[k, c] = _both(*regions, tolerance)
            elif any(filled):
                dice[k, c] = 0.0
    return np.concatenate([hausdorff, dice], axis=1)


def _both(claimed: NDArray[np.bool_], true: NDArray[np.bool_], tolerance: float) -> tuple[float, float]:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from MONAI's own imports
        from monai.metrics.hausdorff_distance import compute_hausdorff_distance
        from monai.metrics.surface_dice import compute_surface_dice

        one, two = (torch.from_numpy(region)[None, None] for region in (claimed, true))
        far = compute_hausdorff_distance(one, two, include_background=True, percentile=95)
        near = compute_surface_dice(one, two, class_thresholds=[tolerance], include_background=True)
    return float(far), float(near)

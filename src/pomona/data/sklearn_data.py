"""The two data sets bundled with scikit-learn, without download."""

from functools import cache
from typing import Any

import numpy as np

from pomona.data import image_arrays
from pomona.data.dataset import Dataset
from pomona.data.kinds import BundledImages, BundledTable


def digits(settings: BundledImages) -> Dataset:
    """Load handwritten digits (1797, 8, 8, 1), scaled from 0..16 to 0..255."""
    source = _digits()
    x = np.rint(source.images * (255 / 16)).astype(np.uint8)[..., None]
    classes = tuple(map(str, source.target_names))
    return Dataset(
        "digits",
        "image",
        x,
        source.target.astype(np.int64),
        classes,
        len(x),
        image_arrays.SHIFT,
        image_arrays.SCALE,
    )


@cache
def _digits() -> Any:
    """Cache the data, since scikit-learn parses them from text, which takes longer than a short
    run's round.
    """
    from sklearn.datasets import load_digits

    return load_digits()


def breast_cancer(settings: BundledTable) -> Dataset:
    """Load Breast Cancer Wisconsin, diagnostic (569, 30)."""
    from sklearn.datasets import load_breast_cancer

    source = load_breast_cancer()
    x, y = source.data.astype(np.float32), source.target.astype(np.int64)
    return Dataset("breast-cancer", "table", x, y, tuple(map(str, source.target_names)), len(x))

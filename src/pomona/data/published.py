"""Published data sets without a format of their own: those of scikit-learn, and MedMNIST."""

from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.data import npz
from pomona.data.axes import BundledImages, BundledTable, PublicImages
from pomona.data.catalogue import CATALOGUE, locate
from pomona.data.dataset import Dataset
from pomona.data.images import image_arrays


def medmnist(settings: PublicImages) -> Dataset:
    """Read a 2-D set of MedMNIST v2 (Yang et al. 2023), one .npz each, with the validation split
    among the training rows; chestmnist has 14 flags per row instead of a class.
    """
    name, path = settings.name, locate(settings)
    archive = npz.archive(path)
    pairs = [archive.pair(f"{role}_images", f"{role}_labels") for role in ("train", "val", "test")]
    names, share = CATALOGUE[name].classes, settings.memory_share
    if name == "chestmnist":
        dataset = image_arrays.dataset(name, pairs, 2, share, "multilabel")
        dataset = replace(dataset, labels=names)
    else:
        dataset = image_arrays.dataset(name, pairs, 2, share, classes=names)
    return replace(dataset, shift=image_arrays.SHIFT, scale=image_arrays.SCALE)


def digits(settings: BundledImages) -> Dataset:
    """Load handwritten digits (1797, 8, 8, 1), scaled from 0..16 to 0..255."""
    table = _digits()
    x = np.rint(table[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    y, classes = table[:, -1].astype(np.int64), CATALOGUE["digits"].classes
    return Dataset("digits", "image", x, y, classes, len(x), *image_arrays.usual(x))


@cache
def _digits() -> NDArray[Any]:
    """Read 64 pixels and the digit a line (1797, 65) from scikit-learn's own file, once.

    Its ``load_digits`` reads the same, but importing scikit-learn takes longer than a short run.
    """
    package = find_spec("sklearn")
    assert package, "a dependency"
    assert package.origin, "a package"
    return np.loadtxt(Path(package.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")


def breast_cancer(settings: BundledTable) -> Dataset:
    """Load Breast Cancer Wisconsin, diagnostic (569, 30)."""
    from sklearn.datasets import load_breast_cancer

    source = load_breast_cancer()
    x, y = source.data.astype(np.float32), source.target.astype(np.int64)
    return Dataset("breast-cancer", "table", x, y, tuple(map(str, source.target_names)), len(x))

"""Example masks: for a few clients, the test images with the best and the worst Dice, in ``mask_examples.npz``.

    image-I (2, H, W, c) uint8   truth-I, predicted-I (2, H, W) uint8   dice-I (2,) float64

of client I, the best first. They are samples of the data: a simulation writes them, a federation does not.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError
from pomona.storage.atomic_io import publish

FILE = "mask_examples.npz"
MOST_CLIENTS = 6
MOST_SIDE = 256  # pixels; larger images are subsampled


@dataclass(frozen=True)
class MaskExamples:
    """Images (k, H, W, c) uint8, c 1 or 3; true and predicted class numbers (k, H, W) uint8; and their Dice (k,)."""

    image: NDArray[np.uint8]
    truth: NDArray[np.uint8]
    predicted: NDArray[np.uint8]
    dice: NDArray[np.float64]


Uint8 = NDArray[np.uint8]


def example(x: NDArray[Any], truth: NDArray[Any], predicted: NDArray[Any]) -> tuple[Uint8, Uint8, Uint8]:
    """Return a sample's image, truth and prediction for display.

    For a volume (D, H, W, C), the slice with the most foreground pixels; grey values scaled from minimum to maximum;
    only the first channel unless there are three.
    """
    if x.ndim == 4:
        most = int((truth > 0).sum(axis=(1, 2)).argmax())
        x, truth, predicted = x[most], truth[most], predicted[most]
    step = -(-max(truth.shape) // MOST_SIDE)
    x, truth, predicted = (a[::step, ::step] for a in (x, truth, predicted))
    values = x[..., : 3 if x.shape[-1] == 3 else 1].astype(np.float64)
    low, high = values.min(), values.max()
    grey = np.zeros_like(values) if low == high else 255 * (values - low) / (high - low)
    return grey.astype(np.uint8), truth.astype(np.uint8), predicted.astype(np.uint8)


def save(folder: Path, examples: Mapping[int, MaskExamples]) -> None:
    """Write the examples of some clients; deterministic to the byte. Raises OSError."""
    packed = io.BytesIO()
    np.savez(
        packed, allow_pickle=False, **{f"{part}-{i}": getattr(e, part) for i, e in examples.items() for part in _PARTS}
    )
    publish(folder, [packed.getvalue()], lambda _: FILE)


def read(folder: Path, client: int) -> MaskExamples | None:
    """Read a client's examples; None if a record has none. Raises DataError for a damaged file."""
    from pomona.data import npz  # imported late: it loads the image readers

    path = folder / FILE
    if not path.exists() or f"image-{client}" not in npz.names(path):
        return None
    image, truth, predicted, dice = (npz.stored(path, f"{part}-{client}").load() for part in _PARTS)
    if not (
        image.ndim == 4
        and image.shape[-1] in {1, 3}
        and max(image.shape[:3]) <= MOST_SIDE
        and image.shape[:3] == truth.shape == predicted.shape
        and dice.shape == image.shape[:1]
        and all(a.dtype == np.uint8 for a in (image, truth, predicted))
        and dice.dtype == np.float64
    ):
        raise DataError(f"{path} has no examples of client {client}; run the federation again")
    return MaskExamples(image, truth, predicted, dice)


_PARTS = ("image", "truth", "predicted", "dice")

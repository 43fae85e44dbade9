"""Images as (N, H, W, C) uint8: gathered from stored arrays, and resized."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import ConfigError, DataError
from pomona.data.array_file import StoredArray, joined
from pomona.data.dataset import Dataset
from pomona.storage.mapped_array import allocate

# (x / 255 - 0.5) / 0.5, as in the published code of APPLE and of FedALA.
SHIFT = SCALE = (127.5,)
WINDOW = (
    "convert all images of all clients by one window, in which values from low to high become 0 to 255 "
    "(docs/guides/own-data.md)"
)


def gathered(parts: Sequence[StoredArray], memory_share: float) -> NDArray[np.generic]:
    """The images of all parts, stored as (n, H, W) or (n, H, W, C) uint8, in one array (N, H, W, C).

    Raises:
        DataError: another dtype or shape, or a damaged file.
    """
    for part in parts:
        row = part.shape[1:]
        if part.dtype != np.uint8 or len(row) not in {2, 3} or (*row, 1)[2] not in range(1, 5):
            raise DataError(
                f"{part.where} is {part.dtype} {part.shape}; images are uint8 (N, H, W) or (N, H, W, C), "
                f"0 to 255, with 1 to 4 channels last; {WINDOW}"
            )
    height, width, channels = (*parts[0].shape[1:], 1)[:3]
    return joined(parts, (height, width, channels), np.uint8, memory_share)


def resized(dataset: Dataset, side: int | None, memory_share: float) -> Dataset:
    """The same images at ``side`` x ``side`` pixels (bilinear, antialiased); the same record if there is nothing to do.

    Raises:
        ConfigError: the data are no images.
    """
    if side is None or dataset.x.shape[1:3] == (side, side):
        return dataset
    if dataset.kind != "image":
        raise ConfigError(f"data.resize is for images, and {dataset.name} is a {dataset.kind}; drop it")
    return replace(dataset, x=_resize(dataset.x, side, memory_share))


def _resize(x: NDArray[Any], side: int, memory_share: float) -> NDArray[np.generic]:
    from PIL import Image

    # Pillow's integer arithmetic gives the same bytes on every machine, hence the same fingerprint.
    out = allocate((len(x), side, side, x.shape[3]), np.uint8, memory_share)
    for image, small in zip(x, out, strict=True):
        for channel in range(x.shape[3]):
            plane = Image.fromarray(np.ascontiguousarray(image[..., channel]))
            small[..., channel] = plane.resize((side, side), Image.Resampling.BILINEAR)
    return out

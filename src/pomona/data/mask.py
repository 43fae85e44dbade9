"""Segmentation masks: the class of each pixel of an image or volume, from a separate file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError
from pomona.data import image_decoding
from pomona.data.image_arrays import nearest
from pomona.data.image_file import Size
from pomona.data.image_stack import Allocate, MaskReader, Opened, each, opened
from pomona.data.kinds import ImageManifest


def decoded(
    path: Path, spatial: tuple[int, ...], classes: int, size: Size | None = None
) -> NDArray[np.uint8]:
    """Decode a mask to class numbers (*spatial,) uint8; resized to (width, height) by nearest pixel
    if given.

    Formats are those of images: volumes as NIfTI or a DICOM series; flat masks as PNG, TIFF etc.,
    in gray, black and white (0 and 1), or with a palette, whose indices count rather than its
    colours.

    Raises:
        DataError: the file cannot be read, has colours, differs in size from the image, or has
            pixels that are not integers below the number of classes.
    """
    values = _values(path)
    if values.shape[-1] != 1 or values.shape[:-1] != spatial:
        theirs, own = (" x ".join(map(str, shape)) for shape in (values.shape, spatial))
        raise DataError(
            f"the mask {path} has {theirs} values, its image {own} pixels; give each pixel one "
            "class"
        )
    flat = values[..., 0]
    odd = ~((flat >= 0) & (flat < classes) & (flat == np.floor(flat)))
    if odd.any():
        raise DataError(
            f"the mask {path} holds {flat[odd][0]:g} in {int(odd.sum())} of {flat.size} pixels; "
            f"classes are whole numbers from 0 to {classes - 1}, as many as data.classes names"
        )
    return nearest(flat, size).astype(np.uint8) if size else flat.astype(np.uint8)


def reader(masks: Sequence[Path], settings: ImageManifest) -> MaskReader:
    """Return a reader of the masks of images: (n, *spatial) uint8, the indices of the images that
    have one, and problems.
    """

    def read(
        opened: Opened, allocate: Allocate
    ) -> tuple[NDArray[Any], NDArray[np.int64], list[str]]:
        side, bad = settings.resize, list[str]()
        y: NDArray[Any] | None = None
        kept: list[int] = []

        def drawn(k: int) -> NDArray[np.uint8]:
            spatial = opened(k).shape[:-1]
            size = (side, side) if side and len(spatial) == 2 else None
            return decoded(masks[k], spatial, len(settings.classes), size)

        for k, values in each(range(len(masks)), drawn, bad):
            if y is None:
                y = allocate((len(masks), *values.shape), np.uint8)
            if values.shape == y.shape[1:]:  # different image sizes are rejected later
                y[len(kept)] = values
            kept.append(k)
        empty = np.zeros((0, 1, 1), np.uint8)
        return (empty if y is None else y), np.array(kept, np.int64), bad

    return read


def _values(path: Path) -> NDArray[Any]:
    """Return the stored numbers (*spatial, C)."""
    if path.suffix.lower() in image_decoding.SUFFIXES:
        return image_decoding.stored(path)
    file = opened(path)
    return file.decoded(file.shape[-1])

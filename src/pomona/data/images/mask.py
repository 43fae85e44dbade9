"""Segmentation masks: the class of each pixel of an image or volume, from a separate file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError
from pomona.data.axes import ImageList
from pomona.data.formats import dicom_segmentation, pictures, tiff
from pomona.data.images import file_notes
from pomona.data.images.grid import Grid
from pomona.data.images.image_arrays import nearest
from pomona.data.images.image_file import Size
from pomona.data.images.image_stack import (
    PICTURES,
    Allocate,
    MaskReader,
    Masks,
    Opened,
    each,
    opened,
)

LARGEST_STEP = 0.1  # of scaled numbers that may be class numbers
ROUNDING = 1e-4  # of a class number: less is the rounding of real numbers


class Mask(NamedTuple):
    """Class numbers of pixels (*spatial,) uint8, and remarks."""

    classes: NDArray[np.uint8]
    notes: tuple[str, ...] = ()


def decoded(
    path: Path, spatial: tuple[int, ...], classes: int, size: Size | None = None
) -> NDArray[np.uint8]:
    """Decode a mask of an image without a grid, of this many classes. Raises as ``read``."""
    return read(path, spatial, list(map(str, range(classes))), size).classes


def read(
    path: Path,
    spatial: tuple[int, ...],
    names: Sequence[str],
    size: Size | None = None,
    grid: Grid | None = None,
) -> Mask:
    """Decode a mask to class numbers; resized to (width, height) by nearest pixel if given.

    Formats are those of images, and DICOM segmentations; flat masks in gray, black and white (0 and
    1), or with a palette, whose indices count rather than its colours.

    Args:
        path: of the mask.
        spatial: sides of its image.
        names: of the classes, background first.
        size: to resize to.
        grid: of its image, if that is a volume; the mask's must be the same.

    Raises:
        DataError: the file cannot be read, has colours, differs in size or grid from the image, or
            has pixels that are not integers below the number of classes.
    """
    if path.suffix.lower() not in PICTURES and dicom_segmentation.is_segmentation(path):
        if grid is None and len(spatial) != 2:
            raise DataError(f"the mask {path} lies in the patient, its image does not; save NIfTI")
        segments = dicom_segmentation.read(path, grid, spatial, names)
        flat, notes = segments.classes, segments.notes
    else:
        flat, notes = _numbers(path, spatial, grid, len(names))
    return Mask(nearest(flat, size).astype(np.uint8) if size else flat.astype(np.uint8), notes)


def reader(masks: Sequence[Path], settings: ImageList) -> MaskReader:
    """Return a reader of the masks of images."""

    def stacked(opened: Opened, allocate: Allocate) -> Masks:
        side, bad = settings.resize, list[str]()
        y: NDArray[Any] | None = None
        kept: list[int] = []
        remarks: list[tuple[str, Sequence[str]]] = []

        def drawn(k: int) -> Mask:
            image = opened(k)
            spatial = image.shape[:-1]
            size = (side, side) if side and len(spatial) == 2 else None
            return read(masks[k], spatial, settings.classes, size, image.grid)

        for k, mask in each(range(len(masks)), drawn, bad):
            if y is None:
                y = allocate((len(masks), *mask.classes.shape), np.uint8)
            if mask.classes.shape == y.shape[1:]:  # different image sizes are rejected later
                y[len(kept)] = mask.classes
            kept.append(k)
            remarks.append((masks[k].name, mask.notes))
        empty = np.zeros((0, 1, 1), np.uint8)
        notes = file_notes.by_note(remarks, "masks")
        return Masks(empty if y is None else y, np.array(kept, np.int64), bad, notes)

    return stacked


def _numbers(
    path: Path, spatial: tuple[int, ...], grid: Grid | None, classes: int
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Return the class numbers (*spatial,) of a mask that is an image or a volume, and remarks."""
    notes: tuple[str, ...] = ()
    step = 0.0
    if path.suffix.lower() in tiff.SUFFIXES:
        values = tiff.labels(path)
    elif path.suffix.lower() in pictures.SUFFIXES:
        values = pictures.labels(path)
    else:
        file = opened(path)
        values, step = file.decoded(file.shape[-1]), file.step
        if grid is not None and file.grid is not None:
            values, notes = _placed(file.grid, values, grid)
    if values.shape[-1] != 1 or values.shape[:-1] != spatial:
        theirs, image = (" x ".join(map(str, shape)) for shape in (values.shape, spatial))
        remedy = (
            "give each pixel one class: one channel of class numbers, without colours"
            if values.shape[:-1] == spatial
            else "bring it to the size of its image, by nearest pixel"
        )
        raise DataError(f"the mask {path} has {theirs} values, its image {image} pixels; {remedy}")
    flat, more = _whole(values[..., 0], step)
    wrong = ~((flat >= 0) & (flat < classes) & (flat == np.floor(flat)))
    if wrong.any():
        scaled = (
            f" (the file scales its numbers, in steps of {step:.4g}: save it as whole numbers)"
            if step
            else _renumbered(np.unique(flat), classes)
        )
        raise DataError(
            f"the mask {path} holds {flat[wrong][0]:g} in {int(wrong.sum())} of {flat.size} "
            f"pixels; classes are whole numbers from 0 to {classes - 1}, as many as data.classes "
            f"names{scaled}"
        )
    return flat, (*notes, *more)


def _renumbered(values: NDArray[Any], classes: int) -> str:
    """Return a remedy for a mask whose classes have other numbers, such as 0 and 255."""
    if not 1 < len(values) <= classes:
        return ""
    others = [f"{value:g}" for value in values[1:]]
    numbers = ", ".join(map(str, range(1, len(values))))
    return f"; save it with {numbers} in place of {', '.join(others)}"


def _placed(mask: Grid, values: NDArray[Any], image: Grid) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Return the values of a mask on the grid of its image, and remarks.

    Raises DataError if the grids differ.
    """
    if mask.oriented and image.oriented:
        return mask.matched(image, mask.stored(values)), ()
    voxels = mask.stored(values)
    if mask.shape != image.shape:
        return values, ()  # the sizes are compared next
    silent, other = ("mask", "image") if image.oriented else ("image", "mask")
    note = (
        f"the {silent} does not say how it lies in the patient: its axes are taken to be stored as "
        f"those of the {other}"
    )
    return image.turned(voxels), (note,) if mask.oriented != image.oriented else ()


def _whole(values: NDArray[Any], step: float) -> tuple[NDArray[Any], list[str]]:
    """Return numbers rounded to whole ones if no further from them than their storage explains, and
    remarks.
    """
    if values.dtype.kind != "f" or step > LARGEST_STEP:
        return values, []
    nearest_whole = np.rint(values)
    apart = np.abs(values - nearest_whole)
    close = apart <= max(step / 2 * (1 + 1e-3), ROUNDING)
    if not (apart[close] > 0).any():
        return values, []
    why = f"the file scales its numbers in steps of {step:.4g}" if step else "real numbers"
    note = f"{why}: rounded by up to {apart[close].max():.2g} to whole class numbers"
    return np.where(close, nearest_whole, values), [note]

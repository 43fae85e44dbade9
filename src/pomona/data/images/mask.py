"""Segmentation masks: the class of each pixel of an image or volume, from a separate file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError
from pomona.data.formats import dicom_segmentation, image_formats, pictures, tiff
from pomona.data.images import segments
from pomona.data.images.file_notes import times
from pomona.data.images.grid import Grid
from pomona.data.images.image_arrays import nearest
from pomona.data.images.image_file import ImageFile, Size

LARGEST_STEP = 0.1  # of scaled numbers that may be class numbers
ONE_TURNED = (
    "only one of image and mask is turned by a tag: they fit only if they do as viewers show them"
)
MAJORITY = 0.5  # of pixels
WHITE = (
    "low values mean white (MinIsWhite), and most pixels are no background: if the mask is drawn "
    "in white on black, save it as PNG"
)
ROUNDING = 1e-4  # of a class number: less is the rounding of real numbers


class Mask(NamedTuple):
    """Class numbers of pixels (*spatial,) uint8, remarks, and the colours that a palette gives the
    numbers.
    """

    classes: NDArray[np.uint8]
    notes: tuple[str, ...] = ()
    colours: Mapping[int, str] = {}


def read(path: Path, image: ImageFile, names: Sequence[str], size: Size | None = None) -> Mask:
    """Decode a mask to class numbers; resized to (width, height) by nearest pixel if given.

    Formats are those of images, and DICOM segmentations; named segments are the classes of their
    names; flat masks in gray, black and white (0 and
    1), or with a palette, whose indices count rather than its colours.

    Args:
        path: of the mask.
        image: that it is of; the grids of volumes must be the same.
        names: of the classes, background first.
        size: to resize to.

    Raises:
        DataError: the file cannot be read, has colours, differs in size or grid from the image, or
            has pixels that are not integers below the number of classes.
    """
    file_format = image_formats.by_suffix(path)
    stored = file_format.stored_labels(path) if file_format else None
    if stored is None and dicom_segmentation.is_segmentation(path):
        mask = Mask(*dicom_segmentation.read(path, image, names))
    else:
        mask = _image_classes(path, stored, image, names)
    classes = nearest(mask.classes, size) if size else mask.classes
    return mask._replace(classes=classes.astype(np.uint8))


def _colours(file: ImageFile, stored: NDArray[Any] | None) -> dict[int, str]:
    """Return the colour of each number in a mask with a palette."""
    if stored is None or stored.shape[-1] == file.shape[-1]:
        return {}
    numbers, first = np.unique(stored, return_index=True)
    pixels = file.decoded(3).reshape(-1, 3)
    return {int(k): f"#{pixels[i].tobytes().hex()}" for k, i in zip(numbers, first, strict=True)}


def _image_classes(
    path: Path, stored: NDArray[Any] | None, image: ImageFile, names: Sequence[str]
) -> Mask:
    """Return a mask that is an image or a volume; ``stored``: its numbers, where they differ from
    its values.
    """
    file = image_formats.opened(path)
    if file.mask_fault:
        raise DataError(f"the mask {path} {file.mask_fault}; save it as DICOM SEG, NIfTI or PNG")
    dicom_segmentation.require_patient(path, file.patient, image)
    values = file.decoded(file.shape[-1]) if stored is None else stored
    remarks = _remarks(file, values, image)
    values, placed = _placed(path, file, values, image)
    if file.segments:
        numbers, segment_notes = segments.classes(path, dict(file.segments), names)
        values, placed = segments.as_classes(path, values, numbers), (*placed, *segment_notes)
    classes, notes = _classes(path, values, image.shape[:-1], len(names), file.step)
    return Mask(classes, (*remarks, *placed, *notes), _colours(file, stored))


def _placed(
    path: Path, file: ImageFile, values: NDArray[Any], image: ImageFile
) -> tuple[NDArray[Any], Sequence[str]]:
    """Return a mask's values on the plane or the grid of its image, and remarks."""
    if len(image.shape) == 3 and values.shape[2:] == (1,):
        values = dicom_segmentation.in_plane(path, file, values, image)
    if image.grid is not None and file.grid is not None:
        grid, voxels = file.grid, file.grid.stored(values)
        if file.segments:
            grid, voxels = grid.extended(image.grid, voxels)  # 3D Slicer crops to the segments
        return _on_grid(grid, voxels, image.grid)
    return values, ()


def _remarks(file: ImageFile, values: NDArray[Any], image: ImageFile) -> list[str]:
    """Return remarks on a mask's transparency, polarity and orientation tag."""
    remarks = {
        pictures.ALPHA: pictures.ALPHA in file.notes,
        WHITE: tiff.WHITE in file.notes and bool((values > 0).mean() > MAJORITY),
        ONE_TURNED: (pictures.TURNED in file.notes) != (pictures.TURNED in image.notes),
    }
    return [note for note, applies in remarks.items() if applies]


def _classes(
    path: Path, values: NDArray[Any], spatial: tuple[int, ...], count: int, step: float = 0.0
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Return the class numbers (*spatial,) among the values of a mask, and remarks."""
    if values.shape != (*spatial, 1):
        remedy = "bring it to the size of its image, by nearest pixel"
        if values.shape[:-1] == spatial:
            remedy = "give each pixel one class: one channel of class numbers, without colours"
        raise DataError(
            f"the mask {path} has {times(values.shape)} values, but its image has "
            f"{times(spatial)} pixels; {remedy}"
        )
    numbers, notes = _rounded(values[..., 0], step)
    invalid = ~((numbers >= 0) & (numbers < count) & (numbers == np.floor(numbers)))
    if invalid.any():
        remedy = _renumbered(np.unique(numbers), count)
        if step:
            remedy = f" (it scales its numbers, in steps of {step:.4g}: save it as whole numbers)"
        raise DataError(
            f"the mask {path} holds {numbers[invalid][0]:g} in {int(invalid.sum())} of "
            f"{numbers.size} pixels; classes are whole numbers from 0 to {count - 1}, as many as "
            f"data.classes names{remedy}"
        )
    return numbers, notes


def _renumbered(values: NDArray[Any], count: int) -> str:
    """Return a remedy for a mask whose classes have other numbers, such as 0 and 255."""
    if values[0] or not 1 < len(values) == count:  # with fewer, other masks may have the rest
        return ""
    numbers = ", ".join(map(str, range(1, len(values))))
    return f"; save it with {numbers} in place of {', '.join(f'{v:g}' for v in values[1:])}"


def _on_grid(mask: Grid, voxels: NDArray[Any], image: Grid) -> tuple[NDArray[Any], list[str]]:
    """Return the stored voxels of a mask on the grid of its image, and remarks.

    Raises DataError if the grids differ.
    """
    if (mask.oriented and image.oriented) or mask.shape != image.shape:
        return mask.matched(image, voxels), []
    silent, oriented = ("mask", "image") if image.oriented else ("image", "mask")
    note = (
        f"the {silent} does not state its orientation in the patient: its axes are taken to be "
        f"those of the {oriented}"
    )
    return image.turned(voxels), [note] * (mask.oriented != image.oriented)


def _rounded(values: NDArray[Any], step: float) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Return numbers rounded to whole ones if no further from them than their storage explains, and
    remarks.
    """
    if values.dtype.kind != "f" or step > LARGEST_STEP:
        return values, ()
    rounded = np.rint(values)
    distance = np.abs(values - rounded)
    close = distance <= max(step / 2 * (1 + 1e-3), ROUNDING)
    if not (distance[close] > 0).any():
        return values, ()
    reason = f"the file scales its numbers in steps of {step:.4g}" if step else "real numbers"
    note = f"{reason}: rounded by up to {distance[close].max():.2g} to whole class numbers"
    return np.where(close, rounded, values), (note,)

"""DICOM segmentations (SEG): segments in any order, on some of the slices, binary, fractional or as
a label map, laid onto the grid of an image by the positions of their frames.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pomona.core import bounds
from pomona.core.errors import DataError
from pomona.data.formats import dicom_header
from pomona.data.formats.dicom import frame_slice
from pomona.data.images import segments
from pomona.data.images.grid import LPS_TO_RAS, Grid
from pomona.data.images.image_file import decoding
from pomona.data.images.slice_stack import Slice, plane_affine

FRACTION = 0.5  # of the full value of a fractional segment: from here on a voxel is in it


class Mask(NamedTuple):
    """Class numbers of voxels, and remarks."""

    classes: NDArray[np.uint8]
    notes: tuple[str, ...]


def is_segmentation(path: Path) -> bool:
    """Return whether a file is a DICOM segmentation."""
    return (
        path.is_file()
        and dicom_header.is_dicom(path)
        and dicom_header.read(path).get("SOPClassUID") in dicom_header.SEGMENTATIONS
    )


def read(path: Path, grid: Grid | None, size: tuple[int, ...], names: Sequence[str]) -> Mask:
    """Return the class of each voxel of an image.

    Args:
        path: the file.
        grid: of the volume; None for an image.
        size: rows and columns of an image without a grid.
        names: of the classes, background first.

    Returns:
        (z, y, x) of the patient, or (rows, columns).

    Raises:
        DataError: frames that do not lie on the grid, segments that overlap or have no class.
        ConfigError: a decoder is not installed.
    """
    with decoding(path):
        dataset = dicom_header.read(path, pixels=True)
        dicom_header.require_decoder(path, dataset.file_meta.TransferSyntaxUID)
        numbers, notes = segments.classes(path, _labels(dataset), names)
        mask = np.zeros(grid.shape if grid else size, np.uint8)
        planes = dicom_header.pixels(path, dataset)
        if str(dataset.SegmentationType) == "FRACTIONAL":
            planes = planes >= FRACTION * float(dataset.MaximumFractionalValue)
            meaning = str(dataset.get("SegmentationFractionalType", "fraction")).lower()
            notes.append(
                f"fractional segments ({meaning}): a voxel belongs to a segment from {FRACTION:g} "
                "upwards"
            )
        for frame, plane in enumerate(planes):
            flat = dicom_header.frame_header(path, dataset, frame)
            stored = plane
            if str(dataset.SegmentationType) != "LABELMAP":
                stored = (plane > 0) * int(flat.ReferencedSegmentNumber)
            spot = frame_slice(f"frame {frame + 1}", flat, frame)
            classes, window = _placed(
                path, spot, segments.as_classes(path, stored, numbers), mask.shape, grid
            )
            voxels = mask[window]
            overlap = (classes > 0) & (voxels > 0) & (voxels != classes)
            if overlap.any():
                pair = {names[voxels[overlap][0]], names[classes[overlap][0]]}
                raise DataError(
                    f"the mask {path}: segments {' and '.join(sorted(pair, key=names.index))} "
                    "overlap; give each voxel one class"
                )
            voxels[classes > 0] = classes[classes > 0]
        return Mask(grid.turned(mask) if grid else mask, tuple(notes))


def _labels(dataset: Any) -> dict[int, str]:
    """Return the names of the segments by their numbers."""
    return {
        int(segment.SegmentNumber): bounds.plain(str(segment.get("SegmentLabel", "")), 60)
        for segment in dataset.SegmentSequence
        if int(segment.SegmentNumber)  # a label map may describe its background as segment 0
    }


def _placed(
    path: Path, spot: Slice, classes: NDArray[np.uint8], shape: tuple[int, ...], grid: Grid | None
) -> tuple[NDArray[np.uint8], tuple[slice, ...]]:
    """Return the classes of a frame on the axes of an image of this shape, and where in it they
    lie. Raises DataError if they do not lie on its grid.
    """
    if grid is None:
        if classes.shape != shape:
            raise DataError(
                f"the mask {path} has frames of {classes.shape[1]} x {classes.shape[0]} pixels, "
                f"but its image {shape[1]} x {shape[0]}; give each pixel one class"
            )
        return classes, ()
    if not (spot.position and spot.orientation and spot.spacing and grid.oriented):
        raise DataError(
            f"the mask {path} ({spot.name}) or its image {grid.path} has no position in the "
            "patient; save the mask as NIfTI with the image's affine"
        )
    plane = Grid.from_affine(path, (*spot.size[::-1], 1), LPS_TO_RAS @ plane_affine(spot))
    placed = plane.onto(grid, classes.T[:, :, np.newaxis])
    if placed is None:
        raise DataError(
            f"the mask {path}: {spot.name} does not lie on the voxels of {grid.path}; save it on "
            "the grid of the image"
        )
    values, start = placed
    end = np.add(start, values.shape)
    if min(start) < 0 or (end > shape).any():
        raise DataError(
            f"the mask {path}: {spot.name} lies outside {grid.path} (voxels {start} to "
            f"{tuple(map(int, end - 1))} of {shape}); take the mask of this image"
        )
    return values, tuple(map(slice, start, end))

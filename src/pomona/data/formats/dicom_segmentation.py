"""DICOM segmentations (SEG): segments in any order, on some of the slices, binary, fractional or as
a label map, laid onto the grid of an image by the positions of their frames.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from pomona.core import bounds
from pomona.core.errors import DataError, listed
from pomona.data.formats.dicom_groups import element, item, numbers
from pomona.data.formats.dicom_header import (
    SEGMENTATIONS,
    header,
    is_dicom,
    pixels,
    require_decoder,
)
from pomona.data.images.grid import TOLERANCE, Grid
from pomona.data.images.image_file import decoding
from pomona.data.images.slice_stack import TO_RAS

HALF = 0.5  # of the full value of a fractional segment: from here on a voxel is in it


class Mask(NamedTuple):
    """Class numbers of voxels, and remarks."""

    classes: NDArray[np.uint8]
    notes: tuple[str, ...]


def is_segmentation(path: Path) -> bool:
    """Return whether a file is a DICOM segmentation."""
    return path.is_file() and is_dicom(path) and header(path).get("SOPClassUID") in SEGMENTATIONS


def read(path: Path, grid: Grid | None, size: tuple[int, ...], names: Sequence[str]) -> Mask:
    """Return the class of each voxel of an image.

    Segments are those classes that have their names; if no segment is named like a class, segment
    number k is class k.

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
        dataset = header(path, whole=True)
        require_decoder(path, dataset.file_meta.TransferSyntaxUID)
        numbering, notes = _classes(path, dataset, names)
        out = np.zeros(grid.shape if grid else size, np.uint8)
        planes, more = _whole(dataset, pixels(path, dataset))
        for frame, plane in enumerate(planes):
            voxels = _target(path, dataset, frame, plane.shape, grid, out)
            if str(dataset.SegmentationType) == "LABELMAP":
                _label(path, voxels, plane, numbering)
                continue
            segment = item(dataset, frame, "SegmentIdentificationSequence")
            number = numbering[int(segment.ReferencedSegmentNumber)]
            inside = plane > 0
            if (inside & (voxels != 0) & (voxels != number)).any():
                first = names[int(voxels[inside & (voxels != 0)][0])]
                raise DataError(
                    f"the mask {path}: segments {first} and {names[number]} overlap; give each "
                    "voxel one class"
                )
            voxels[inside] = number
        return Mask(grid.turned(out) if grid else out, (*notes, *more))


def _classes(path: Path, dataset: Any, names: Sequence[str]) -> tuple[dict[int, int], list[str]]:
    """Return the class of each segment, and remarks."""
    labels = {
        int(segment.SegmentNumber): bounds.plain(str(segment.get("SegmentLabel", "")), 60)
        for segment in dataset.SegmentSequence
    }
    index = {_plain(name): k for k, name in enumerate(names)}
    named = {n: index[_plain(label)] for n, label in labels.items() if _plain(label) in index}
    strangers = [label or f"number {n}" for n, label in labels.items() if n not in named and n != 0]
    if not strangers:  # a label map may describe its background as segment 0
        return {0: 0, **named}, []
    if any(n != 0 for n in named):
        raise DataError(
            f"the mask {path} has segments {listed(strangers, 4)}, which data.classes does not "
            f"name ({listed(names, 6)}); name each segment there"
        )
    labels.pop(0, None)
    beyond = [f"{n} ({label})" for n, label in labels.items() if n >= len(names)]
    if beyond:
        raise DataError(
            f"the mask {path} has segments {listed(beyond, 4)}, data.classes names {len(names)} "
            f"classes ({listed(names, 6)}); name each segment there"
        )
    shown = [f"{label or n} is {names[n]}" for n, label in labels.items()]
    note = f"segments are taken by number, since none has the name of a class: {listed(shown, 4)}"
    return {n: n for n in labels}, [note]


def _plain(name: str) -> str:
    return normalize("NFC", name).casefold().strip()


def _whole(dataset: Any, planes: NDArray[Any]) -> tuple[NDArray[Any], list[str]]:
    """Return fractional frames as 0 and 1, others as they are, and remarks."""
    if str(dataset.SegmentationType) != "FRACTIONAL":
        return planes, []
    full = float(dataset.MaximumFractionalValue)
    meaning = str(dataset.get("SegmentationFractionalType", "fraction")).lower()
    note = f"fractional segments ({meaning}): a voxel is in one from {HALF:g} on"
    return (planes >= HALF * full).astype(np.uint8), [note]


def _label(
    path: Path, voxels: NDArray[np.uint8], plane: NDArray[Any], numbering: Mapping[int, int]
) -> None:
    """Write the classes of a frame of a label map."""
    for number in np.unique(plane):
        if number and int(number) not in numbering:
            raise DataError(f"the mask {path} holds segment {number}, which it does not describe")
        voxels[plane == number] = numbering.get(int(number), 0)


def _target(
    path: Path,
    dataset: Any,
    frame: int,
    size: tuple[int, ...],
    grid: Grid | None,
    out: NDArray[np.uint8],
) -> NDArray[np.uint8]:
    """Return the voxels (rows, columns) of ``out`` at which a frame lies, as a view.

    Raises DataError if it does not lie on the grid.
    """
    if grid is None:
        if size != out.shape:
            raise DataError(
                f"the mask {path} has frames of {size[1]} x {size[0]} pixels, its image "
                f"{out.shape[1]} x {out.shape[0]}; give each pixel one class"
            )
        return out
    corner, across, down = _directions(path, dataset, frame, grid)
    start, extent = np.rint(corner).astype(int), np.array(size) - 1
    axes = [int(np.abs(direction).argmax()) for direction in (down, across)]
    exact = np.zeros((2, 3))
    for row, (axis, direction) in enumerate(zip(axes, (down, across), strict=True)):
        exact[row, axis] = np.sign(direction[axis])
    errors = [corner - start, *((np.stack([down, across]) - exact) * extent[:, None])]
    if axes[0] == axes[1] or np.abs(errors).sum(axis=0).max() > TOLERANCE:
        raise DataError(
            f"the mask {path}: frame {frame + 1} does not lie on the voxels of {grid.path} (its "
            f"corner is at voxel {_shown(corner)}, a pixel across is {_shown(across)} of a voxel, "
            f"one down {_shown(down)}); save it on the grid of the image"
        )
    end = start + (exact * extent[:, None]).sum(axis=0).astype(int)
    low, high = np.minimum(start, end), np.maximum(start, end)
    if (low < 0).any() or (high >= grid.shape).any():
        raise DataError(
            f"the mask {path}: frame {frame + 1} lies outside {grid.path} (voxels {_shown(low)} to "
            f"{_shown(high)} of {_shown(np.array(grid.shape))}); take the mask of this image"
        )
    window = out[tuple(slice(int(a), int(b) + 1) for a, b in zip(low, high, strict=True))]
    layer = 3 - sum(axes)
    plane = window.transpose(*axes, layer)[:, :, 0]
    return plane[:: int(exact[0, axes[0]]), :: int(exact[1, axes[1]])]


def _directions(path: Path, dataset: Any, frame: int, grid: Grid) -> tuple[NDArray[Any], ...]:
    """Return, in voxels of the grid, a frame's first pixel and the steps across and down."""
    position = numbers(element(dataset, frame, "ImagePositionPatient", "PlanePositionSequence"), 3)
    turn = numbers(
        element(dataset, frame, "ImageOrientationPatient", "PlaneOrientationSequence"), 6
    )
    spacing = numbers(element(dataset, frame, "PixelSpacing", "PixelMeasuresSequence"), 2)
    if position is None or turn is None or spacing is None:
        raise DataError(
            f"the mask {path}: frame {frame + 1} has no position, orientation or pixel spacing; "
            "save the mask as NIfTI on the grid of its image"
        )
    if not grid.oriented:
        raise DataError(
            f"the mask {path} lies in the patient, its image {grid.path} does not say how; save "
            "the mask as NIfTI with the image's affine"
        )
    affine = np.eye(4)
    affine[:3, 0] = np.array(turn[:3]) * spacing[1]
    affine[:3, 1] = np.array(turn[3:]) * spacing[0]
    affine[:3, 3] = position
    steps = np.linalg.inv(grid.matrix) @ TO_RAS @ affine
    return steps[:3, 3], steps[:3, 0], steps[:3, 1]


def _shown(values: NDArray[Any]) -> str:
    return f"({', '.join(f'{value:.3g}' for value in values + 0.0)})"

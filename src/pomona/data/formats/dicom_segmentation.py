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
from pomona.data.images.grid import LPS_TO_RAS, TOLERANCE, Grid
from pomona.data.images.image_file import ImageFile, decoding
from pomona.data.images.slice_stack import Slice, plane_affine

FRACTION = 0.5  # of the full value of a fractional segment: from here on a voxel is in it


class Mask(NamedTuple):
    """Class numbers of voxels, and remarks."""

    classes: NDArray[np.uint8]
    notes: tuple[str, ...]


def is_segmentation(path: Path) -> bool:
    """Return whether a file is a DICOM segmentation."""
    if not path.is_file() or not dicom_header.is_dicom(path):
        return False
    return dicom_header.read(path).get("SOPClassUID") in dicom_header.SEGMENTATIONS


def read(path: Path, image: ImageFile, names: Sequence[str]) -> Mask:
    """Return the class of each voxel of an image; of a flat one, from the frames in its plane.

    Args:
        path: the file.
        image: a volume with a grid, or flat.
        names: of the classes, background first.

    Returns:
        (z, y, x) of the patient, or (rows, columns).

    Raises:
        DataError: of another patient, or frames that do not lie on the grid, segments that overlap
            or have no class.
        ConfigError: a decoder is not installed.
    """
    with decoding(path):
        dataset = dicom_header.read(path, pixels=True)
        dicom_header.require_decoder(path, dataset.file_meta.TransferSyntaxUID)
        numbers, notes = segments.classes(path, _labels(dataset), names)
        notes += _checked_source(path, dataset, image)
        grid, elsewhere = image.grid or _plane_grid(image.plane), 0
        mask = np.zeros(grid.shape if grid else image.shape[:-1], np.uint8)
        planes, remarks = _planes(path, dataset)
        notes += remarks
        for frame, plane in enumerate(planes):
            flat = dicom_header.frame_header(path, dataset, frame)
            stored = plane
            if str(dataset.SegmentationType) != "LABELMAP":
                stored = (plane > 0) * int(flat.ReferencedSegmentNumber)
            spot = frame_slice(f"frame {frame + 1}", flat, frame)
            if not image.grid and _is_elsewhere(spot, image.plane):
                elsewhere += 1
                continue
            classes = segments.as_classes(path, stored, numbers)
            _write(path, mask, *_placed(path, spot, classes, mask.shape, grid), names)
        if elsewhere == len(planes):
            _require_source(path, dataset, image)
        if elsewhere:
            notes.append(f"{elsewhere} frames lie in other planes than the image, and are left out")
        return Mask(_turned(mask, image.grid), tuple(notes))


def _turned(mask: NDArray[np.uint8], grid: Grid | None) -> NDArray[np.uint8]:
    """Return a mask as its image is turned: (z, y, x) of a volume, else (rows, columns)."""
    if grid:
        return grid.turned(mask)
    return mask[:, :, 0].T if mask.ndim == 3 else mask


def _planes(path: Path, dataset: Any) -> tuple[NDArray[Any], list[str]]:
    """Return the frames (n, rows, columns), fractions as whether they count, and a remark."""
    planes = dicom_header.pixels(path, dataset)
    if str(dataset.SegmentationType) != "FRACTIONAL":
        return planes, []
    meaning = str(dataset.get("SegmentationFractionalType", "fraction")).lower()
    note = f"fractional segments ({meaning}): a voxel belongs to a segment from {FRACTION:g} on"
    return planes >= FRACTION * float(dataset.MaximumFractionalValue), [note]


def _write(
    path: Path,
    mask: NDArray[np.uint8],
    classes: NDArray[np.uint8],
    window: tuple[slice, ...],
    names: Sequence[str],
) -> None:
    """Write the classes of a frame into a part of the mask. Raises DataError if they overlap."""
    voxels = mask[window]
    overlap = (classes > 0) & (voxels > 0) & (voxels != classes)
    if overlap.any():
        pair = {names[voxels[overlap][0]], names[classes[overlap][0]]}
        raise DataError(
            f"the mask {path}: segments {' and '.join(sorted(pair, key=names.index))} "
            "overlap; give each voxel one class"
        )
    voxels[classes > 0] = classes[classes > 0]


def require_patient(path: Path, patient: str, image: ImageFile) -> None:
    """Raise DataError for a mask of another patient than its image's, if both name one."""
    if len({patient, image.patient} - {""}) > 1:
        raise DataError(
            f"the mask {path} is of patient {patient!r}, but its image {image.path} of "
            f"{image.patient!r}; take the mask of this image"
        )


def in_plane(path: Path, file: ImageFile, values: NDArray[Any], image: ImageFile) -> NDArray[Any]:
    """Return the values (rows, columns, 1) of a flat mask on the pixels of a flat image.

    Raises DataError for a mask in another plane, or off its pixels; of files without a position,
    for one whose rows or columns run to other sides.
    """
    grid = _plane_grid(image.plane)
    if grid and file.plane and _is_placed(file.plane):
        if _is_elsewhere(file.plane, image.plane):
            raise DataError(f"the mask {path} lies in another plane than its image {image.path}")
        placed = _placed(path, file.plane, values[..., 0], grid.shape, grid)[0]
        return _turned(placed, None)[..., np.newaxis]
    sides = [dict(each.traits).get("rows and columns to") for each in (file, image)]
    if None not in sides and sides[0] != sides[1]:
        raise DataError(
            f"the mask {path} has rows and columns to {sides[0]}, but its image {image.path} to "
            f"{sides[1]}; turn them alike"
        )
    return values


def _checked_source(path: Path, dataset: Any, image: ImageFile) -> list[str]:
    """Return remarks on a segmentation in other coordinates than its image's, or on few slices.

    Raises DataError for one of another patient; and, of an image without a position, for one of
    other images, or of several.
    """
    require_patient(path, dicom_header.patient(dataset), image)
    if not image.grid and not _is_placed(image.plane):
        _require_source(path, dataset, image)
        if (count := len(_sources(dataset))) > 1:
            raise DataError(
                f"the mask {path} was drawn on {count} images, not on {image.path} alone, which "
                "has no position; give each image its own mask"
            )
    references = {str(dataset.get("FrameOfReferenceUID", "")), image.reference} - {""}
    note = (
        "positions are in other coordinates than those of the image (FrameOfReferenceUID): it may "
        "be the mask of another series"
    )
    slices = image.grid.shape[2] if image.grid and image.path.is_dir() else 0
    count = len(_sources(dataset))
    note_on_slices = f"it was drawn on {count} of {slices} slices; others are background"
    return [note] * (len(references) > 1) + [note_on_slices] * (0 < count < slices)


def _require_source(path: Path, dataset: Any, image: ImageFile) -> None:
    """Raise DataError for a segmentation that was drawn on other images than a flat one."""
    sources, instance = _sources(dataset), image.plane.instance if image.plane else ""
    if sources and instance and instance not in sources:
        raise DataError(
            f"the mask {path} was drawn on other images, not on {image.path}, and has no frame in "
            "its plane; take the mask of this image"
        )


def _sources(dataset: Any) -> set[str]:
    """Return the UIDs of the images on which a segmentation was drawn, as far as it names them."""
    series = dataset.get("ReferencedSeriesSequence") or ()
    files = [file for item in series for file in item.get("ReferencedInstanceSequence") or ()]
    return {str(file.get("ReferencedSOPInstanceUID")) for file in files}


def _is_placed(plane: Slice | None) -> bool:
    """Return whether a header says where a plane lies."""
    return bool(plane and plane.position and plane.orientation and plane.spacing)


def _plane_grid(plane: Slice | None) -> Grid | None:
    """Return the grid of a flat image as one layer; None without a position."""
    if not plane or not _is_placed(plane):
        return None
    affine = LPS_TO_RAS @ plane_affine(plane)
    return Grid.from_affine(Path(plane.name), (*plane.size[::-1], 1), affine)


def _is_elsewhere(spot: Slice, plane: Slice | None) -> bool:
    """Return whether a frame lies in another plane than a flat image."""
    if not plane or not _is_placed(plane) or not spot.position:
        return False
    normal = np.cross(plane.orientation[:3], plane.orientation[3:])
    distance = abs(np.dot(np.subtract(spot.position, plane.position), normal))
    return bool(distance > TOLERANCE * min(plane.spacing))


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
    if not (_is_placed(spot) and grid.oriented):
        raise DataError(
            f"the mask {path} ({spot.name}) or its image {grid.path} has no position in the "
            "patient; save the mask as NIfTI with the image's affine"
        )
    plane = Grid.from_affine(path, (*spot.size[::-1], 1), LPS_TO_RAS @ plane_affine(spot))
    placed = plane.onto(grid, classes.T[:, :, np.newaxis])
    if placed is None:
        raise DataError(
            f"the mask {path}: {spot.name} does not lie on the voxels of {grid.path}; save it there"
        )
    values, start = placed
    end = np.add(start, values.shape)
    if min(start) < 0 or (end > shape).any():
        raise DataError(
            f"the mask {path}: {spot.name} lies outside {grid.path} (voxels {start} to "
            f"{tuple(map(int, end - 1))} of {shape}); take the mask of this image"
        )
    return values, tuple(map(slice, start, end))

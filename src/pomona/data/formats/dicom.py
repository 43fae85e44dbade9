"""DICOM, read by pydicom: single images, files of many frames, and folders with a series' files.

Values are those of the modality (``dicom_values``); slices become a volume by ``slice_stack``.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pomona.core import bounds
from pomona.core.errors import DataError, listed
from pomona.data.array_file import reading
from pomona.data.formats import dicom_header
from pomona.data.formats.dicom_values import scale
from pomona.data.images.image_arrays import sample_type
from pomona.data.images.image_file import ImageFile, decoding, in_mm, volume
from pomona.data.images.slice_stack import Slice, block

MOST_FILES = 10_000
# elements that tell images at one position apart
DISTINGUISHING = (
    "EchoTime",
    "EffectiveEchoTime",
    "TemporalPositionIdentifier",
    "TemporalPositionIndex",
    "StackID",
    "DiffusionBValue",
    "FrameType",
    "ImageType",
    "AcquisitionNumber",
)


class Frames(NamedTuple):
    """What a file's header says: the form that all frames have in common, and where each lies."""

    image: ImageFile
    slices: list[Slice]


def opened(path: Path) -> ImageFile:
    """Open a file from its header: an image (H, W, C), or a volume (D, H, W, C) if it has many
    frames.

    Raises:
        DataError: not a DICOM image, or one that is not read.
        ConfigError: pydicom, or a decoder, is not installed.
    """
    with decoding(path):
        file = _frames(path, dicom_header.read(path))
        return file.image if len(file.slices) == 1 else _volume(path, [file], [])


def series(folder: Path) -> ImageFile:
    """Open a folder as a volume (D, H, W, C) from its files' headers.

    Slices are sorted by ImagePositionPatient along the normal of their plane, or by InstanceNumber
    if there are no positions. Files that hold no image (reports, plans) are left out, with a note.

    Raises:
        DataError: no DICOM files, several series, slices of different form, or missing or duplicate
            slices according to their distances; the files are named.
        ConfigError: pydicom, or a decoder, is not installed.
    """
    paths, notes = _files(folder)
    files, objects, expected = [], list[str](), 0
    for path in paths:
        with decoding(path):
            dataset = dicom_header.read(path)
            if not dicom_header.has_image(dataset):
                objects.append(f"{path.name}, a DICOM {dicom_header.object_name(dataset)}")
                continue
            files.append(_frames(path, dataset))
            expected = max(expected, int(dataset.get("ImagesInAcquisition") or 0))
    if not files:
        raise _without_images(folder, objects)
    if objects:
        notes.append(f"{len(objects)} files without an image are left out ({listed(objects, 3)})")
    if (count := sum(len(file.slices) for file in files)) < expected:
        notes.append(f"{count} files, but the header counts {expected} images of the series")
    return _volume(folder, files, notes)


def _without_images(folder: Path, objects: Sequence[str]) -> DataError:
    """Return the error for a folder whose DICOM files, if any, are these objects."""
    folders = sorted(path.name for path in folder.iterdir() if path.is_dir())
    remedy = f"name one of the folders in it ({listed(folders, 3)})" if folders else "add them"
    content = f" ({listed(objects, 3)})" if objects else ""
    return DataError(f"{folder} has no DICOM file with an image{content}; {remedy}")


def _files(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the DICOM files of a folder, and those that should be by their names (without a
    suffix, with a UID at the end, or of DICOM); and a remark on others.
    """
    with reading(folder):
        paths = sorted(
            path
            for path in folder.iterdir()
            if path.is_file() and path.name[0] != "." and path.name != "DICOMDIR"
        )
    if len(paths) > MOST_FILES:
        raise DataError(f"{folder} holds {len(paths)} files; a series has from 1 to {MOST_FILES}")
    expected = {
        path
        for path in paths
        if path.suffix.lower() in {*dicom_header.SUFFIXES, ""}
        or path.suffix[1:].isdigit()
        or dicom_header.is_dicom(path)
    }
    unrelated = [path.name for path in paths if path not in expected]
    notes = [f"not DICOM, and left out: {listed(unrelated, 3)}"] if unrelated else []
    return sorted(expected), notes


def _frames(path: Path, dataset: Any) -> Frames:
    """Return the form of a file's frames. Raises DataError or ConfigError."""
    dicom_header.require_image(path, dataset)
    count = dicom_header.frame_count(dataset)
    headers = [dicom_header.frame_header(path, dataset, frame) for frame in range(count)]
    scales = [scale(path, flat) for flat in headers]
    shape = (int(dataset.Rows), int(dataset.Columns), int(dataset.get("SamplesPerPixel", 1)))
    dtype = sample_type(entry.dtype for entry in scales)
    image = ImageFile(
        path,
        shape,
        dtype,
        lambda: _planes(path, dtype)[0],
        unit=" and ".join(sorted({entry.unit for entry in scales if entry.unit})),
        step=max(entry.step for entry in scales),
        patient=dicom_header.patient(dataset),
        reference=str(headers[0].get("FrameOfReferenceUID", "")),
        mask_fault=dicom_header.mask_fault(dataset),
        notes=tuple(dict.fromkeys(note for entry in scales for note in entry.notes)),
    )
    is_dose = dataset.get("SOPClassUID") == dicom_header.DOSE
    slices = _slices(path, headers, is_dose)
    if len(slices) > 1:
        return Frames(image, slices)
    traits = _traits(headers[0], slices[0])
    return Frames(replace(image, plane=slices[0], traits=traits), slices)


def _traits(flat: Any, plane: Slice) -> tuple[tuple[str, str], ...]:
    """Return the directions in the patient to which rows and columns of an image run, the size of
    its pixels, and whether it is raw or for display, as far as its header has them.
    """
    directions = tuple(str(side)[:1] for side in flat.get("PatientOrientation") or ())
    if plane.orientation:
        axes = np.reshape(plane.orientation, (2, 3))
        largest = zip(axes, abs(axes).argmax(axis=1), strict=True)
        directions = tuple("RLAPFH"[2 * k + int(axis[k] > 0)] for axis, k in largest)
    spacing = plane.spacing or dicom_header.numbers(flat, "ImagerPixelSpacing", 2)
    traits = {
        "rows and columns to": ", ".join(filter(None, directions)),
        "pixels of": in_mm(spacing),
        "presentation intent": bounds.plain(str(flat.get("PresentationIntentType") or ""), 40),
    }
    return tuple((name, text) for name, text in traits.items() if text)


def _slices(path: Path, headers: Sequence[Any], is_dose: bool) -> list[Slice]:
    """Return where a file's frames lie. Raises DataError for several without positions."""
    count = len(headers)
    if count > 1 and not is_dose and any("PlanePositionSequence" not in flat for flat in headers):
        raise DataError(
            f"{path} holds {count} frames without positions (a film, or views); save each as PNG, "
            "those of a volume as NIfTI"
        )
    return [
        frame_slice(path.name if count == 1 else f"{path.name} frame {frame + 1}", flat, frame)
        for frame, flat in enumerate(headers)
    ]


def frame_slice(name: str, flat: Any, frame: int) -> Slice:
    """Return where a frame lies, from its flat header."""
    orientation = dicom_header.numbers(flat, "ImageOrientationPatient", 6)
    spacing = dicom_header.numbers(flat, "PixelSpacing", 2)
    number = flat.get("InstanceNumber")
    return Slice(
        name=name,
        size=(int(flat.Rows), int(flat.Columns)),
        position=_position(flat, frame, orientation),
        orientation=orientation,
        spacing=spacing if min(spacing, default=0) > 0 else (),
        thickness=abs(float(flat.get("SpacingBetweenSlices") or flat.get("SliceThickness") or 0)),
        number=None if number is None else int(number),
        series=str(flat.get("SeriesInstanceUID", "")),
        instance=str(flat.get("SOPInstanceUID", "")),
        localizer="LOCALIZER" in (flat.get("ImageType") or ()),
        attributes={n: bounds.plain(str(flat.get(n)), 40) for n in DISTINGUISHING if n in flat},
    )


def _position(flat: Any, frame: int, orientation: tuple[float, ...]) -> tuple[float, ...]:
    """Return the position of a frame (x, y, z), or an empty tuple; frames of a dose have offsets
    along the normal of their plane.
    """
    position = dicom_header.numbers(flat, "ImagePositionPatient", 3)
    offsets = flat.get("GridFrameOffsetVector")  # PS3.3 C.8.8.3.2
    if offsets and frame and position and orientation:
        offset = float(offsets[frame]) - float(offsets[0])
        position = tuple(position + offset * np.cross(orientation[:3], orientation[3:]))
    return position


def _volume(path: Path, files: Sequence[Frames], notes: Sequence[str]) -> ImageFile:
    """Return files of one series as a volume. Raises DataError if their slices form no block."""
    frames = [(file.image, k, plane) for file in files for k, plane in enumerate(file.slices)]
    order, grid, remarks = block(path, [plane for _, _, plane in frames])
    ordered = [frames[k][:2] for k in order]  # without localizers, which have another form
    images = list({image.path: image for image, _ in ordered}.values())
    dtype = sample_type(image.dtype for image in images)
    first = images[0]
    if len({image.shape for image in images}) > 1:
        raise DataError(f"{path}: some slices are in colour and others are gray; keep one kind")
    return volume(
        grid,
        first.shape[-1],
        dtype,
        partial(_voxels, ordered, first.shape, dtype),
        unit=first.unit,
        step=max(image.step for image in images),
        patient=first.patient,
        reference=first.reference,
        mask_fault=first.mask_fault,
        notes=dict.fromkeys((*remarks, *notes, *_notes(images))),
    )


def _notes(images: Sequence[ImageFile]) -> Iterator[str]:
    """Yield the remarks on a series' images, and one if they are of several units or patients."""
    units = sorted({image.unit for image in images} - {""})
    patients = sorted({image.patient for image in images} - {""})
    if len(units) > 1:
        yield f"values of several units in one series ({listed(units, 3)})"
    if len(patients) > 1:
        yield f"slices of several patients in one series ({listed(patients, 3)})"
    for image in images:
        yield from image.notes


def _voxels(
    frames: Sequence[tuple[ImageFile, int]], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Decode frames into a block (columns, rows, slices, C)."""
    rows, columns, channels = shape
    voxels = np.empty((columns, rows, len(frames), channels), dtype)
    layers: dict[Path, list[tuple[int, int]]] = defaultdict(list)
    for layer, (image, frame) in enumerate(frames):
        layers[image.path].append((layer, frame))
    for path, pairs in layers.items():
        planes = _planes(path, dtype)
        for layer, frame in pairs:
            voxels[:, :, layer] = planes[frame].swapaxes(0, 1)
    return voxels


def _planes(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Decode all frames of a file: (frames, H, W, C) of values."""
    dataset = dicom_header.read(path, pixels=True)
    raw = dicom_header.pixels(path, dataset)
    values = np.empty((*raw.shape[:3], raw.shape[3] if raw.ndim > 3 else 1), dtype)
    for frame, plane in enumerate(raw):
        header = dicom_header.frame_header(path, dataset, frame)
        values[frame] = scale(path, header).values(plane, path).reshape(values.shape[1:])
    return values

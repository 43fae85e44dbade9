"""DICOM, read by pydicom: single images, files of many frames, and folders with a series' files.

Values are those of the modality (``dicom_values``); slices become a volume by ``slice_stack``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core import bounds
from pomona.core.errors import DataError, listed
from pomona.data.array_file import reading
from pomona.data.formats.dicom_groups import element, frames, item, numbers
from pomona.data.formats.dicom_header import (
    DOSE,
    SEGMENTATIONS,
    SUFFIXES,
    header,
    is_dicom,
    object_name,
    pixels,
    require_image,
    without_pixels,
)
from pomona.data.formats.dicom_values import padding, values
from pomona.data.images.image_arrays import sample_type
from pomona.data.images.image_file import ImageFile, decoding, plain, within
from pomona.data.images.slice_stack import Slice, block
from pomona.data.images.volume import volume

MOST_FILES = 10_000
# elements that tell images at one position apart, and the functional groups that may hold them
TELLING = {
    "EchoTime": "",
    "EffectiveEchoTime": "MREchoSequence",
    "TemporalPositionIdentifier": "",
    "TemporalPositionIndex": "FrameContentSequence",
    "StackID": "FrameContentSequence",
    "DiffusionBValue": "MRDiffusionSequence",
    "InversionTime": "",
    "TriggerTime": "",
    "FrameType": "MRImageFrameTypeSequence",
    "ImageType": "",
    "AcquisitionNumber": "",
    "AcquisitionTime": "",
}


@dataclass(frozen=True)
class Frames:
    """What a file's header says: the form of its frames, and where each lies.

    Attributes:
        image: the file as one image, with the facts that all frames have in common.
        slices: of its frames.
        expected: images of the series by its header, or 0.
    """

    image: ImageFile
    slices: tuple[Slice, ...]
    expected: int


def opened(path: Path) -> ImageFile:
    """Open a file from its header: an image (H, W, C), or a volume (D, H, W, C) if it has many
    frames.

    Raises:
        DataError: not a DICOM image, or one that is not read.
        ConfigError: pydicom, or a decoder, is not installed.
    """
    with decoding(path):
        dataset = header(path)
        if dataset.get("SOPClassUID") in SEGMENTATIONS:
            raise DataError(
                f"{path} is a DICOM {object_name(dataset)}, a mask without an image; name it in "
                "the column mask"
            )
        file = _frames(path, dataset)
        if len(file.slices) == 1:
            return file.image
        return _volume(path, [file])


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
    files, objects = [], list[str]()
    for path in paths:
        with decoding(path):
            dataset = header(path)
            if name := without_pixels(dataset):
                objects.append(f"{path.name}, a DICOM {name}")
            elif dataset.get("SOPClassUID") in SEGMENTATIONS:
                objects.append(f"{path.name}, a DICOM Segmentation: name it as a mask")
            else:
                files.append(_frames(path, dataset))
    if not files:
        raise DataError(
            f"{folder} holds no DICOM images, but {listed(objects, 3)}; give the images"
            if objects
            else f"{folder} holds 0 DICOM files; a series has from 1 to {MOST_FILES}"
            f"{_inner(folder)}"
        )
    if objects:
        notes.append(f"{len(objects)} files without an image are left out ({listed(objects, 3)})")
    expected = max(file.expected for file in files)
    if len(files) < expected:
        notes.append(f"{len(files)} files, but the header counts {expected} images of the series")
    units = sorted({file.image.unit for file in files if file.image.unit})
    if len(units) > 1:
        notes.append(f"values of several units in one series ({listed(units, 3)})")
    return _volume(folder, files, notes)


def _inner(folder: Path) -> str:
    """Return a remedy for a folder that holds folders, as those of patients and studies."""
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    return f"; name one of the folders in it ({listed(names, 3)})" if names else ""


def _files(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the DICOM files of a folder, whatever they are called, and remarks on others.

    Raises DataError for a file that should be DICOM by its name and is not, and for too many.
    """
    with reading(folder):
        paths = sorted(
            path
            for path in folder.iterdir()
            if path.is_file() and path.name[0] != "." and path.name != "DICOMDIR"
        )
    if len(paths) > MOST_FILES:
        raise DataError(f"{folder} holds {len(paths)} files; a series has from 1 to {MOST_FILES}")
    strangers = []
    for path in paths:
        # names without a suffix, with a UID at the end, or of DICOM are those of slices
        expected = path.suffix.lower() in {*SUFFIXES, ""} or path.suffix[1:].isdigit()
        if not expected and not is_dicom(path):
            strangers.append(path)
    kept = [path for path in paths if path not in strangers]
    if not strangers:
        return kept, []
    names = listed([path.name for path in strangers], 3)
    are = "file is" if len(strangers) == 1 else "files are"
    return kept, [f"{len(strangers)} {are} not DICOM ({names}), and left out"]


def _frames(path: Path, dataset: Any) -> Frames:
    """Return the form of a file's frames. Raises DataError or ConfigError."""
    require_image(path, dataset)
    count = frames(dataset)
    scales = [values(path, dataset, frame) for frame in range(count)]
    samples = int(dataset.get("SamplesPerPixel", 1))
    shape = (int(dataset.Rows), int(dataset.Columns), samples)
    within(path, (count, *shape))
    dtype = sample_type(scale.dtype for scale in scales)
    notes = dict.fromkeys(note for scale in scales for note in scale.notes)
    units = sorted({scale.unit for scale in scales if scale.unit})
    image = replace(
        plain(path, shape, dtype, lambda: _planes(path, dtype)[0]),
        unit=" and ".join(units),
        step=max(scale.step for scale in scales),
        patient=bounds.plain(str(dataset.get("PatientID") or "").strip(), 80),
        padding=padding(dataset, scales[0]),
        notes=tuple(notes),
    )
    expected = dataset.get("ImagesInAcquisition") if count == 1 else None
    return Frames(image, _slices(path, dataset, count), int(expected or 0))


def _slices(path: Path, dataset: Any, count: int) -> tuple[Slice, ...]:
    """Return where each frame of a file lies. Raises DataError for frames without positions."""
    get = partial(element, dataset)
    number = dataset.get("InstanceNumber")
    slices = []
    for frame in range(count):
        position = get(frame, "ImagePositionPatient", "PlanePositionSequence")
        thickness = get(frame, "SpacingBetweenSlices", "PixelMeasuresSequence") or get(
            frame, "SliceThickness", "PixelMeasuresSequence"
        )
        slices.append(
            Slice(
                path.name if count == 1 else f"{path.name} frame {frame + 1}",
                (int(dataset.Rows), int(dataset.Columns)),
                numbers(position, 3),
                numbers(get(frame, "ImageOrientationPatient", "PlaneOrientationSequence"), 6),
                numbers(get(frame, "PixelSpacing", "PixelMeasuresSequence"), 2),
                abs(float(thickness)) if thickness else None,
                None if number is None or count > 1 else int(number),
                str(dataset.get("SeriesInstanceUID", "")),
                "LOCALIZER" in (dataset.get("ImageType") or ()),
                _telling(dataset, frame),
            )
        )
    if count == 1:
        return tuple(slices)
    offsets = dataset.get("GridFrameOffsetVector")
    if dataset.get("SOPClassUID") == DOSE and offsets and slices[0].orientation:
        return _offset(slices, [float(offset) for offset in offsets])
    own = [item(dataset, frame, "PlanePositionSequence") for frame in range(count)]
    if any(position is None for position in own):
        raise DataError(
            f"{path} holds {count} frames without positions (a film, or views); save each frame as "
            "PNG, or a volume as NIfTI"
        )
    return tuple(slices)


def _offset(slices: Sequence[Slice], offsets: Sequence[float]) -> tuple[Slice, ...]:
    """Return the planes of a dose, from their offsets to the first (PS3.3 C.8.8.3.2)."""
    first = slices[0]
    if first.position is None or first.orientation is None or len(offsets) != len(slices):
        return tuple(slices)
    normal = np.cross(first.orientation[:3], first.orientation[3:])
    return tuple(
        replace(one, position=tuple(np.array(first.position) + (offset - offsets[0]) * normal))
        for one, offset in zip(slices, offsets, strict=True)
    )


def _telling(dataset: Any, frame: int) -> dict[str, str]:
    """Return what may tell a frame from others at its position."""
    found = {
        name: element(dataset, frame, name, sequence) if sequence else dataset.get(name)
        for name, sequence in TELLING.items()
    }
    return {name: bounds.plain(str(v), 40) for name, v in found.items() if v is not None}


def _volume(path: Path, files: Sequence[Frames], notes: Sequence[str] = ()) -> ImageFile:
    """Return files of one series as a volume. Raises DataError if their slices form no block."""
    slices = [one for file in files for one in file.slices]
    order, grid, more = block(path, slices)
    counts = [len(file.slices) for file in files]
    # localizers have another form, and do not count
    used = [files[k].image for k in np.unique(np.repeat(range(len(files)), counts)[order])]
    dtype = sample_type(image.dtype for image in used)
    channels = {image.shape[-1] for image in used}
    if len(channels) > 1:
        raise DataError(f"{path}: some slices have colour, others not; keep one of them")
    paths = [file.image.path for file in files]
    first = used[0]
    common = dict.fromkeys(note for image in used for note in image.notes)
    read = partial(_voxels, paths, counts, order, first.shape, dtype)
    return volume(
        grid,
        channels.pop(),
        dtype,
        read,
        unit=first.unit,
        step=max(image.step for image in used),
        patient=first.patient,
        padding=first.padding,
        notes=(*more, *notes, *common),
    )


def _voxels(
    paths: Sequence[Path],
    counts: Sequence[int],
    order: Sequence[int],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
) -> NDArray[Any]:
    """Decode slices into a block (columns, rows, slices, C)."""
    rows, columns, channels = shape
    out = np.empty((columns, rows, len(order), channels), dtype)
    layer = {number: k for k, number in enumerate(order)}
    start = 0
    for path, count in zip(paths, counts, strict=True):
        used = [frame for frame in range(count) if start + frame in layer]
        planes = _planes(path, dtype) if used else ()
        for frame in used:
            out[:, :, layer[start + frame]] = planes[frame].swapaxes(0, 1)
        start += count
    return out


def _planes(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Decode all frames of a file: (frames, H, W, C) of values."""
    dataset = header(path, whole=True)
    raw = pixels(path, dataset)
    out = np.empty((*raw.shape[:3], raw.shape[3] if raw.ndim > 3 else 1), dtype)
    for frame, plane in enumerate(raw):
        out[frame] = values(path, dataset, frame).of(plane, path).reshape(out.shape[1:])
    return out

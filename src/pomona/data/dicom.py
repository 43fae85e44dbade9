"""DICOM, read by pydicom: single-frame images, and volumes from a folder with the files of one
series, ordered by position in the patient.

Stored values are converted to modality values (PS3.3 C.11.1).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError
from pomona.data.array_file import file, reading
from pomona.data.image_arrays import sample_type
from pomona.data.image_file import ImageFile, decoding, package, plain, scaled, scaled_type

SUFFIXES = {".dcm", ".dicom", ".ima"}
# compressed whole: of unbounded size
DEFLATED = {"1.2.840.10008.1.2.1.99", "1.2.840.10008.1.2.8.1"}
GRAY = {"MONOCHROME1", "MONOCHROME2"}
COLOUR = {"RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT"}
MOST_FILES = 10_000
GAP = 1.5  # a gap of more than this many usual slice distances means that a slice is missing


@dataclass(frozen=True)
class DicomHeader:
    """Header of a DICOM image.

    Attributes:
        image: its form, and access to its pixels.
        series: UID of the series.
        number: InstanceNumber, if present.
        position: ImagePositionPatient (3,), if present.
        orientation: ImageOrientationPatient, the directions of a row and of a column (6,), if
            present.
    """

    image: ImageFile
    series: str
    number: int | None
    position: tuple[float, ...] | None
    orientation: tuple[float, ...] | None


def opened(path: Path) -> ImageFile:
    """Open a file as an image (H, W, C) from its header. Raises as ``header`` does."""
    return header(path).image


def header(path: Path) -> DicomHeader:
    """Read a file's header without its pixels.

    Values are slope times stored value plus intercept; if low stored values are white
    (MONOCHROME1), they are inverted first. Colour has 8 bits.

    Raises:
        DataError: not a single-frame DICOM image, or its size, bits or colours are not supported.
        ConfigError: pydicom is not installed.
    """
    pydicom = package("pydicom", path)
    file(path)
    with decoding(path):
        syntax = str(getattr(pydicom.filereader.read_file_meta_info(path), "TransferSyntaxUID", ""))
        if syntax in DEFLATED:
            raise DataError(f"{path} is deflated as a whole; write it with another transfer syntax")
        said = pydicom.dcmread(path, stop_before_pixels=True)
        number = said.get("InstanceNumber")
        return DicomHeader(
            _image(path, said),
            str(said.get("SeriesInstanceUID", "")),
            None if number is None else int(number),
            _numbers(said.get("ImagePositionPatient"), 3),
            _numbers(said.get("ImageOrientationPatient"), 6),
        )


def _image(path: Path, said: Any) -> ImageFile:
    """Return the form of the image that a header describes, and access to its pixels."""
    samples, bits, colours = _samples(path, said)
    slope, shift = _slope(path, said)
    signed = int(said.PixelRepresentation) == 1
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    dtype = scaled_type(low, high, slope, shift)
    shape = (int(said.Rows), int(said.Columns), samples)
    turned = low + high if colours == "MONOCHROME1" else None
    image = plain(path, shape, dtype, partial(_values, path, shape, turned, slope, shift, dtype))
    padding = said.get("PixelPaddingValue")
    return replace(
        image,
        padding=None if padding is None or turned is not None else float(padding) * slope + shift,
    )


def _samples(path: Path, said: Any) -> tuple[int, int, str]:
    """Return the samples of a pixel, the bits of each, and what they mean.

    Raises DataError for several frames, and for other samples than ``header`` reads.
    """
    frames = int(said.get("NumberOfFrames", 1) or 1)
    samples, bits = int(said.get("SamplesPerPixel", 1)), int(said.BitsStored)
    colours = str(said.get("PhotometricInterpretation", ""))
    if frames != 1:
        raise DataError(
            f"{path} holds {frames} frames; save each as a file of a series, or all as NIfTI"
        )
    if colours not in {1: GRAY, 3: COLOUR}.get(samples, ()) or not 1 <= bits <= 16:
        raise DataError(
            f"{path} has {samples} samples of {bits} bits, {colours or 'of no colours'}; gray "
            "of up to 16 bits is read, and colour of 8"
        )
    return samples, bits, colours


def _slope(path: Path, said: Any) -> tuple[float, float]:
    """Return slope and intercept of the stored values. Raises DataError if they are of no use."""
    found = {1.0: said.get("RescaleSlope"), 0.0: said.get("RescaleIntercept")}
    slope, shift = (usual if value is None else float(value) for usual, value in found.items())
    if not np.isfinite([slope, shift]).all() or not slope:
        raise DataError(
            f"{path} has RescaleSlope {slope} and RescaleIntercept {shift}; correct them"
        )
    return slope, shift


def _numbers(values: Any, count: int) -> tuple[float, ...] | None:
    """Return ``count`` finite numbers, or None if not present."""
    numbers = tuple(map(float, values)) if values else ()
    return numbers if len(numbers) == count and np.isfinite(numbers).all() else None


def _values(
    path: Path,
    shape: tuple[int, ...],
    turned: int | None,
    slope: float,
    shift: float,
    dtype: np.dtype[Any],
) -> NDArray[Any]:
    raw = package("pydicom.pixels", path).pixel_array(path, index=0).reshape(shape)
    if turned is not None:
        raw = turned - raw.astype(np.int32)
    return scaled(raw, slope, shift, dtype, path)


def series(folder: Path) -> ImageFile:
    """Open a folder as a volume (D, H, W, C) from its files' headers.

    Slices are sorted by ImagePositionPatient along the normal of their plane (from feet to head,
    for axial slices), or by InstanceNumber if there are no positions.

    Raises:
        DataError: no DICOM files, several series, slices of different form, or missing or duplicate
            slices according to their distances; the files are named.
        ConfigError: pydicom is not installed.
    """
    slices = [header(path) for path in _files(folder)]
    first = slices[0]
    usual = _form(first)
    for one in slices:
        if odd := [what for what, own in _form(one).items() if own != usual[what]]:
            raise DataError(
                f"{folder}: {one.image.path.name} differs from {first.image.path.name} in "
                f"{odd[0]}; put each series into its own folder"
            )
    ordered, _ = _ordered(folder, slices)
    dtype = sample_type(one.image.dtype for one in ordered)
    shape = (len(ordered), *first.image.shape)
    names = tuple(one.image.path.name for one in ordered)  # all headers would need much memory
    made = plain(folder, shape, dtype, partial(_volume, folder, names, shape, dtype))
    return replace(made, padding=first.image.padding)


def _form(one: DicomHeader) -> dict[str, Any]:
    """Return what all slices of a series have in common."""
    orientation = np.round(one.orientation or (), 3).tolist()
    return {"series": one.series, "size": one.image.shape, "orientation": orientation}


def _files(folder: Path) -> list[Path]:
    with reading(folder):
        named = [path for path in folder.iterdir() if path.suffix.lower() in {*SUFFIXES, ""}]
        found = sorted(
            path
            for path in named
            if path.is_file() and path.name[0] != "." and path.name != "DICOMDIR"
        )
    if not found or len(found) > MOST_FILES:
        raise DataError(
            f"{folder} holds {len(found)} DICOM files; a series has from 1 to {MOST_FILES}"
        )
    return found


def _ordered(folder: Path, slices: Sequence[DicomHeader]) -> tuple[list[DicomHeader], float]:
    """Return the slices in order and their distance in mm, or 0.

    Raises DataError for missing or duplicate slices.
    """
    places, unit = _places(folder, slices)
    order = sorted(range(len(slices)), key=places.__getitem__)
    steps = [places[b] - places[a] for a, b in pairwise(order)]
    usual = 1.0 if unit != "mm" else float(np.median(steps)) if steps else 0.0
    ordered = [slices[k] for k in order]
    names = [one.image.path.name for one in ordered]
    for step, (before, after) in zip(steps, pairwise(names), strict=True):
        if step <= 1e-3 * max(usual, 1e-3):
            raise DataError(
                f"{folder}: {before} and {after} are at the same place; keep one of them"
            )
        if step > GAP * usual:
            raise DataError(
                f"{folder}: slices are missing between {before} and {after}: {step:g} {unit}, "
                f"elsewhere {usual:g}; fetch the series again"
            )
    return ordered, usual if unit == "mm" else 0.0


def _places(folder: Path, slices: Sequence[DicomHeader]) -> tuple[list[float], str]:
    """Return the place of each slice along the normal of their plane, or its number; and the unit.

    Raises DataError for slices without both.
    """
    orientation = slices[0].orientation
    positions = [one.position for one in slices if one.position is not None]
    if orientation is not None and len(positions) == len(slices):
        normal = np.cross(orientation[:3], orientation[3:])
        return [float(np.dot(normal, position)) for position in positions], "mm"
    numbers = [float(one.number) for one in slices if one.number is not None]
    if len(numbers) < len(slices):
        raise DataError(
            f"{folder}: slices without ImagePositionPatient and InstanceNumber have no order; add "
            "one"
        )
    return numbers, "by InstanceNumber"


def _volume(
    folder: Path, names: Sequence[str], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    out = np.empty(shape, dtype)
    for plane, name in zip(out, names, strict=True):
        plane[...] = header(folder / name).image.decoded(shape[-1])
    return out

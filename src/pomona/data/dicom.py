"""Single-frame DICOM images, read by pydicom; stored values are converted to modality values (PS3.3
C.11.1).
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError
from pomona.data.array_file import file
from pomona.data.image_file import ImageFile, decoding, package, plain, scaled, scaled_type

SUFFIXES = {".dcm", ".dicom", ".ima"}
# compressed whole: of unbounded size
DEFLATED = {
    "1.2.840.10008.1.2.1.99",
    "1.2.840.10008.1.2.8.1",
}
GRAY, COLOUR = (
    {"MONOCHROME1", "MONOCHROME2"},
    {"RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT"},
)


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
        frames, samples = (
            int(said.get("NumberOfFrames", 1) or 1),
            int(said.get("SamplesPerPixel", 1)),
        )
        colours, bits = str(said.get("PhotometricInterpretation", "")), int(said.BitsStored)
        if frames != 1:
            raise DataError(
                f"{path} holds {frames} frames; save each as a file of a series, or all as NIfTI"
            )
        if (
            colours not in (GRAY if samples == 1 else COLOUR)
            or samples not in {1, 3}
            or not 1 <= bits <= 16
        ):
            raise DataError(
                f"{path} has {samples} samples of {bits} bits, {colours or 'of no colours'}; gray "
                "of up to 16 bits is read, and colour of 8"
            )
        signed = int(said.PixelRepresentation) == 1
        found = {1.0: said.get("RescaleSlope"), 0.0: said.get("RescaleIntercept")}
        slope, shift = (usual if value is None else float(value) for usual, value in found.items())
        if not np.isfinite([slope, shift]).all() or not slope:
            raise DataError(
                f"{path} has RescaleSlope {slope} and RescaleIntercept {shift}; correct them"
            )
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        dtype = scaled_type(low, high, slope, shift)
        shape = (int(said.Rows), int(said.Columns), samples)
        turned = low + high if colours == "MONOCHROME1" else None
        image = plain(
            path, shape, dtype, partial(_values, path, shape, turned, slope, shift, dtype)
        )
        padding, lines = said.get("PixelPaddingValue"), _numbers(said.get("PixelSpacing"), 2)
        image = replace(
            image,
            padding=None
            if padding is None or turned is not None
            else float(padding) * slope + shift,
            spacing=lines or (),
        )
        number = said.get("InstanceNumber")
        return DicomHeader(
            image,
            str(said.get("SeriesInstanceUID", "")),
            None if number is None else int(number),
            _numbers(said.get("ImagePositionPatient"), 3),
            _numbers(said.get("ImageOrientationPatient"), 6),
        )


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

"""What a DICOM file is: recognised by its content, its header read by pydicom, its pixels decodable
by a library that is installed.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from pomona.core import bounds, files
from pomona.core.errors import ConfigError, DataError, with_extra
from pomona.data.array_file import file
from pomona.data.images import package
from pomona.data.images.image_file import NoPixelsError, decoding

SUFFIXES = {".dcm", ".dicom", ".ima"}
GRAY = {"MONOCHROME1", "MONOCHROME2"}
COLOUR = {"RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT"}
MAGIC, MAGIC_AT = b"DICM", 128
CONTOURS = "1.2.840.10008.5.1.4.1.1.481.3"
DOSE = "1.2.840.10008.5.1.4.1.1.481.2"
SEGMENTATIONS = {"1.2.840.10008.5.1.4.1.1.66.4", "1.2.840.10008.5.1.4.1.1.66.7"}
JPEG, MAYBE_LOSSY = (
    {f"1.2.840.10008.1.2.4.{number}" for number in numbers} for numbers in ((50, 51), (81, 91, 203))
)
MICROSCOPY = "1.2.840.10008.5.1.4.1.1.77.1.6"
REMEDIES = dict.fromkeys(SEGMENTATIONS, "name it in the column mask") | {
    CONTOURS: "draw its contours into a DICOM SEG or NIfTI mask first (3D Slicer)"
}


def is_dicom(path: Path) -> bool:
    """Return whether a file's content is DICOM, whatever its name."""
    try:
        with files.opened(path) as raw:
            start = raw.read(MAGIC_AT + len(MAGIC))
    except OSError:
        return False
    # without the preamble, the first element is of group 2 or 8, little-endian
    bare = start[:2] in {b"\x02\0", b"\x08\0"} and start[3:4] == b"\0"
    return start[MAGIC_AT:] == MAGIC or (bare and len(start) > MAGIC_AT)


def read(path: Path, pixels: bool = False) -> Any:
    """Read a file as pydicom's data set: all of it, or its elements before the pixels.

    Raises:
        DataError: it is not DICOM, or cannot be read.
        ConfigError: pydicom is not installed.
    """
    pydicom = package("pydicom", path)
    file(path)
    with decoding(path):
        dataset = pydicom.dcmread(path, stop_before_pixels=not pixels, force=is_dicom(path))
        if not dataset:
            raise ValueError("it has no elements")
        if "TransferSyntaxUID" not in dataset.file_meta:
            encoding = "Implicit" if dataset.original_encoding[0] else "Explicit"
            dataset.file_meta.TransferSyntaxUID = getattr(pydicom.uid, f"{encoding}VRLittleEndian")
        return dataset


def frame_count(dataset: Any) -> int:
    """Return the number of frames."""
    return int(dataset.get("NumberOfFrames") or 1)


def frame_header(path: Path, dataset: Any, frame: int) -> Any:
    """Return the elements of a frame as one flat data set: those of its own functional groups, else
    of those that all frames share, else of the file.
    """
    elements = dict(dataset.items())
    shared = list(dataset.get("SharedFunctionalGroupsSequence") or ())[:1]
    frames = list(dataset.get("PerFrameFunctionalGroupsSequence") or ())[frame : frame + 1]
    for group in (*shared, *frames):
        for sequence in group:
            elements[sequence.tag] = sequence
            for item in list(sequence.value or ())[:1]:
                elements.update(item.items())
    flat = package("pydicom", path).Dataset(elements)
    flat.file_meta = dataset.file_meta
    return flat


def patient(dataset: Any) -> str:
    """Return the identifier of the patient, if the header has one."""
    return bounds.plain(str(dataset.get("PatientID") or "").strip(), 80)


def mask_fault(dataset: Any) -> str:
    """Return why class numbers in a file's pixels would be misread; empty if they would not."""
    syntax = dataset.file_meta.TransferSyntaxUID
    # uncompressed masks may have the header of an image that was compressed
    if syntax in JPEG or (syntax in MAYBE_LOSSY and dataset.get("LossyImageCompression") == "01"):
        return f"is stored as {syntax.name}, with losses, which change class numbers"
    is_inverted = dataset.get("PhotometricInterpretation") == "MONOCHROME1"
    return "is MONOCHROME1, whose values are inverted" if is_inverted else ""


def numbers(dataset: Any, name: str, count: int) -> tuple[float, ...]:
    """Return the ``count`` finite numbers of an element, or an empty tuple."""
    values = tuple(map(float, dataset.get(name) or ()))
    return values if len(values) == count and np.isfinite(values).all() else ()


def has_image(dataset: Any) -> bool:
    """Return whether a file holds an image: no report, plan, contours or segmentation."""
    is_mask = dataset.get("SOPClassUID") in SEGMENTATIONS
    return "Rows" in dataset and "Columns" in dataset and not is_mask


def object_name(dataset: Any) -> str:
    """Return the name of what a file holds, as "Enhanced SR"."""
    uid = dataset.get("SOPClassUID") or dataset.file_meta.get("MediaStorageSOPClassUID", "")
    name = getattr(uid, "name", str(uid)).removesuffix(" Storage")
    return bounds.plain(name or str(dataset.get("Modality", "")) or "object of no class", 60)


def require_image(path: Path, dataset: Any) -> None:
    """Raise DataError for a file that has no image, or not one that is read here.

    Raises:
        DataError: contours, reports, segmentations, slides, or samples that are not read.
        ConfigError: a library that decodes its pixels is missing.
    """
    if not has_image(dataset):
        raise NoPixelsError(
            f"{path} is a DICOM {object_name(dataset)}, not an image; "
            f"{REMEDIES.get(dataset.get('SOPClassUID'), 'take it out of the data')}"
        )
    if reason := _unsupported_form(dataset):
        raise DataError(f"{path} {reason}")
    require_decoder(path, dataset.file_meta.TransferSyntaxUID)


def _unsupported_form(dataset: Any) -> str:
    """Return which form of pixels is not read here; empty if this one is."""
    if dataset.get("SOPClassUID") == MICROSCOPY:
        return "is a slide in tiles; save regions as TIFF"
    if "MOSAIC" in (dataset.get("ImageType") or ()):
        return "has the slices of a volume in one picture (Siemens mosaic); convert it (dcm2niix)"
    samples = int(dataset.get("SamplesPerPixel", 1))
    bits = int(dataset.get("BitsStored", dataset.get("BitsAllocated", 0)))
    colours = str(dataset.get("PhotometricInterpretation", ""))
    limit = 8 if samples == 3 else 64 if "BitsStored" not in dataset else 32
    if colours not in {1: GRAY, 3: COLOUR}.get(samples, ()) or not 1 <= bits <= limit:
        return (
            f"has {samples} samples of {bits} bits, {colours or 'of no colours'}; gray of up to 32 "
            "bits is read, and colour of 8"
        )
    if int(dataset.get("HighBit") or bits - 1) != bits - 1:
        return (
            f"has {bits} bits stored up to bit {dataset.HighBit} (HighBit), which DICOM does not "
            "allow; correct it, or convert it"
        )
    return ""


def require_decoder(path: Path, syntax: Any) -> None:
    """Raise DataError for a transfer syntax that nothing here reads, and ConfigError if a library
    is missing.
    """
    try:
        decoder = package("pydicom.pixels", path).get_decoder(syntax)
    except NotImplementedError:
        raise _not_read(path, syntax) from None
    if decoder.is_available:
        return
    if "gdcm" in " ".join(decoder.missing_dependencies):
        raise _missing_decoder(path, syntax)
    raise _not_read(path, syntax)


def _not_read(path: Path, syntax: Any, detail: str = "") -> DataError:
    name = bounds.plain(getattr(syntax, "name", str(syntax)), 60)
    return DataError(
        f"{path} is stored as {name}{detail}, which is not supported (docs/formats.md lists what "
        "is); save it in another transfer syntax (gdcmconv --raw), or a video's frames as PNG"
    )


def _missing_decoder(path: Path, syntax: Any) -> ConfigError:
    return ConfigError(
        f"{path} is stored as {syntax.name}; {with_extra('decoders')} (python-gdcm, imagecodecs), "
        "or save it uncompressed (gdcmconv --raw)"
    )


def pixels(path: Path, dataset: Any) -> Any:
    """Decode all frames: (frames, rows, columns) or (frames, rows, columns, 3).

    Raises:
        DataError: damaged pixels.
        ConfigError: a library that decodes them is missing.
    """
    syntax = dataset.file_meta.TransferSyntaxUID
    with decoding(path):
        try:
            values = package("pydicom.pixels", path).pixel_array(dataset)
        except (RuntimeError, ValueError, NotImplementedError) as fault:
            if syntax.is_compressed and find_spec("gdcm") is None:
                raise _missing_decoder(path, syntax) from None
            if "does not support" in str(fault):
                raise _not_read(path, syntax, f" of {dataset.get('BitsStored')} bits") from None
            raise
        return values if frame_count(dataset) > 1 else values[None]

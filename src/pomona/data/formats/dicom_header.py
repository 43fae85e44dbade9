"""What a DICOM file is: recognised by its content, its header read by pydicom, its pixels decodable
by a library that is installed.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pomona.core import bounds, files
from pomona.core.errors import ConfigError, DataError, with_extra
from pomona.data.array_file import file
from pomona.data.images.image_file import decoding
from pomona.data.images.packages import package

SUFFIXES = {".dcm", ".dicom", ".ima"}
GRAY = {"MONOCHROME1", "MONOCHROME2"}
COLOUR = {"RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT"}
MAGIC, MAGIC_AT = b"DICM", 128
CONTOURS = "1.2.840.10008.5.1.4.1.1.481.3"
DOSE = "1.2.840.10008.5.1.4.1.1.481.2"
SEGMENTATIONS = {"1.2.840.10008.5.1.4.1.1.66.4", "1.2.840.10008.5.1.4.1.1.66.7"}
MICROSCOPY = "1.2.840.10008.5.1.4.1.1.77.1.6"


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


def header(path: Path, whole: bool = False) -> Any:
    """Read a file as pydicom's data set: all of it, or its elements before the pixels.

    Raises:
        DataError: it is not DICOM, or cannot be read.
        ConfigError: pydicom is not installed.
    """
    pydicom = package("pydicom", path)
    file(path)
    with decoding(path):
        bare = not is_dicom(path)
        dataset = pydicom.dcmread(path, stop_before_pixels=not whole, force=not bare)
        if not dataset:
            raise ValueError("it has no elements")
        if not hasattr(dataset.file_meta, "TransferSyntaxUID"):
            implicit = dataset.original_encoding[0]
            dataset.file_meta.TransferSyntaxUID = (
                pydicom.uid.ImplicitVRLittleEndian
                if implicit
                else pydicom.uid.ExplicitVRLittleEndian
            )
        return dataset


def without_pixels(dataset: Any) -> str | None:
    """Return what a file without an image is (report, plan, contours), or None if it has one."""
    return None if "Rows" in dataset and "Columns" in dataset else object_name(dataset)


def object_name(dataset: Any) -> str:
    """Return the name of what a file holds, as "Enhanced SR"."""
    uid = dataset.get("SOPClassUID") or dataset.file_meta.get("MediaStorageSOPClassUID", "")
    name = getattr(uid, "name", str(uid)).removesuffix(" Storage")
    return bounds.plain(name or str(dataset.get("Modality", "")) or "object of no class", 60)


def require_image(path: Path, dataset: Any) -> None:
    """Raise DataError for a file that has no image, or not one that is read here.

    Raises:
        DataError: contours, reports, slides, video, or samples that are not read.
        ConfigError: a library that decodes its pixels is missing.
    """
    if name := without_pixels(dataset):
        remedy = "leave it out"
        if dataset.get("SOPClassUID") == CONTOURS:
            remedy = (
                "draw its contours into a DICOM SEG or NIfTI mask first (3D Slicer, plastimatch)"
            )
        raise DataError(f"{path} is a DICOM {name}, which has no pixels; {remedy}")
    if dataset.get("SOPClassUID") == MICROSCOPY:
        raise DataError(
            f"{path} is a slide in tiles (whole slide microscopy); save regions as TIFF"
        )
    if "MOSAIC" in (dataset.get("ImageType") or ()):
        raise DataError(
            f"{path} holds the slices of a volume as tiles of one picture (Siemens mosaic); "
            "convert it to NIfTI (dcm2niix)"
        )
    _require_samples(path, dataset)
    require_decoder(path, dataset.file_meta.TransferSyntaxUID)


def _require_samples(path: Path, dataset: Any) -> None:
    """Raise DataError for samples other than gray up to 32 bits and colour of 8."""
    samples = int(dataset.get("SamplesPerPixel", 1))
    bits = int(dataset.get("BitsStored", dataset.get("BitsAllocated", 0)))
    colours = str(dataset.get("PhotometricInterpretation", ""))
    most = 8 if samples == 3 else 64 if "BitsStored" not in dataset else 32
    if colours not in {1: GRAY, 3: COLOUR}.get(samples, ()) or not 1 <= bits <= most:
        raise DataError(
            f"{path} has {samples} samples of {bits} bits, {colours or 'of no colours'}; gray "
            "of up to 32 bits is read, and colour of 8"
        )


def require_decoder(path: Path, syntax: Any) -> None:
    """Raise DataError for a transfer syntax that nothing here reads, and ConfigError if a library
    is missing.
    """
    try:
        decoder = package("pydicom.pixels", path).get_decoder(syntax)
        if decoder.is_available:
            return
        missing = " ".join(decoder.missing_dependencies)
    except NotImplementedError:
        missing = ""
    if "gdcm" in missing:
        raise missing_decoder(path, syntax)
    raise _not_read(path, syntax)


def _not_read(path: Path, syntax: Any, detail: str = "") -> DataError:
    name = bounds.plain(getattr(syntax, "name", str(syntax)), 60)
    return DataError(
        f"{path} is stored as {name}{detail}, which is not read (docs/formats.md lists what is); "
        "save it in another transfer syntax (gdcmconv --raw), or a video's frames as PNG"
    )


def missing_decoder(path: Path, syntax: Any) -> ConfigError:
    """Return the error for pixels that need a library that is not installed."""
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
                raise missing_decoder(path, syntax) from None
            if "does not support" in str(fault):
                bits = f" of {dataset.get('BitsStored')} bits"
                raise _not_read(path, syntax, bits) from None
            raise
        return values if int(dataset.get("NumberOfFrames", 1) or 1) > 1 else values[None]

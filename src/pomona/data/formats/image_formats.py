"""Formats of images and volumes, by the ending of a file's name.

To add a format, write one function ``opened(path) -> ImageFile`` (``images/image_file.py`` says
what it returns), and one line in ``_FORMATS``. The function runs in a child process with bounded
memory and time, so it may call any library; it raises ``DataError`` for a file that cannot be read,
and adds a note for everything that it drops, converts or guesses.

A package can add a format too, by an entry point of the group ``pomona.image_readers`` whose name
is the suffix and whose object is an ``ImageFormat``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

from numpy.typing import NDArray

from pomona.core.errors import DataError
from pomona.core.registry import load
from pomona.data.formats.dicom_header import is_dicom
from pomona.data.formats.unread import BY_SUFFIX
from pomona.data.images.image_file import ImageFile, decoding

ENTRY_POINTS = "pomona.image_readers"


@dataclass(frozen=True)
class ImageFormat:
    """A format of images or volumes.

    Attributes:
        opener: ``module:function`` of its ``opened(path) -> ImageFile``.
        labels: ``module:function`` that returns the numbers (*spatial, C) of a mask as stored,
            where an image's values differ from them (palettes, polarity).
    """

    opener: str
    labels: str = ""

    def opened(self, path: Path) -> ImageFile:
        """Open a file. Raises DataError, and ConfigError for a missing package."""
        with decoding(path):
            return cast(ImageFile, load(self.opener)(path))

    def stored_labels(self, path: Path) -> NDArray[Any] | None:
        """Return a mask as stored, or None if it is as an image of this format."""
        if not self.labels:
            return None
        with decoding(path):
            return cast(NDArray[Any], load(self.labels)(path))


PICTURE, TIFF = (
    ImageFormat(f"pomona.data.formats.{module}:opened", f"pomona.data.formats.{module}:labels")
    for module in ("pictures", "tiff")
)
NIFTI, ITK, DICOM = (
    ImageFormat(f"pomona.data.formats.{module}:opened") for module in ("nifti", "itk", "dicom")
)
SERIES = ImageFormat("pomona.data.formats.dicom:series")
_NIFTI, _PACKED = (".nii", ".img", ".hdr", ".mgh"), ("", ".gz", ".bz2")
_FORMATS: Mapping[str, ImageFormat] = {
    **dict.fromkeys((".png", ".bmp", ".gif", ".webp", ".jpg", ".jpeg", ".jpe", ".jfif"), PICTURE),
    **dict.fromkeys((".pgm", ".ppm", ".pbm", ".pnm"), PICTURE),
    **dict.fromkeys((".tif", ".tiff", ".tf8", ".btf"), TIFF),
    **{f"{stem}{packed}": NIFTI for stem in _NIFTI for packed in _PACKED},
    ".mgz": NIFTI,
    **dict.fromkeys((".nrrd", ".nhdr", ".mha", ".mhd"), ITK),
    **dict.fromkeys((".dcm", ".dicom", ".ima"), DICOM),
}
# data of a header in a file of its own, which is the one to name
_HEADERS = {".hdr": (".img",), ".raw": (".mhd", ".nhdr"), ".zraw": (".mhd",)}


@cache
def image_formats() -> Mapping[str, ImageFormat]:
    """Return all formats by suffix, with those of other packages."""
    outside = {e.name: cast(ImageFormat, e.load()) for e in entry_points(group=ENTRY_POINTS)}
    return {**outside, **_FORMATS}


def by_suffix(path: Path) -> ImageFormat | None:
    """Return the format that a file's name says, if any."""
    formats = image_formats()
    suffixes = ("".join(path.suffixes[-2:]).lower(), path.suffix.lower())
    return next((formats[suffix] for suffix in suffixes if suffix in formats), None)


def is_companion(path: Path) -> bool:
    """Return whether a file holds the data of a header in another file, or the reverse."""
    name = path.with_suffix("") if path.suffix.lower() in _PACKED[1:] else path
    suffixes = [end + packed for end in _HEADERS.get(name.suffix.lower(), ()) for packed in _PACKED]
    return any(name.with_suffix(suffix).exists() for suffix in suffixes)


def is_image(path: Path) -> bool:
    """Return whether a file is an image or volume by its suffix; DICOM without one by content."""
    if by_suffix(path):
        return not is_companion(path)
    return (not path.suffix or path.suffix[1:].isdigit()) and is_dicom(path)


def opened(path: Path) -> ImageFile:
    """Open an image, a volume, or a folder with a DICOM series, by name and headers.

    Raises:
        DataError: it cannot be read, with the reason.
        ConfigError: a package is missing.
    """
    suffix = path.suffix.lower()
    image_format = SERIES if path.is_dir() and suffix != ".zarr" else by_suffix(path)
    if image_format is None and is_dicom(path):
        image_format = DICOM
    if image_format is None:
        reason = BY_SUFFIX.get(suffix, "a format that is not read; convert it to PNG or NIfTI")
        raise DataError(f"cannot read the image {path}: its suffix says {reason}")
    return image_format.opened(path)

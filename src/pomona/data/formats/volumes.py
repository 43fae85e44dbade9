"""Which adapter reads a volume or a medical image, by suffix, and for DICOM by content."""

from pathlib import Path

from pomona.data.formats import dicom, itk, nifti
from pomona.data.formats.dicom_header import SUFFIXES as DICOM
from pomona.data.formats.dicom_header import is_dicom
from pomona.data.images.image_file import ImageFile

SUFFIXES = (*nifti.SUFFIXES, *itk.SUFFIXES, *sorted(DICOM))
# data of a header in a file of its own, which is the one to name
COMPANIONS = {".hdr": ".img", ".raw": ".mhd", ".zraw": ".mhd"}


def is_volume(path: Path) -> bool:
    """Return whether a file name is that of a volume or a medical image."""
    return path.name.lower().endswith(SUFFIXES)


def opened(path: Path, picture: bool = False) -> ImageFile | None:
    """Open a volume, a medical image, or a folder with a DICOM series; None if it is none of these.

    Args:
        path: the file or folder.
        picture: whether the suffix is that of a picture, so that its content is not looked at.

    Raises:
        DataError: it cannot be read, with the reason.
        ConfigError: a package is missing.
    """
    name = path.name.lower()
    if path.is_dir():
        return dicom.series(path)
    if name.endswith(nifti.SUFFIXES):
        return nifti.opened(path)
    if name.endswith(itk.SUFFIXES):
        return itk.opened(path)
    if path.suffix.lower() in DICOM or (not picture and is_dicom(path)):
        return dicom.opened(path)
    return None

"""Images and volumes that SimpleITK reads: NRRD (.nrrd, .nhdr) and MetaImage (.mha, .mhd)."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core import bounds, files
from pomona.core.errors import DataError
from pomona.data.array_file import file
from pomona.data.images.grid import Grid
from pomona.data.images.image_arrays import sample_type
from pomona.data.images.image_file import ImageFile, decoding, plain, within
from pomona.data.images.packages import package
from pomona.data.images.slice_stack import TO_RAS
from pomona.data.images.volume import volume

# the reader of each, which is not chosen by the content
READERS = {
    ".nrrd": "NrrdImageIO",
    ".nhdr": "NrrdImageIO",
    ".mha": "MetaImageIO",
    ".mhd": "MetaImageIO",
}
SUFFIXES = tuple(READERS)
MOST_HEADER = 1 << 20  # bytes
DATA_FILE = re.compile(
    rb"^(?:data ?file|ElementDataFile)\s*[:=]\s*(.*?)\s*$", re.MULTILINE | re.IGNORECASE
)
# what a header has if it says where its voxels lie
ORIENTED = re.compile(
    rb"^(?:space\s*:|space directions\s*:|(?:TransformMatrix|Rotation|Orientation)\s*=)",
    re.MULTILINE | re.IGNORECASE,
)
INSIDE = (b"LOCAL", b"")


def opened(path: Path) -> ImageFile:
    """Open an image (H, W, C) or a volume (D, H, W, C) from its header.

    Raises:
        DataError: not such a file, or numbers or axes that are not read.
        ConfigError: SimpleITK is not installed.
    """
    oriented = _oriented(path)
    with decoding(path):
        reader, size, channels, name = _information(path)
        if "complex" in name or "label" in name:
            raise DataError(f"{path} holds {name}; store whole or real numbers")
        dtype = sample_type([_stored_type(name)], path)
        if len(size) == 2:
            within(path, (*size[::-1], channels))
            return plain(path, (*size[::-1], channels), dtype, partial(_pixels, path, dtype))
        if len(size) != 3:
            raise DataError(
                f"{path} has {len(size)} axes of {' x '.join(map(str, size))}; a volume has three: "
                "save each time point, or each layer of segments, in its own file"
            )
        within(path, (*size, channels))
        affine = np.eye(4)
        affine[:3, :3] = np.reshape(reader.GetDirection(), (3, 3)) * reader.GetSpacing()
        affine[:3, 3] = reader.GetOrigin()
        grid = Grid.of(path, size, TO_RAS @ affine if oriented else affine, oriented)
        return volume(grid, channels, dtype, partial(_voxels, path, dtype))


def _information(path: Path) -> tuple[Any, tuple[int, ...], int, str]:
    """Return SimpleITK's reader with the header read, sizes, channels, and the type's name."""
    simpleitk = package("SimpleITK", path)
    simpleitk.ProcessObject.SetGlobalDefaultNumberOfThreads(1)
    reader = _reader(path)
    try:
        reader.ReadImageInformation()
    except RuntimeError as fault:
        reason = bounds.plain(str(fault).strip().splitlines()[-1], 80)
        raise DataError(
            f"cannot read {path} ({reason}); save it again, or as NIfTI (.nii.gz)"
        ) from None
    name = simpleitk.GetPixelIDValueAsString(reader.GetPixelID())
    return reader, tuple(map(int, reader.GetSize())), int(reader.GetNumberOfComponents()), name


def _stored_type(name: str) -> np.dtype[Any]:
    """Return the dtype for SimpleITK's name of a pixel type, "vector of 16-bit signed integer"."""
    bits = int(name.partition("-bit")[0].split()[-1])
    if "float" in name:
        return np.dtype(np.float32)
    if bits > 16:
        return np.dtype(np.float32)
    return np.dtype(f"{'u' if 'unsigned' in name else ''}int{bits}")


def _oriented(path: Path) -> bool:
    """Return whether a header says where the voxels lie.

    Raises DataError for a header that names a data file elsewhere, or several.
    """
    with files.opened(file(path)) as raw:
        start = raw.read(MOST_HEADER)
    text = start.partition(b"\n\n")[0] if path.suffix.lower() in {".nrrd", ".nhdr"} else start
    text = text.replace(b"\r", b"")
    magic = b"NRRD" if path.suffix.lower() in {".nrrd", ".nhdr"} else b"NDims"
    if magic not in text:
        raise DataError(
            f"cannot read {path} (it has not the header of its suffix); save it again, or as NIfTI "
            "(.nii.gz)"
        )
    named = DATA_FILE.search(text)
    if named:
        text = text[: named.end()]
        name = named[1]
        if name not in INSIDE:
            plain_name = name.decode("utf-8", "replace")
            if (
                Path(plain_name).name != plain_name
                or plain_name.upper().startswith("LIST")
                or "%" in plain_name
            ):
                raise DataError(
                    f"{path} names its data file {plain_name!r}; it must be one file in the same "
                    "folder: save it as .nrrd or .mha, in one file"
                )
            file(path.parent / plain_name)
    return ORIENTED.search(text) is not None


def _reader(path: Path) -> Any:
    """Return SimpleITK's reader of the suffix."""
    reader = package("SimpleITK", path).ImageFileReader()
    reader.SetImageIO(READERS[path.suffix.lower()])
    reader.SetFileName(str(path))
    return reader


def _array(path: Path) -> NDArray[Any]:
    image = _reader(path).Execute()
    values = package("SimpleITK", path).GetArrayFromImage(image)
    out: NDArray[Any] = values if image.GetNumberOfComponentsPerPixel() > 1 else values[..., None]
    return out


def _voxels(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return voxels (x, y, z, C) as stored."""
    return _array(path).transpose(2, 1, 0, 3).astype(dtype, copy=False)


def _pixels(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    return _array(path).astype(dtype, copy=False)

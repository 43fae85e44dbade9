"""Pictures in files, by a fixed list of decoders that is never chosen by a file's content.

Pillow reads them, and tifffile TIFF that Pillow cannot: 16-bit colour, floating point, any number
of channels.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from pomona.core import files
from pomona.core.errors import DataError
from pomona.data.array_file import file
from pomona.data.image_arrays import WINDOW, sample_type
from pomona.data.image_file import MOST_VALUES, ImageFile, Size, decoding, package, plain

TIFF = {".tif", ".tiff"}
SUFFIXES = {*TIFF, ".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".pgm", ".ppm"}
# By default, Pillow selects the decoder by content, and some start other programs (EPS:
# Ghostscript).
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
GRAY, COLOUR = {"1", "L", "LA"}, {"RGB", "RGBA", "P", "PA", "CMYK", "YCbCr"}
# Modes of gray pixels of more than 8 bits with their dtypes; I;16S is Pillow's name for what it
# widens to 32 bits.
DEEP = {
    "I;16": np.uint16,
    "I;16B": np.uint16,
    "I;16L": np.uint16,
    "I;16S": np.int16,
    "F": np.float32,
}
T = TypeVar("T")


def picture(path: Path) -> ImageFile:
    """Open an image in one of ``FORMATS``. Raises DataError."""
    mode, (width, height) = form(path)
    if mode in DEEP:
        dtype = np.dtype(DEEP[mode])
        return plain(path, (height, width, 1), dtype, lambda: stored(path))

    def pixels(channels: int, size: Size | None) -> NDArray[np.uint8]:
        return decoded(path, "L" if channels == 1 else "RGB", size)

    return ImageFile(path, (height, width, len(mode)), np.dtype(np.uint8), pixels, picture=True)


def form(path: Path) -> tuple[str, Size]:
    """Return mode and size from an image's header: "L" (gray), "RGB" or a mode of ``DEEP``, and
    (width, height).

    Raises:
        DataError: not a regular file or not in ``FORMATS``, too large, several pictures in one
            file, or pixels of an unsupported type.
    """

    def look(image: Image.Image) -> tuple[str, Size]:
        width, height = image.size
        return _mode(image), (height, width) if _orientation(image) > 4 else (width, height)

    return _opened(path, look)


def stored(path: Path) -> NDArray[Any]:
    """Return the stored pixels (H, W, C): those of a palette as its indices, others as gray or RGB.

    Raises DataError as ``form``, and if damaged.
    """

    def pixels(image: Image.Image) -> NDArray[Any]:
        mode = _mode(image)  # the image may lose it on loading
        kept = mode in DEEP or image.mode in {"1", "L", "P"}
        upright = _upright(image) if kept else _upright(image).convert(mode)
        return (
            np.asarray(upright)
            .astype(DEEP.get(mode, np.uint8))
            .reshape(upright.height, upright.width, -1)
        )

    return _opened(path, pixels)


def decoded(path: Path, colours: str, size: Size | None = None) -> NDArray[np.uint8]:
    """Decode an image to pixels (H, W, C) uint8.

    Args:
        path: the file.
        colours: "L" gives C = 1, "RGB" gives C = 3.
        size: (width, height) to resize to (bilinear, antialiased); the image's own if None.

    Raises:
        DataError: as ``form``, and for pixels that are damaged, missing, or out of range for 8
            bits.
    """

    def pixels(image: Image.Image) -> NDArray[np.uint8]:
        if (mode := _mode(image)) in DEEP:
            raise DataError(f"{path} has pixels of mode {mode}, which 8 bits cannot hold; {WINDOW}")
        upright = _upright(image).convert(colours)
        sized = upright.resize(size or upright.size, Image.Resampling.BILINEAR)
        return np.asarray(sized, np.uint8).reshape(sized.height, sized.width, len(colours))

    return _opened(path, pixels)


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8, without decoding the image (as PNG's own method would);
    default 1.
    """
    # Pillow rotates TIFF itself
    found = 1 if image.format == "TIFF" else Image.Image.getexif(image).get(0x0112)
    return found if isinstance(found, int) and 1 <= found <= 8 else 1


def _upright(image: Image.Image) -> Image.Image:
    """Rotate the image as its EXIF orientation says, as viewers do with photographs."""
    return ImageOps.exif_transpose(image) if _orientation(image) > 1 else image


def _opened(path: Path, look: Callable[[Image.Image], T]) -> T:
    """Apply ``look`` to an opened image. Raises DataError for any problem with the file."""
    files.regular(path, DataError)
    with decoding(path), files.opened(path) as raw:
        try:
            with Image.open(raw, formats=FORMATS) as image:
                if image.width * image.height > MOST_VALUES:
                    size = f"{image.width} x {image.height} pixels"
                    raise DataError(
                        f"{path} has {size}, at most {MOST_VALUES} are read; make it smaller"
                    )
                return look(image)
        except UnidentifiedImageError:
            known = f"it is not {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
            what = known if path.stat().st_size else "it is empty"
            raise DataError(
                f"cannot read the image {path} ({what}); replace or remove it"
            ) from None


def _mode(image: Image.Image) -> str:
    """Return the mode for an image's pixels: "L", "RGB" or one of ``DEEP``.

    Raises DataError if none fits.
    """
    name = image.filename  # type: ignore[attr-defined]
    if getattr(image, "is_animated", False):
        raise DataError(
            f"{name} contains several pictures, of which only one would be read; save each in its "
            "own file"
        )
    tiles = getattr(image, "tile", None)
    raw = str(tiles[0][3]) if tiles else ""  # pixels as stored; Pillow would clip colours to 8 bits
    if image.mode in GRAY | COLOUR and ";16" not in raw:
        return "L" if image.mode in GRAY else "RGB"
    mode = "I;16S" if image.mode == "I" and "I;16S" in raw else image.mode
    if mode not in DEEP:
        colours = " of 16 bits" if image.mode in GRAY | COLOUR else ""
        raise DataError(
            f"{name} has pixels of mode {image.mode}{colours}, which are not read; {WINDOW}"
        )
    return mode


def tiff(path: Path) -> ImageFile:
    """Open a single-page file as an image (H, W, C) from its header.

    Raises:
        DataError: not a TIFF, several pages, or a dtype that images do not have.
        ConfigError: tifffile is not installed.
    """
    tifffile = package("tifffile", path)
    with decoding(path):
        if not file(path).stat().st_size:
            raise ValueError("it is empty")
        with tifffile.TiffFile(path) as opened:
            shape, dtype = _tiff_form(opened, path)
            read = partial(_tiff_values, path, shape)
            return plain(path, shape, sample_type([dtype], path), read)


def _tiff_form(opened: Any, path: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    page = opened.pages[0]
    if page.next if hasattr(page, "next") else len(opened.pages) > 1:
        raise DataError(
            f"{path} contains several pictures, of which only one would be read; save each in its "
            "own file"
        )
    axes, shape = str(page.axes), tuple(map(int, page.shape))
    if axes not in {"YX", "YXS", "SYX"} or page.dtype is None:
        raise DataError(
            f"{path} holds axes {axes} of {page.dtype}; an image has rows, columns and channels"
        )
    rows, columns, channels = {"YX": (*shape, 1), "YXS": shape, "SYX": (*shape[1:], *shape[:1])}[
        axes
    ]
    return (rows, columns, channels), page.dtype


def _tiff_values(path: Path, shape: tuple[int, ...]) -> NDArray[Any]:
    with package("tifffile", path).TiffFile(path) as opened:
        page = opened.pages[0]
        values = page.asarray(maxworkers=1)
        values = np.moveaxis(values, 0, -1) if page.axes == "SYX" else values
        return np.ascontiguousarray(values.reshape(shape)).astype(
            sample_type([page.dtype]), copy=False
        )

"""Image decoding, with decoders named here and never chosen by a file's content."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from pomona.core import bounds, files
from pomona.core.errors import DataError
from pomona.data.image_arrays import WINDOW
from pomona.data.image_file import MOST_VALUES, Size

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"}
# Left to itself, Pillow takes the decoder that fits the content, and some start other programs (EPS: Ghostscript).
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
GRAY, COLOUR = {"1", "L", "LA"}, {"RGB", "RGBA", "P", "PA", "CMYK", "YCbCr"}
# Gray pixels of more than 8 bits, and what holds them; I;16S is Pillow's name for what it turns into 32 bits.
DEEP = {"I;16": np.uint16, "I;16B": np.uint16, "I;16L": np.uint16, "I;16S": np.int16, "F": np.float32}
T = TypeVar("T")


def form(path: Path) -> tuple[str, Size]:
    """Mode and size of an image from its header: "L" (gray), "RGB" or a mode of ``DEEP``, and (width, height).

    Raises:
        DataError: no plain file, no image of ``FORMATS``, too large, several pictures in one, or pixels of a kind that
            is not read.
    """

    def look(image: Image.Image) -> tuple[str, Size]:
        width, height = image.size
        return _mode(image), (height, width) if _orientation(image) > 4 else (width, height)

    return _opened(path, look)


def deep(path: Path) -> NDArray[Any]:
    """The pixels (H, W, 1) of a gray image of a mode of ``DEEP``. Raises DataError as ``form``, and for damage."""

    def pixels(image: Image.Image) -> NDArray[Any]:
        dtype = DEEP[_mode(image)]  # the image forgets it in being read
        return np.asarray(_upright(image)).astype(dtype)[..., None]

    return _opened(path, pixels)


def numbers(path: Path) -> NDArray[Any] | None:
    """The numbers (H, W, 1) that a gray image or one with a palette stores; None for colours. Raises DataError."""

    def stored(image: Image.Image) -> NDArray[Any] | None:
        mode = _mode(image)
        if image.mode in {"1", "L", "P"}:
            return np.asarray(_upright(image)).astype(np.uint8)[..., None]
        return np.asarray(_upright(image)).astype(DEEP[mode])[..., None] if mode in DEEP else None

    return _opened(path, stored)


def decoded(path: Path, colours: str, size: Size | None = None) -> NDArray[np.uint8]:
    """The pixels (H, W, C) uint8 of an image.

    Args:
        path: the file.
        colours: "L" gives C = 1, "RGB" gives C = 3.
        size: (width, height) to which it is brought (bilinear, antialiased); its own if None.

    Raises:
        DataError: as ``form``, and for pixels that are damaged or missing, or that 8 bits cannot hold.
    """

    def pixels(image: Image.Image) -> NDArray[np.uint8]:
        if (mode := _mode(image)) in DEEP:
            raise DataError(f"{path} has pixels of mode {mode}, which 8 bits cannot hold; {WINDOW}")
        upright = _upright(image).convert(colours)
        sized = upright.resize(size or upright.size, Image.Resampling.BILINEAR)
        return np.asarray(sized, np.uint8).reshape(sized.height, sized.width, len(colours))

    return _opened(path, pixels)


def _orientation(image: Image.Image) -> int:
    """How a picture lies by its EXIF, 1 to 8, without decoding it (as PNG's own method would); 1 where none is said."""
    found = 1 if image.format == "TIFF" else Image.Image.getexif(image).get(0x0112)  # Pillow turns TIFF itself
    return found if isinstance(found, int) and 1 <= found <= 8 else 1


def _upright(image: Image.Image) -> Image.Image:
    """The picture as a viewer shows it: turned as its EXIF says, as a phone's photographs are."""
    return ImageOps.exif_transpose(image) if _orientation(image) > 1 else image


def _opened(path: Path, look: Callable[[Image.Image], T]) -> T:
    """Result of ``look`` on an opened image. Raises DataError for any fault of the file."""
    files.regular(path, DataError)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what Pillow passes over; the limit of size is our own
            with files.opened(path) as raw, Image.open(raw, formats=FORMATS) as image:
                if image.width * image.height > MOST_VALUES:
                    size = f"{image.width} x {image.height} pixels"
                    raise DataError(f"{path} has {size}, at most {MOST_VALUES} are read; make it smaller")
                return look(image)
    except DataError:
        raise
    except UnidentifiedImageError:
        what = "it is empty" if not path.stat().st_size else f"it is not {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise DataError(f"cannot read the image {path} ({what}); replace or remove it") from None
    except Exception as fault:  # decoders meet damaged files with errors of every kind
        reason = bounds.plain(str(fault), 120) or type(fault).__name__
        raise DataError(f"cannot read the image {path} ({reason}); replace or remove it") from fault


def _mode(image: Image.Image) -> str:
    """The mode that holds an image's pixels: "L", "RGB" or one of ``DEEP``. Raises DataError where none does."""
    name = image.filename  # type: ignore[attr-defined]
    if getattr(image, "is_animated", False):
        raise DataError(f"{name} holds several pictures, of which one would be read; save each in a file of its own")
    tiles = getattr(image, "tile", None)
    raw = str(tiles[0][3]) if tiles else ""  # pixels as stored; Pillow would cut colours to 8 bits
    if image.mode in GRAY | COLOUR and ";16" not in raw:
        return "L" if image.mode in GRAY else "RGB"
    mode = "I;16S" if image.mode == "I" and "I;16S" in raw else image.mode
    if mode not in DEEP:
        colours = " of 16 bits" if image.mode in GRAY | COLOUR else ""
        raise DataError(f"{name} has pixels of mode {image.mode}{colours}, which are not read; {WINDOW}")
    return mode

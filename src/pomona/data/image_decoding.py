"""Image decoding, with decoders named here and never chosen by a file's content."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from pomona.core import bounds
from pomona.core.errors import DataError
from pomona.data.image_arrays import WINDOW

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"}
# Left to itself, Pillow takes the decoder that fits the content, and some start other programs (EPS: Ghostscript).
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
GRAY, COLOUR = {"1", "L", "LA"}, {"RGB", "RGBA", "P", "PA", "CMYK", "YCbCr"}
MOST_PIXELS = 64 * 2**20  # of one image; a small file can promise a picture that fills the memory

Size = tuple[int, int]  # width, height
T = TypeVar("T")


def form(path: Path) -> tuple[str, Size]:
    """Mode and size of an image from its header: "L" (gray) or "RGB", and (width, height).

    Raises:
        DataError: no plain file, no image of ``FORMATS``, too large, several pictures in one, or pixels that
            8 bits cannot hold.
    """
    return _opened(path, lambda image: (_colours(image), image.size))


def decoded(path: Path, colours: str, size: Size | None = None) -> NDArray[np.uint8]:
    """The pixels (H, W, C) uint8 of an image.

    Args:
        path: the file.
        colours: "L" gives C = 1, "RGB" gives C = 3.
        size: (width, height) to which it is brought (bilinear, antialiased); its own if None.

    Raises:
        DataError: as ``form``, and for pixels that are damaged or missing.
    """

    def pixels(image: Image.Image) -> NDArray[np.uint8]:
        _colours(image)
        sized = image.convert(colours).resize(size or image.size, Image.Resampling.BILINEAR)
        return np.asarray(sized, np.uint8).reshape(sized.height, sized.width, len(colours))

    return _opened(path, pixels)


def _opened(path: Path, look: Callable[[Image.Image], T]) -> T:
    """Result of ``look`` on an opened image. Raises DataError for any fault of the file."""
    bounds.regular(path, DataError)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what Pillow passes over; the limit of size is our own
            with Image.open(path, formats=FORMATS) as image:
                if image.width * image.height > MOST_PIXELS:
                    size = f"{image.width} x {image.height} pixels"
                    raise DataError(f"{path} has {size}, at most {MOST_PIXELS} are read; make it smaller")
                return look(image)
    except DataError:
        raise
    except UnidentifiedImageError:
        what = "it is empty" if not path.stat().st_size else f"it is no {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise DataError(f"cannot read the image {path} ({what}); replace or remove it") from None
    except Exception as fault:  # decoders meet damaged files with errors of every kind
        reason = bounds.plain(str(fault), 120) or type(fault).__name__
        raise DataError(f"cannot read the image {path} ({reason}); replace or remove it") from fault


def _colours(image: Image.Image) -> str:
    """The mode "L" or "RGB" that holds an image's pixels. Raises DataError where either would lose something."""
    name = image.filename  # type: ignore[attr-defined]
    if image.mode not in GRAY | COLOUR:
        raise DataError(f"{name} has pixels of mode {image.mode}, which 8 bits cannot hold; {WINDOW}")
    if getattr(image, "is_animated", False):
        raise DataError(f"{name} holds several pictures, of which one would be read; save each in a file of its own")
    return "L" if image.mode in GRAY else "RGB"

"""PNG, JPEG, BMP, GIF, WebP and PNM, by Pillow.

Pillow keeps quiet about what it changes. Noted here: transparency, orientation, inks, colour
profiles, gamma. Refused: colours of 16 bits, which it cuts to 8, and all but the first of several
pictures. Undone in masks: values of 1 to 4 bits, or of a PNM with another maximum, which it scales.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from pomona.core import files
from pomona.core.errors import DataError
from pomona.data.formats import unread
from pomona.data.images.image_arrays import WINDOW
from pomona.data.images.image_file import ImageFile

# By default, Pillow selects the decoder by content, and some start other programs (EPS:
# Ghostscript).
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM")
GRAY, COLOUR = {"1", "L", "LA"}, {"RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr"}
# Modes of gray pixels of more than 8 bits; I is a PNM
DEEP = {"I;16": np.uint16, "I;16B": np.uint16, "I;16L": np.uint16, "I": np.uint16}
ALPHA = "transparency (alpha) is left out, and colours are taken as stored"
TURNED = "turned as the orientation tag says"
INKS = "inks (CMYK) are converted to RGB without a colour profile"
PROFILE = "the colour profile is not sRGB, and is not applied; convert images of all sites to one"
GAMMA = "the gamma of the file is not applied; convert images of all sites to one"
FURTHER = "the main picture is read, and further pictures of the camera (MPO) are left out"
LOW = "values of fewer than 8 bits are scaled to 0 to 255"
USUAL_GAMMA = 1 / 2.2
T = TypeVar("T")


def opened(path: Path) -> ImageFile:
    """Open an image in one of ``FORMATS``.

    Raises DataError if it is not, has several pictures, or pixels of an unsupported type.
    """
    return _opened(path, partial(_image_file, path))


def labels(path: Path) -> NDArray[Any]:
    """Return the stored pixels (H, W, C): those of a palette as its indices, others as gray or RGB.

    Raises DataError as ``opened``, if damaged, and for JPEG, which changes class numbers.
    """

    def pixels(image: Image.Image) -> NDArray[Any]:
        if image.format in {"JPEG", "MPO"}:
            raise lossy_mask(path)
        mode = _mode(path, image)  # the image may lose it on loading
        largest, stored = _range(image)
        as_stored = mode in DEEP or image.mode in {"1", "L", "P"}
        values = _values(_upright(image) if as_stored else _upright(image).convert(mode))
        if largest != stored:
            values = (values.astype(np.int64) * stored + largest // 2) // largest
        return values.astype(DEEP.get(mode, np.uint8))

    return _opened(path, pixels)


def lossy_mask(path: Path, compression: str = "JPEG") -> DataError:
    """Return the error for a mask whose compression may change numbers."""
    return DataError(
        f"the mask {path} is {compression}, whose compression can change class numbers; save masks "
        "as PNG, drawn again or from the original"
    )


def _image_file(path: Path, image: Image.Image) -> ImageFile:
    mode = _mode(path, image)
    rows, columns = image.size if _orientation(image) > 4 else image.size[::-1]
    deep = mode in DEEP
    return ImageFile(
        path,
        (rows, columns, 1 if deep else len(mode)),
        np.dtype(DEEP.get(mode, np.uint8)),
        partial(labels if deep else _decoded, path),
        picture=not deep,
        notes=_notes(image),
    )


def _decoded(path: Path) -> NDArray[np.uint8]:
    """Decode an image of 8 bits to gray or RGB."""

    def pixels(image: Image.Image) -> NDArray[np.uint8]:
        return _values(_upright(image).convert(_mode(path, image)))

    return _opened(path, pixels)


def _values(image: Image.Image) -> NDArray[Any]:
    return np.asarray(image).reshape(image.height, image.width, -1)


def _notes(image: Image.Image) -> tuple[str, ...]:
    """Return a remark on everything that is dropped, turned or scaled."""
    info = image.info
    largest, stored = _range(image)
    gamma = float(info.get("gamma", USUAL_GAMMA))
    remarks = {
        ALPHA: image.mode in {"LA", "RGBA", "PA"} or "transparency" in info,
        TURNED: _orientation(image) > 1,
        INKS: image.mode == "CMYK",
        PROFILE: not is_srgb(info.get("icc_profile") or b"sRGB"),
        GAMMA: "srgb" not in info and abs(gamma - USUAL_GAMMA) > 0.02,
        FURTHER: image.format == "MPO",
        LOW: stored < largest == 255,
    }
    return tuple(note for note, applies in remarks.items() if applies)


def is_srgb(profile: bytes) -> bool:
    """Return whether an ICC profile names itself sRGB."""
    return b"sRGB" in profile or "sRGB".encode("utf-16-be") in profile


def _range(image: Image.Image) -> tuple[int, int]:
    """Return the largest value that Pillow gives, and the one that is stored for it."""
    arguments = _decoder(image)
    if image.format == "PPM" and isinstance(arguments, tuple):
        return (65535 if image.mode == "I" else 255), int(arguments[1])
    raw = arguments if isinstance(arguments, str) else str((arguments or ("",))[0])
    return 255, {"L;2": 3, "L;4": 15}.get(raw, 255)


def _decoder(image: Image.Image) -> Any:
    """Return the arguments of Pillow's decoder, which say how pixels are stored."""
    tiles = getattr(image, "tile", None)
    return tiles[0][3] if tiles else ""


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8, without decoding the image (as PNG's own method would);
    default 1.
    """
    value = Image.Image.getexif(image).get(0x0112)
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _upright(image: Image.Image) -> Image.Image:
    """Rotate the image as its EXIF orientation says, as viewers do with photographs.

    Raises ValueError for a PNG whose tag is read only after its pixels.
    """
    if _orientation(image) == 1 and image.format != "PNG":
        return image
    upright = ImageOps.exif_transpose(image)
    if _orientation(upright) > 1:
        raise ValueError("its orientation tag lies behind its pixels: save it again, upright")
    return upright


def _opened(path: Path, use: Callable[[Image.Image], T]) -> T:
    """Apply ``use`` to an opened image; within ``decoding``, as all callers have it."""
    files.regular(path, DataError)
    with files.opened(path) as raw, _any_size():
        try:
            with Image.open(raw, formats=FORMATS) as image:
                return use(image)
        except UnidentifiedImageError:
            raise DataError(unread.by_content(path, FORMATS)) from None


@contextmanager
def _any_size() -> Iterator[None]:
    """Suspend Pillow's limit of pixels: a whole slide has more, and what a reader process may take
    of the memory is limited.
    """
    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = limit


def _mode(path: Path, image: Image.Image) -> str:
    """Return the mode for an image's pixels: "L", "RGB" or one of ``DEEP``.

    Raises DataError if none fits.
    """
    _require_clear(path, image)
    if image.mode in DEEP and (image.mode != "I" or image.format == "PPM"):
        return image.mode
    if image.mode not in GRAY | COLOUR:
        raise DataError(f"{path} has pixels of mode {image.mode}, which is not supported; {WINDOW}")
    if ";16" in str(_decoder(image)) or _range(image)[1] > 255:  # Pillow would cut them to 8 bits
        raise DataError(
            f"{path} has 16-bit colours or transparency, which are not supported in this format; "
            "save it as 16-bit TIFF, as 16-bit gray without transparency, or with 8 bits"
        )
    return "L" if image.mode in GRAY else "RGB"


def _has_several(image: Any) -> bool:
    """Return whether a file has several pictures; one of plain PNM (P1 to P3) has not."""
    if image.format != "PPM":
        return image.format != "MPO" and bool(getattr(image, "is_animated", False))
    decoder, _, offset, _ = image.tile[0]
    row = (image.width + 7) // 8 if image.mode == "1" else image.width * len(image.getbands())
    depth = 2 if image.mode == "I" or _range(image)[1] > 255 else 1
    image.fp.seek(offset + row * depth * image.height)
    return bool(decoder != "ppm_plain" and image.fp.read(16).lstrip()[:1] == b"P")


def _require_clear(path: Path, image: Image.Image) -> None:
    """Raise DataError for several pictures, and for pixels that Pillow reads wrongly."""
    if _has_several(image):
        raise DataError(
            f"{path} contains several pictures, of which only one would be read; save each alone"
        )
    if image.format in {"JPEG", "MPO"} and image.mode == "CMYK" and "adobe" not in image.info:
        raise DataError(f"{path} is CMYK that may be inverted or not; convert it to RGB")
    row = (image.width + 31) // 32 * 4  # bytes of pixels of 1 bit
    if image.format == "BMP" and image.mode == "1" and _decoder(image)[1] != row:
        raise DataError(
            f"{path} has a palette of two colours for pixels of more than 1 bit, which Pillow "
            "misreads; save it as PNG"
        )

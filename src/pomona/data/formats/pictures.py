"""PNG, JPEG, BMP, GIF, WebP and PNM, and the TIFF that it reads right, by Pillow.

Pillow keeps quiet about what it changes. Noted here: transparency, orientation, inks, colour
profiles, gamma. Refused: colours of 16 bits, which it cuts to 8, and all but the first of several
pictures. Undone in masks: values of 1 to 4 bits, or of a PNM with another maximum, which it scales.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from pomona.core import files
from pomona.core.errors import DataError
from pomona.data.images import other_formats
from pomona.data.images.image_arrays import WINDOW
from pomona.data.images.image_file import ImageFile, Size, decoding, plain, within

SUFFIXES = {
    *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".webp"),
    *(".pgm", ".ppm", ".pbm", ".pnm"),
}
# By default, Pillow selects the decoder by content, and some start other programs (EPS:
# Ghostscript).
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
GRAY, COLOUR = {"1", "L", "LA"}, {"RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr"}
# Modes of gray pixels of more than 8 bits with their dtypes; I;16S is Pillow's name for what it
# widens to 32 bits, and I is a PNM of more than 8 bits.
DEEP = {
    "I;16": np.uint16,
    "I;16B": np.uint16,
    "I;16L": np.uint16,
    "I;16S": np.int16,
    "I": np.uint16,
    "F": np.float32,
}
ALPHA = "transparency (alpha) is left out, and colours are taken as stored"
TURNED = "turned as the orientation tag says"
INKS = "inks (CMYK) are converted to RGB without a colour profile"
PROFILE = "the colour profile is not sRGB, and is not applied; convert images of all sites to one"
GAMMA = "the gamma of the file is not applied; convert images of all sites to one"
FURTHER = "the main picture is read, and further pictures of the camera (MPO) are left out"
LOW = "values of fewer than 8 bits are scaled to 0 to 255"
USUAL_GAMMA = 1 / 2.2
T = TypeVar("T")


class Form(NamedTuple):
    """The form of a picture: ``mode``, "L" (gray), "RGB" or one of ``DEEP``, and its size."""

    mode: str
    height: int
    width: int
    notes: tuple[str, ...]


def opened(path: Path) -> ImageFile:
    """Open an image in one of ``FORMATS``.

    Raises DataError if it is not, has several pictures, or pixels of an unsupported type.
    """
    form = _opened(path, partial(_form, path))
    size = (form.height, form.width)
    if form.mode in DEEP:
        deep = plain(path, (*size, 1), np.dtype(DEEP[form.mode]), partial(labels, path))
        return replace(deep, notes=form.notes)
    pixels = partial(_decoded, path)
    shape = (*size, len(form.mode))
    within(path, shape)
    return ImageFile(path, shape, np.dtype(np.uint8), pixels, picture=True, notes=form.notes)


def picture(
    path: Path,
    shape: tuple[int, ...],
    load: Callable[[], NDArray[np.uint8]],
    notes: tuple[str, ...] = (),
) -> ImageFile:
    """Create an image (H, W, 1 or 3) of 8 bits from what another library loads."""
    within(path, shape)

    def pixels(channels: int, size: Size | None) -> NDArray[np.uint8]:
        with decoding(path):
            values = load()
            gray = values.shape[-1] == 1
            image = Image.fromarray(values[..., 0] if gray else values)
            return _resized(image, "L" if channels == 1 else "RGB", size)

    return ImageFile(path, shape, np.dtype(np.uint8), pixels, picture=True, notes=notes)


def labels(path: Path) -> NDArray[Any]:
    """Return the stored pixels (H, W, C): those of a palette as its indices, others as gray or RGB.

    Raises DataError as ``opened``, and if damaged.
    """

    def pixels(image: Image.Image) -> NDArray[Any]:
        mode = _mode(path, image)  # the image may lose it on loading
        scaled, stored = _range(image)
        as_stored = mode in DEEP or image.mode in {"1", "L", "P"}
        turned = _upright(image) if as_stored else _upright(image).convert(mode)
        values = np.asarray(turned).reshape(turned.height, turned.width, -1)
        if scaled != stored:
            values = (values.astype(np.int64) * stored + scaled // 2) // scaled
        return values.astype(DEEP.get(mode, np.uint8))

    return _opened(path, pixels)


def _decoded(path: Path, channels: int, size: Size | None = None) -> NDArray[np.uint8]:
    """Decode an image to pixels (H, W, channels), resized to (width, height) if given."""

    def pixels(image: Image.Image) -> NDArray[np.uint8]:
        _mode(path, image)
        return _resized(_upright(image), "L" if channels == 1 else "RGB", size)

    return _opened(path, pixels)


def _resized(image: Image.Image, colours: str, size: Size | None) -> NDArray[np.uint8]:
    """Return pixels (H, W, C) in these colours, resized (bilinear, antialiased) if given a size."""
    image = image.convert(colours)
    image = image.resize(size or image.size, Image.Resampling.BILINEAR)
    return np.asarray(image, np.uint8).reshape(image.height, image.width, len(colours))


def _form(path: Path, image: Image.Image) -> Form:
    mode = _mode(path, image)
    width, height = image.size
    if _orientation(image) > 4:
        width, height = height, width
    return Form(mode, height, width, _notes(image))


def _notes(image: Image.Image) -> tuple[str, ...]:
    """Return a remark on everything that is dropped, turned or scaled."""
    info = image.info
    profile = info.get("icc_profile") or b"sRGB"
    gamma = float(info.get("gamma", USUAL_GAMMA))
    scaled, stored = _range(image)
    tags = getattr(image, "tag_v2", {})
    remarks = {
        ALPHA: image.mode in {"LA", "RGBA", "PA"} or "transparency" in info,
        TURNED: _orientation(image) > 1 or tags.get(0x0112, 1) != 1,
        INKS: image.mode == "CMYK",
        PROFILE: b"sRGB" not in profile and "sRGB".encode("utf-16-be") not in profile,
        GAMMA: "srgb" not in info and abs(gamma - USUAL_GAMMA) > 0.02,
        FURTHER: image.format == "MPO",
        LOW: stored < scaled == 255,
    }
    return tuple(note for note, applies in remarks.items() if applies)


def _range(image: Image.Image) -> tuple[int, int]:
    """Return the largest value that Pillow gives, and the one that is stored for it."""
    tiles = getattr(image, "tile", None)
    if not tiles:
        return 255, 255
    codec, arguments = tiles[0][0], tiles[0][3]
    if codec in {"ppm", "ppm_plain"} and isinstance(arguments, tuple):
        return (65535 if image.mode == "I" else 255), int(arguments[1])
    raw = arguments if isinstance(arguments, str) else str((arguments or ("",))[0])
    return 255, {"L;2": 3, "L;4": 15}.get(raw, 255)


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8, without decoding the image (as PNG's own method would);
    default 1.
    """
    # Pillow rotates TIFF itself
    value = 1 if image.format == "TIFF" else Image.Image.getexif(image).get(0x0112)
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _upright(image: Image.Image) -> Image.Image:
    """Rotate the image as its EXIF orientation says, as viewers do with photographs."""
    return ImageOps.exif_transpose(image) if _orientation(image) > 1 else image


def _opened(path: Path, look: Callable[[Image.Image], T]) -> T:
    """Apply ``look`` to an opened image. Raises DataError for any problem with the file."""
    files.regular(path, DataError)
    with decoding(path), files.opened(path) as raw, _any_size():
        try:
            with Image.open(raw, formats=FORMATS) as image:
                return look(image)
        except UnidentifiedImageError:
            if kind := other_formats.kind_by_content(path):
                raise DataError(f"{path} {kind}") from None
            formats = f"it is not {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
            reason = formats if path.stat().st_size else "it is empty"
            raise DataError(
                f"cannot read the image {path} ({reason}); replace or remove it"
            ) from None


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
    if getattr(image, "is_animated", False) and image.format != "MPO":
        raise DataError(
            f"{path} contains several pictures, of which only one would be read; save each in its "
            "own file"
        )
    if image.format in {"JPEG", "MPO"} and image.mode == "CMYK" and "adobe" not in image.info:
        raise DataError(
            f"{path} has inks (CMYK) without the mark that says whether they are inverted; convert "
            "it to RGB"
        )
    tiles = getattr(image, "tile", None)
    raw = str(tiles[0][3]) if tiles else ""  # pixels as stored; Pillow would clip colours to 8 bits
    deep_colours = ";16" in raw or (image.mode != "I" and _range(image)[1] > 255)
    if image.mode in GRAY | COLOUR and not deep_colours:
        return "L" if image.mode in GRAY else "RGB"
    mode = "I;16S" if image.mode == "I" and "I;16S" in raw else image.mode
    if mode not in DEEP or (mode == "I" and image.format != "PPM"):
        if image.mode in GRAY | COLOUR:
            raise DataError(
                f"{path} has colours or transparency of 16 bits, which are not read in this "
                f"format; save it as TIFF of 16 bits, as gray of 16 bits without transparency, or "
                "of 8 bits"
            )
        raise DataError(f"{path} has pixels of mode {image.mode}, which are not read; {WINDOW}")
    return mode

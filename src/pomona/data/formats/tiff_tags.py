"""What the tags of a TIFF, and the metadata of ImageJ and OME in it, say; read by tifffile."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pomona.core.errors import ConfigError, DataError, with_extra
from pomona.data.formats import pictures
from pomona.data.formats.tiff_layout import Layout
from pomona.data.images.image_file import decoding
from pomona.data.images.packages import package

ALPHA = {1, 2}  # of the tag ExtraSamples
SHOWN = {"MINISBLACK", "MINISWHITE", "RGB", "PALETTE", "SEPARATED"}
MM = {"nm": 1e-6, "um": 1e-3, "µm": 1e-3, "μm": 1e-3, "micron": 1e-3, "microns": 1e-3, "mm": 1.0}
MM |= {"cm": 10.0, "m": 1e3, "inch": 25.4, "in": 25.4, "\\u00B5m": 1e-3}
FLOAT64 = "real numbers of 64 bits are rounded to 32"
WHITE = (
    "low values mean white (MinIsWhite), so values are inverted, as in other images; in masks the "
    "stored numbers count"
)


def layout(path: Path, stored: Any) -> Layout:
    """Return what the tags of an open file say. Raises DataError as ``opened``."""
    with decoding(path):
        series, pages = stored.series[0], [page for page in stored.pages if _is_image(page)]
        page = series.keyframe
        axes, shape = without_ones(series.axes, series.shape)
        if len(pages) > max(1, sum(item is not None for item in series.pages)) or not set(
            axes
        ) <= set("ZCSYX"):
            raise DataError(_several_images(path, axes, shape, len(pages)))
        if any(item is None for item in series.pages):
            raise DataError(f"{path} is one of several files of one image; save it as one file")
        if not {"Y", "X"} <= {*axes} or {"C", "S"} <= {*axes} or series.dtype is None:
            raise DataError(
                f"{path} holds axes {axes} of {series.dtype}; an image has rows, columns and "
                "channels, a volume slices (Z)"
            )
        colours = page.photometric.name
        _require_colours(path, page, colours, series.dtype)
        form = Layout(
            path,
            axes,
            shape,
            np.dtype(series.dtype),
            _bits(page),
            colours,
            alpha=_alpha(page) if "S" in axes else (),
            orientation=_tag(page, "Orientation", 1),
            ends=_ends(page),
            spacing=_spacing(stored, page) if "Z" in axes else (),
        )
        return replace(form, notes=_notes(form, len(stored.pages) - len(pages)))


def without_ones(axes: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Drop axes of length 1 that are not rows and columns."""
    kept = [(a, n) for a, n in zip(axes, shape, strict=True) if n > 1 or a in "YX"]
    return "".join(a for a, _ in kept), tuple(int(n) for _, n in kept)


def _is_image(page: Any) -> bool:
    """Return whether a page is not a smaller copy or a transparency mask."""
    return not (getattr(page, "is_reduced", False) or getattr(page, "subfiletype", 0) & 0b101)


def _several_images(path: Path, axes: str, shape: tuple[int, ...], pages: int) -> str:
    sizes = " x ".join(map(str, shape))
    return (
        f"{path} contains several pictures ({pages} pages, axes {axes} of {sizes}), of which only "
        "one would be read; save each in its own file, or a volume with its axis Z named (ImageJ, "
        "OME-TIFF)"
    )


def _require_colours(path: Path, page: Any, colours: str, dtype: np.dtype[Any]) -> None:
    """Raise DataError for colours and numbers that are not read, ConfigError for a compression
    whose decoder is missing.
    """
    jpeg = page.compression.name in {"JPEG", "OJPEG", "ALT_JPEG"}
    inks = colours == "SEPARATED" and (page.samplesperpixel != 4 or _tag(page, "InkSet", 1) != 1)
    if (colours not in SHOWN and not (colours == "YCBCR" and jpeg)) or inks:
        raise DataError(
            f"{path} has colours of kind {colours}, which are not read; convert it to gray or RGB"
        )
    if dtype.kind not in "biuf":
        raise DataError(
            f"{path} holds complex numbers ({dtype}), which are not read; save their magnitude"
        )
    try:
        page.decode  # noqa: B018 - raises for a missing decoder
    except Exception as fault:
        raise undecoded(path, fault) from fault


def undecoded(path: Path, fault: Exception) -> Exception:
    """Return the error for a decoder that is missing, or the fault itself."""
    if "imagecodecs" in str(fault):
        kind = re.search(r"COMPRESSION\.(\w+)", str(fault))
        compression = kind[1] if kind else "this kind"
        return ConfigError(
            f"{path}: TIFF of compression {compression} needs imagecodecs; {with_extra('decoders')}"
        )
    return fault


def _bits(page: Any) -> int:
    bits = page.bitspersample
    return int(bits if isinstance(bits, int) else max(bits))


def _tag(page: Any, name: str, default: int) -> int:
    value = page.tags.valueof(name, default)
    return int(value) if isinstance(value, int | np.integer) else default


def _alpha(page: Any) -> tuple[int, ...]:
    """Return the samples of a pixel that are its transparency."""
    extra = [int(kind) for kind in page.extrasamples]
    first = int(page.samplesperpixel) - len(extra)
    return tuple(first + k for k, kind in enumerate(extra) if kind in ALPHA)


def _ends(page: Any) -> tuple[float, float] | None:
    values = [page.tags.valueof(f"S{end}SampleValue") for end in ("Min", "Max")]
    numbers = [np.ravel(value)[0] for value in values if value is not None]
    return (float(numbers[0]), float(numbers[1])) if len(numbers) == 2 else None


def _spacing(stored: Any, page: Any) -> tuple[float, ...]:
    """Return mm between voxels (z, y, x) by the metadata of ImageJ or OME; none if unknown."""
    sizes: list[tuple[Any, str]] = []
    if stored.is_imagej:
        metadata = stored.imagej_metadata or {}
        unit = str(metadata.get("unit", ""))
        steps = [_step(page, f"{axis}Resolution") for axis in "YX"]
        sizes = [(metadata.get("spacing"), unit), *((step, unit) for step in steps)]
    elif stored.is_ome:
        tree = package("tifffile", Path()).xml2dict(stored.ome_metadata)
        images = tree.get("OME", {}).get("Image", {})
        pixels = (images[0] if isinstance(images, list) else images).get("Pixels", {})
        names = [f"PhysicalSize{axis}" for axis in "ZYX"]
        sizes = [(pixels.get(name), str(pixels.get(f"{name}Unit", "µm"))) for name in names]
    known = [float(size) * MM[unit] for size, unit in sizes if size and unit in MM]
    return tuple(known) if len(known) == 3 and min(known) > 0 else ()


def _step(page: Any, name: str) -> float:
    """Return the size of a pixel from a tag of pixels per unit, 0 if unknown."""
    pixels, units = page.tags.valueof(name, (0, 1))
    return units / pixels if pixels else 0.0


def _notes(layout: Layout, copies: int) -> tuple[str, ...]:
    """Return a remark on everything that is dropped, turned, scaled or rounded."""
    remarks = {
        f"{copies} smaller copies or masks in the file are not read": copies > 0,
        pictures.ALPHA: bool(layout.alpha),
        pictures.TURNED: layout.orientation > 1,
        WHITE: layout.colours == "MINISWHITE",
        f"values of {layout.bits} bits are scaled to 0 to 255": 1 < layout.bits < 8,
        FLOAT64: layout.dtype == np.float64,
        pictures.INKS: layout.colours == "SEPARATED",
    }
    return tuple(note for note, applies in remarks.items() if applies)

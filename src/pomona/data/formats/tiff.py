"""TIFF of every kind, read by tifffile: stored numbers first, then what its tags say of them.

tifffile gives numbers as they are stored. Done here: rows and columns turned upright, channels
last, without transparency; in images, not in masks, also palettes, inks and one polarity (high is
bright).
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pomona.core import bounds
from pomona.core.errors import ConfigError, DataError, with_extra
from pomona.data.array_file import file
from pomona.data.formats import pictures
from pomona.data.images import package
from pomona.data.images.grid import Grid
from pomona.data.images.image_arrays import sample_type
from pomona.data.images.image_file import ROUNDED, ImageFile, in_mm, scaled, volume

COPY = 0b101  # bits of the tag NewSubfileType: a smaller copy, or a transparency mask
ALPHA = {1, 2}  # of the tag ExtraSamples
COLOURS = {"MINISBLACK", "MINISWHITE", "RGB", "PALETTE", "SEPARATED", "YCBCR"}
# compressions with losses; those of JPEG XL, JPEG XR, WebP and LERC may have none
LOSSY = re.compile("JPEG(?!2000)|OJPEG|ALT_JPEG|WEBP|LERC")
# the start of a JPEG 2000 stream up to its wavelets: 0 are those with losses (ISO 15444-1, A.6.1)
WAVELETS = re.compile(rb"\xff\x52.{11}(.)", re.DOTALL)
MM = {"nm": 1e-6, "um": 1e-3, "µm": 1e-3, "μm": 1e-3, "micron": 1e-3, "mm": 1.0, "cm": 10.0}
MM |= {"m": 1e3, "inch": 25.4, "\\u00B5m": 1e-3}
# of GDAL's metadata: role and number
GDAL_SCALE = re.compile(r'role="(scale|offset)">([^<]*)<')
WHITE = "low values mean white (MinIsWhite), so values are inverted; in masks stored numbers count"


@dataclass(frozen=True)
class Layout:
    """How the numbers of a file are stored.

    Attributes:
        axes: of the array: Y and X, and Z, C (channels in planes or pages) and S (samples of a
            pixel), if it has them.
        shape: of the array.
        dtype: of the array.
        bits: of a sample.
        colours: tifffile's name of the photometric interpretation.
        alpha: samples of transparency.
        orientation: of rows and columns, 1 to 8.
    """

    axes: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    bits: int
    colours: str
    alpha: tuple[int, ...] = ()
    orientation: int = 1

    @property
    def arranged_shape(self) -> tuple[int, ...]:
        """(H, W, C) or (D, H, W, C)."""
        size = dict(zip(self.axes, self.shape, strict=True))
        rows, columns = (size["X"], size["Y"]) if self.orientation > 4 else (size["Y"], size["X"])
        channels = size.get("C", 1) * size.get("S", 1) - len(self.alpha)
        return (*([size["Z"]] if "Z" in size else []), rows, columns, channels)

    def arranged(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return stored values upright, with channels last, without transparency."""
        axes, row = self.axes, int("Z" in self.axes)
        if not {"C", "S"} & {*axes}:
            values, axes = values[..., None], f"{axes}S"
        values = values.transpose([axes.index(axis) for axis in "ZYXCS" if axis in axes])
        if self.orientation > 4:
            values = values.swapaxes(row, row + 1)
        flipped = [row] * (self.orientation in {3, 4, 7, 8})
        flipped += [row + 1] * (self.orientation in {2, 3, 6, 7})
        values = np.delete(np.flip(values, tuple(flipped)), self.alpha, axis=-1)
        return values.astype(np.uint8) if values.dtype == bool else values

    @property
    def image_type(self) -> np.dtype[Any]:
        """The dtype of ``as_image``."""
        if self.bits < 8 or self.colours == "PALETTE":
            return np.dtype(np.uint8)
        if self.dtype.kind in "iu" and self.dtype.itemsize > 2:
            return np.dtype(np.float32)
        return sample_type([self.dtype])

    def as_image(self, values: NDArray[Any], colormap: Any, path: Path) -> NDArray[Any]:
        """Return arranged values with a palette or inks as RGB, inverted if low ones mean white,
        and with 8 bits for fewer.
        """
        if self.colours == "PALETTE":
            # some programs write 8 bits into the 16 of a palette
            eight = colormap if colormap.max() < 256 else colormap >> 8
            return np.asarray(eight.astype(np.uint8).T[values[..., 0]])
        if self.colours == "YCBCR":
            return np.asarray(Image.fromarray(values, "YCbCr").convert("RGB"))
        if self.colours == "MINISWHITE" and values.dtype.kind == "u":
            values = 2**self.bits - 1 - values
        elif self.colours == "MINISWHITE":
            values = -values if values.dtype.kind == "f" else ~values
        if self.bits < 8:
            values = (values * (255 // (2**self.bits - 1))).astype(np.uint8)
        if self.colours == "SEPARATED":
            largest = np.uint64(2**self.bits - 1)
            light = largest - values.astype(np.uint64)
            rgb = (light[..., :3] * light[..., 3:] + largest // np.uint64(2)) // largest
            values = rgb.astype(values.dtype)
        with np.errstate(over="ignore"):  # infinite numbers are refused later
            return np.ascontiguousarray(scaled(values, 1.0, 0.0, self.image_type, path))


def opened(path: Path) -> ImageFile:
    """Open an image (H, W, C), or a volume (D, H, W, C) if ImageJ or OME name an axis Z.

    Raises:
        DataError: not a TIFF, several images, or colours or numbers that are not read.
        ConfigError: tifffile, or for some kinds of compression imagecodecs, is not installed.
    """
    with _file(path) as tiff:
        layout = _layout(path, tiff)
        notes, spacing = _notes(tiff, layout), _spacing(tiff, 2 + layout.axes.count("Z"))
        traits = (("pixels of", in_mm(spacing)), ("channels", _channels(tiff)))
    load = partial(_image, path, layout)
    shape, dtype = layout.arranged_shape, layout.image_type
    if layout.colours in {"PALETTE", "SEPARATED"}:
        shape = (*shape[:-1], 3)
    if len(shape) == 4:
        notes += () if spacing else ("voxel sizes are unknown; 1 mm is assumed",)
        affine = np.diag([*(spacing or (1.0, 1.0, 1.0))[::-1], 1])
        grid = Grid.from_affine(path, shape[2::-1], affine, oriented=False)
        return volume(grid, shape[3], dtype, lambda: load().transpose(2, 1, 0, 3), notes=notes)
    picture = dtype == np.uint8 and shape[2] in {1, 3}
    return ImageFile(path, shape, dtype, load, picture=picture, traits=traits, notes=notes)


def labels(path: Path) -> NDArray[Any]:
    """Return the numbers (*spatial, C) as stored. Raises as ``opened``, and for compression that
    may change them.
    """
    with _file(path) as tiff:
        layout = _layout(path, tiff)
        if _has_losses(tiff):
            raise pictures.lossy_mask(path, tiff.series[0].keyframe.compression.name)
        return layout.arranged(_array(tiff, layout))


def _has_losses(tiff: Any) -> bool:
    """Return whether the compression of an image may change its numbers."""
    page = tiff.series[0].keyframe
    if "2000" not in page.compression.name:
        return LOSSY.match(page.compression.name) is not None
    tiff.filehandle.seek(page.dataoffsets[0])
    wavelets = WAVELETS.search(tiff.filehandle.read(page.databytecounts[0]))
    return wavelets is None or wavelets[1] == b"\0"


def _image(path: Path, layout: Layout) -> NDArray[Any]:
    with _file(path) as tiff:
        colormap = tiff.series[0].keyframe.colormap
        return layout.as_image(layout.arranged(_array(tiff, layout)), colormap, path)


@contextmanager
def _file(path: Path) -> Iterator[Any]:
    """Open a file. Raises as ``opened`` for whatever is done with it."""
    tifffile = package("tifffile", path)
    if not file(path).stat().st_size:
        raise ValueError("it is empty")
    try:
        with tifffile.TiffFile(path, _multifile=False) as tiff:
            yield tiff
    except ValueError as fault:
        if "imagecodecs" not in str(fault):
            raise
        match = re.search(r"COMPRESSION\.(\w+)", str(fault))
        raise ConfigError(
            f"{path}: TIFF compression {match[1] if match else 'of this kind'} needs imagecodecs; "
            f"{with_extra('decoders')}"
        ) from fault


def _array(tiff: Any, layout: Layout) -> NDArray[Any]:
    """Return the stored array without the axes that the layout leaves out."""
    values: NDArray[Any] = tiff.series[0].asarray(maxworkers=1)
    return values.reshape(layout.shape)


def _layout(path: Path, tiff: Any) -> Layout:
    """Return the layout of the one image in a file. Raises DataError for others."""
    page = tiff.series[0].keyframe
    sizes = _sizes(path, tiff)
    dtype = np.dtype(tiff.series[0].dtype)
    if dtype.kind not in "biuf":
        raise DataError(f"{path} holds complex numbers, which are not read; save their magnitude")
    colours = _colours(path, page)
    page.decode  # noqa: B018 - raises for a missing decoder
    first_extra = page.samplesperpixel - len(page.extrasamples)
    alpha = [first_extra + k for k, use in enumerate(page.extrasamples) if use in ALPHA]
    return Layout(
        "".join(sizes),
        tuple(sizes.values()),
        dtype,
        int(np.max(page.bitspersample)),
        colours,
        tuple(alpha) if "S" in sizes else (),
        int(page.tags.valueof("Orientation", 1)),
    )


def _sizes(path: Path, tiff: Any) -> dict[str, int]:
    """Return the axes of the one image in a file, with their lengths. Raises DataError."""
    series = tiff.series[0]
    # of axes of length 1, rows and columns alone
    sizes = [(a, n) for a, n in zip(series.axes, series.shape, strict=True) if n > 1 or a in "YX"]
    axes = "".join(axis for axis, _ in sizes)
    pages = len(tiff.pages) - _copies(tiff)
    if pages > max(1, sum(p is not None for p in series.pages)) or not {*axes} <= {*"ZCSYX"}:
        raise DataError(
            f"{path} contains several pictures ({pages} pages, axes {axes} of "
            f"{' x '.join(str(n) for _, n in sizes)}), of which only one would be read; save each "
            "in its own file, or a volume with its axis Z named (ImageJ, OME-TIFF)"
        )
    if series.keyframe.subfiletype & COPY and (len(tiff.pages) > 1 or series.keyframe.subifds):
        raise DataError(f"{path} starts with a smaller copy of its picture; save the picture alone")
    if None in series.pages or not {"Y", "X"} <= {*axes} or {"C", "S"} <= {*axes}:
        raise DataError(
            f"{path} has axes {axes} or only some pages of an image; an image needs rows, columns "
            "and channels in one file, a volume also slices (Z)"
        )
    return dict(sizes)


def _colours(path: Path, page: Any) -> str:
    """Return a page's photometric interpretation. Raises DataError if it is not read."""
    colours = str(page.photometric.name)
    if colours == "YCBCR" and "JPEG" in page.compression.name:
        colours = "RGB"  # by the decoder
    inks = page.samplesperpixel != 4 or page.tags.valueof("InkSet", 1) != 1
    if colours not in COLOURS or (colours == "SEPARATED" and inks):
        raise DataError(
            f"{path} has colours of kind {colours}, which are not read; convert it to gray or RGB"
        )
    return colours


def _copies(tiff: Any) -> int:
    """Return the number of pages that are smaller copies or transparency masks."""
    return sum(bool(getattr(page, "subfiletype", 0) & COPY) for page in tiff.pages)


def _spacing(tiff: Any, count: int) -> tuple[float, ...]:
    """Return mm between pixels along the last ``count`` of z, y and x by the metadata of ImageJ or
    OME; none if unknown.
    """
    sizes: list[tuple[Any, str]] = []
    if tiff.is_imagej and "XResolution" in tiff.series[0].keyframe.tags:
        sizes = _imagej_sizes(tiff)
    elif tiff.is_ome:
        sizes = [
            (_ome(tiff).get(name), str(_ome(tiff).get(f"{name}Unit", "µm")))
            for name in ("PhysicalSizeZ", "PhysicalSizeY", "PhysicalSizeX")
        ]
    spacing = [float(size) * MM[unit] for size, unit in sizes[-count:] if size and unit in MM]
    return tuple(spacing) if len(spacing) == count and min(spacing) > 0 else ()


def _imagej_sizes(tiff: Any) -> list[tuple[Any, str]]:
    """Return a voxel's size along z, y and x with its unit, as ImageJ writes them."""
    metadata = tiff.imagej_metadata or {}
    resolution = tiff.series[0].keyframe.resolution
    steps = [metadata.get("spacing"), *(n and 1 / n for n in resolution[::-1])]
    return [(step, str(metadata.get("unit", ""))) for step in steps]


def _ome(tiff: Any) -> dict[str, Any]:
    """Return what OME's metadata say of the pixels of the first image."""
    images = package("tifffile", Path()).xml2dict(tiff.ome_metadata)["OME"]["Image"]
    pixels: dict[str, Any] = (images[0] if isinstance(images, list) else images)["Pixels"]
    return pixels


def _channels(tiff: Any) -> str:
    """Return the names of the channels by OME's metadata; none if unknown."""
    channels = _ome(tiff).get("Channel", ()) if tiff.is_ome else ()
    channels = channels if isinstance(channels, list) else [channels] * bool(channels)
    names = [str(channel.get("Name", "")) for channel in channels]
    return bounds.plain(", ".join(names), 80) if all(names) else ""


def _number(text: str) -> float:
    """Return the number of a text; NaN for other texts."""
    try:
        return float(text)
    except ValueError:
        return nan


def _notes(tiff: Any, layout: Layout) -> tuple[str, ...]:
    """Return a remark on everything that is dropped, turned, scaled or rounded."""
    page, copies = tiff.series[0].keyframe, _copies(tiff)
    gap = bounds.plain(str(page.tags.valueof("GDAL_NODATA", "")), 40)
    with np.errstate(over="ignore"):  # it may be no number of the pixels' type
        has_gaps = bool(gap) and bool((_array(tiff, layout) == _number(gap)).any())
    is_sparse = any(0 in part.databytecounts for part in tiff.series[0].pages)
    factors = GDAL_SCALE.findall(str(page.tags.valueof("GDAL_METADATA", "")))
    is_scaled = "cf" in (tiff.imagej_metadata or {}) or any(
        _number(text) != (role == "scale") for role, text in factors
    )
    remarks = {
        f"pixels of {gap} are gaps (GDAL_NODATA), but count as this number: fill them": has_gaps,
        "a scale of the values (ImageJ, GDAL) is not applied: they are as stored": is_scaled,
        f"{copies} smaller copies or masks in the file are not read": copies > 0,
        "parts of the picture are not in the file, and are read as one value": is_sparse,
        pictures.ALPHA: bool(layout.alpha),
        pictures.TURNED: layout.orientation > 1,
        WHITE: layout.colours == "MINISWHITE",
        f"values of {layout.bits} bits are scaled to 0 to 255": 1 < layout.bits < 8,
        ROUNDED: layout.dtype == np.float64,
        pictures.INKS: layout.colours == "SEPARATED",
        pictures.PROFILE: bool(page.iccprofile) and not pictures.is_srgb(page.iccprofile),
    }
    return tuple(note for note, applies in remarks.items() if applies)

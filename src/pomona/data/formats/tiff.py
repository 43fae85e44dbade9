"""TIFF of every kind, read by tifffile; by Pillow where the file's tags say that it reads it right.

Pillow opens many more TIFF than it reads right: planes of 16-bit colour become single bytes, 16-bit
inks are cut to 8 bits, low values that mean white are inverted in 8 bits and not in 16, and further
pages are not looked at.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pomona.core import files
from pomona.core.bounds import plain as printable
from pomona.core.errors import DataError
from pomona.data.array_file import file
from pomona.data.formats import pictures, tiff_tags
from pomona.data.formats.tiff_layout import Layout
from pomona.data.images.grid import UNORIENTED, Grid, volume
from pomona.data.images.image_file import ImageFile, decoding, plain
from pomona.data.images.packages import package

SUFFIXES = {".tif", ".tiff", ".tf8", ".btf"}
# tags by number, for Pillow
BITS, PHOTOMETRIC, DESCRIPTION, SAMPLES, PLANES, EXTRA, FORMAT = 258, 262, 270, 277, 284, 338, 339
COLORMAP = 320
# what Pillow reads right: the meaning of the samples, their number, bits and format
GRAY, RGB, PALETTE, INKS, YCBCR = 1, 2, 3, 5, 6
PILLOW_READS = {
    *((GRAY, 1, bits, form) for bits, form in ((8, 1), (16, 1), (16, 2), (32, 3))),
    *((colour, samples, 8, 1) for colour, samples in ((RGB, 3), (RGB, 4), (PALETTE, 1))),
    *((colour, samples, 8, 1) for colour, samples in ((INKS, 4), (YCBCR, 3))),
}


def opened(path: Path) -> ImageFile:
    """Open a file as an image (H, W, C), or as a volume (D, H, W, C) if its metadata (of ImageJ or
    OME) name an axis Z.

    Raises:
        DataError: not a TIFF, several images, or colours or numbers that are not read.
        ConfigError: tifffile, or for some kinds of compression imagecodecs, is not installed.
    """
    if pillow_reads(path):
        return pictures.opened(path)
    with _tiff(path) as stored:
        layout = tiff_tags.layout(path, stored)
    load = partial(_load, layout)
    shape = layout.stored_shape
    if layout.colours in {"PALETTE", "SEPARATED"}:
        shape = (*shape[:-1], 3)
    dtype = layout.shown_type
    if len(shape) == 4 and layout.spacing:
        grid = Grid.of(path, shape[2::-1], np.diag([*layout.spacing[::-1], 1]), oriented=False)
        transposed = (2, 1, 0, 3)
        return volume(
            grid, shape[3], dtype, lambda: load().transpose(transposed), notes=layout.notes
        )
    if len(shape) == 3 and dtype == np.uint8 and shape[2] in {1, 3}:
        return pictures.picture(path, shape, load, layout.notes)
    notes = (*layout.notes, *([UNORIENTED] if len(shape) == 4 else []))
    return replace(plain(path, shape, dtype, load), notes=notes)


def labels(path: Path) -> NDArray[Any]:
    """Return the stored numbers (*spatial, C), as they are: those of a palette, without inversion.

    Raises as ``opened``.
    """
    if pillow_reads(path):
        return pictures.labels(path)
    with _tiff(path) as stored:
        layout = tiff_tags.layout(path, stored)
        return layout.arranged(_array(stored))


def pillow_reads(path: Path) -> bool:
    """Return whether the tags of a file say that Pillow reads it right: one page of usual gray,
    colours, or inks.
    """
    try:
        with (
            decoding(path),
            files.opened(file(path)) as raw,
            Image.open(raw, "r", ["TIFF"]) as tiff,
        ):
            tags: Mapping[int, Any] = tiff.tag_v2  # type: ignore[attr-defined]
            bits = {*tags.get(BITS, (1,))}
            samples = int(tags.get(SAMPLES, 1))
            form = {*_several(tags.get(FORMAT, 1))}
            extra = {*_several(tags.get(EXTRA, ()))}
            kind = {(int(tags.get(PHOTOMETRIC, -1)), samples, b, f) for b in bits for f in form}
            return (
                kind <= PILLOW_READS
                and len(kind) == 1
                and extra <= tiff_tags.ALPHA
                and (samples == 4 and tags[PHOTOMETRIC] == RGB) == bool(extra)
                and max(tags.get(COLORMAP, (256,))) > 255
                and (int(tags.get(PLANES, 1)) == 1 or samples == 1)
                and not _names_more(str(tags.get(DESCRIPTION, "")), samples)
                and getattr(tiff, "n_frames", 1) == 1
            )
    except DataError:
        return False


def _several(value: Any) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, tuple) else (value,)


def _names_more(description: str, samples: int) -> bool:
    """Return whether a description, as programs for microscopes write it, names more than one
    image.
    """
    if description.startswith("ImageJ="):
        return re.search(r"^(images|channels|slices|frames)=(?!1$)", description, re.M) is not None
    if description.startswith("{"):  # tifffile's
        try:
            return len(json.loads(description)["shape"]) != 2 + (samples > 1)
        except (ValueError, KeyError, TypeError):
            return True
    return description.startswith("<")  # OME's XML, and others


def _tiff(path: Path) -> Any:
    tifffile = package("tifffile", path)
    with decoding(path):
        if not file(path).stat().st_size:
            raise ValueError("it is empty")
        return tifffile.TiffFile(path, _multifile=False)


def _load(layout: Layout) -> NDArray[Any]:
    """Read the values of an image, as ``Layout.shown`` gives them."""
    with _tiff(layout.path) as stored:
        colormap = stored.series[0].keyframe.colormap
        return np.ascontiguousarray(layout.shown(layout.arranged(_array(stored)), colormap))


def _array(stored: Any) -> NDArray[Any]:
    """Return the stored array without axes of length 1 other than rows and columns."""
    series = stored.series[0]
    try:
        values = series.asarray(maxworkers=1)
    except Exception as fault:
        path = Path(printable(str(stored.filehandle.path)))
        raise tiff_tags.undecoded(path, fault) from fault
    shaped: NDArray[Any] = values.reshape(tiff_tags.without_ones(series.axes, series.shape)[1])
    return shaped

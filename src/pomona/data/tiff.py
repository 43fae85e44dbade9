"""TIFF images that Pillow cannot read: 16-bit colour, floating point, any number of channels; read
by tifffile.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError
from pomona.data.array_file import file
from pomona.data.image_arrays import sample_type
from pomona.data.image_file import ImageFile, decoding, package, plain

SUFFIXES = {".tif", ".tiff"}


def opened(path: Path) -> ImageFile:
    """Open a single-page file as an image (H, W, C) from its header.

    Raises:
        DataError: not a TIFF, several pages, or a dtype that images do not have.
        ConfigError: tifffile is not installed.
    """
    tifffile = package("tifffile", path)
    with decoding(path), tifffile.TiffFile(file(path)) as tiff:
        shape, dtype = _form(tiff, path)
        return plain(path, shape, sample_type([dtype], path), partial(_values, path, shape))


def _form(tiff: Any, path: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    page = tiff.pages[0]
    if page.next if hasattr(page, "next") else len(tiff.pages) > 1:
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


def _values(path: Path, shape: tuple[int, ...]) -> NDArray[Any]:
    with package("tifffile", path).TiffFile(path) as tiff:
        page = tiff.pages[0]
        values = page.asarray(maxworkers=1)
        values = np.moveaxis(values, 0, -1) if page.axes == "SYX" else values
        return np.ascontiguousarray(values.reshape(shape)).astype(
            sample_type([page.dtype]), copy=False
        )

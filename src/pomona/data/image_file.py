"""An image or volume in a file: its form from the header, and its pixels when they are asked for.

Whatever a file promises is bounded before memory is taken, and each fault is one line that names the file.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core import bounds
from pomona.core.errors import ConfigError, DataError, PomonaError, with_extra
from pomona.data.image_arrays import DTYPES, plane_resized

MOST_VALUES = 64 * 2**20  # of one image or volume; a small file can promise what fills the memory

Size = tuple[int, int]  # width, height
Window = tuple[float, float]  # centre, width


@dataclass(frozen=True)
class ImageFile:
    """One image or volume, not decoded yet.

    Attributes:
        path: the file, or the folder of a series.
        shape: (H, W, C), or (D, H, W, C) of a volume.
        dtype: one of those of images that holds all values that the header allows.
        pixels: its values in this shape and dtype; of a picture of 8 bits with so many channels, at this size, of
            others with its own channels.
        picture: whether it has 8 bits a channel and gray may stand for colour.
        spacing: mm between the middles of voxels along (z, y, x) of a volume, where its header says so.
        padding: the value that a scanner's software has put outside of what was measured, where the header says so.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    pixels: Callable[[int, Size | None], NDArray[Any]]
    picture: bool = False
    spacing: tuple[float, ...] = ()
    padding: float | None = None

    def decoded(self, channels: int, size: Size | None = None, window: Window | None = None) -> NDArray[Any]:
        """The values, of the dtype of ``dtype_in``, at another size (images alone) where one is given.

        Raises:
            DataError: damaged pixels, values that are not finite numbers, or another number of channels.
        """
        if not self.picture and channels != self.shape[-1]:
            raise DataError(f"{self.path} has {self.shape[-1]} channels, others {channels}; give all the same")
        values = self.pixels(channels, size)
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise DataError(f"{self.path} holds NaN or infinite numbers; replace or remove it")
        return windowed(values, window)

    def dtype_in(self, window: Window | None) -> np.dtype[Any]:
        """The dtype of what ``decoded`` gives."""
        return self.dtype if window is None else np.dtype(np.uint8)


def windowed(values: NDArray[Any], window: Window | None) -> NDArray[Any]:
    """Numbers as uint8 by a window (DICOM's LINEAR_EXACT, PS3.3 C.11.2.1.3.2); 8 bits stay as they are.

    centre - width / 2 and less becomes 0, centre + width / 2 and more 255.
    """
    if window is None or values.dtype == np.uint8:
        return values
    centre, width = window
    share = (values.astype(np.float64) - (centre - width / 2)) / width
    eight: NDArray[Any] = np.rint(share.clip(0, 1) * 255).astype(np.uint8)
    return eight


def scaled_type(low: float, high: float, slope: float, shift: float) -> np.dtype[Any]:
    """The first dtype of images that holds slope * v + shift for all whole numbers v from low to high."""
    ends = (low * slope + shift, high * slope + shift)
    if float(slope).is_integer() and float(shift).is_integer():
        for dtype in DTYPES[:-1]:
            if np.iinfo(dtype).min <= min(ends) and max(ends) <= np.iinfo(dtype).max:
                return dtype
    return np.dtype(np.float32)


def scaled(values: NDArray[Any], slope: float, shift: float, dtype: np.dtype[Any], path: Path) -> NDArray[Any]:
    """Slope * v + shift in the dtype of ``scaled_type``. Raises DataError for whole numbers that it does not hold."""
    if values.dtype == dtype and (slope, shift) == (1, 0):
        return values
    wide = values.astype(np.float64) * slope + shift
    with np.errstate(over="ignore", invalid="ignore"):
        out = wide.astype(dtype)
    whole = values.dtype.kind in "iu" and slope.is_integer() and shift.is_integer()
    if whole and (out != wide).any():
        raise DataError(f"{path} holds whole numbers beyond its header, or beyond {dtype}; write it again")
    return out


def plain(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], load: Callable[[], NDArray[Any]]) -> ImageFile:
    """An image file whose values ``load`` gives in this shape and dtype. Raises DataError for sizes out of bounds."""
    within(path, shape)

    def pixels(_: int, size: Size | None) -> NDArray[Any]:
        with decoding(path):
            values = load()
            if values.shape != shape or values.dtype != dtype:
                raise DataError(f"{path} holds {values.dtype} {values.shape}, not what its header says; write it again")
            return values if size is None or len(shape) != 3 else plane_resized(values, size)

    return ImageFile(path, shape, dtype, pixels)


def within(path: Path, shape: tuple[int, ...]) -> None:
    """Raise DataError for an image without pixels, or with more than are read."""
    size = " x ".join(map(str, shape[:-1]))
    if min(shape) < 1:
        raise DataError(f"{path} has size {size} with {shape[-1]} channels, so no pixel; replace or remove it")
    if prod(shape) > MOST_VALUES:
        raise DataError(f"{path} has {size} pixels of {shape[-1]} channels, at most {MOST_VALUES} values are read")


@contextmanager
def decoding(path: Path) -> Iterator[None]:
    """Turn every fault of a decoder into one DataError that names the file; its remarks are passed over."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except PomonaError:
        raise
    except Exception as fault:  # decoders meet damaged files with errors of every kind
        reason = bounds.plain(str(fault), 120) or type(fault).__name__
        raise DataError(f"cannot read the image {path} ({reason}); replace or remove it") from fault


def package(name: str, path: Path) -> Any:
    """A package of the extra ``images``. Raises ConfigError if it is not there."""
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(f"{path} needs {name}; {with_extra('images')}") from None

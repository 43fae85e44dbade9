"""An image or volume in a file: its form from the header, and its values on request.

Each error is one line with the file.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core import bounds
from pomona.core.errors import DataError, PomonaError
from pomona.data.images.grid import UNORIENTED, Grid
from pomona.data.images.image_arrays import DTYPES, in_channels, plane_resized
from pomona.data.images.slice_stack import Slice

Size = tuple[int, int]  # width, height
Window = tuple[float, float]  # centre, width
# relations of values to what was measured, which are no units
RELATIVE_UNITS = ("", "LIN", "LOG", "DISP", "stored numbers", "US")


OBLIQUE = 25.0  # degrees: less is usual in axial scans
TILT = 0.2  # degrees: less is rounding
ROUNDED = "real numbers of 64 bits are rounded to 32"


class NoPixelsError(DataError):
    """A file of an image format that holds no image, as a report among DICOM slices."""


@dataclass(frozen=True)
class ImageFile:
    """An image or volume that has not been decoded yet.

    Attributes:
        path: the file, or the folder of a series.
        shape: (H, W, C), or (D, H, W, C) for a volume.
        dtype: the image dtype that holds all values the header allows.
        load: returns the values in this shape and dtype.
        picture: whether it has 8 bits per channel, so that gray can be converted to colour.
        grid: where the voxels of a volume lie, if the file has an affine or its format assumes one.
        unit: of the values, as far as the header names it ("HU", "BQML"); files of different units
            do not mix.
        step: between neighbouring values where the file scales its numbers, else 0.
        patient: identifier of the patient in the header, if any.
        plane: where an image of DICOM lies.
        traits: what else its header says that images of one data set share, by its name.
        reference: UID of the coordinates that positions are in, if the header has one.
        segments: number and name of each segment that the file of a mask describes.
        mask_fault: why class numbers in it would be misread, if it is a mask; empty if not.
        notes: remarks on what is not used, assumed or converted, without the file's name, which
            may be the same for many files.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    load: Callable[[], NDArray[Any]]
    picture: bool = False
    grid: Grid | None = None
    unit: str = ""
    step: float = 0.0
    patient: str = ""
    plane: Slice | None = None
    traits: tuple[tuple[str, str], ...] = ()
    reference: str = ""
    segments: tuple[tuple[int, str], ...] = ()
    mask_fault: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        within(self.path, self.shape)

    @property
    def spacing(self) -> tuple[float, ...]:
        """Mm between voxel centres along (z, y, x) of a volume, if known."""
        return self.grid.spacing if self.grid else ()

    def decoded(
        self, channels: int, size: Size | None = None, window: Window | None = None
    ) -> NDArray[Any]:
        """Return the values in the dtype of ``dtype_in``, resized if a size is given (images only).

        Raises:
            DataError: damaged pixels, values that are not finite, or a wrong number of channels.
        """
        if not self.picture and channels != self.shape[-1]:
            raise DataError(
                f"{self.path} has {self.shape[-1]} channels, others {channels}; give all the same"
            )
        values = self._values()
        if channels != self.shape[-1]:
            values = in_channels(values, channels)
        if size is not None and len(self.shape) == 3:
            values = plane_resized(values, size)
        if values.dtype == np.uint8 and not self.is_measured:
            return values
        return windowed(values, window)

    def _values(self) -> NDArray[Any]:
        """Return the values as stored. Raises DataError if they are damaged or not finite."""
        with decoding(self.path):
            values = self.load()
        if values.shape != self.shape or values.dtype != self.dtype:
            raise DataError(
                f"{self.path} holds {values.dtype} {values.shape}, not as in its header; write "
                "it again"
            )
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise DataError(f"{self.path} holds NaN or infinite numbers; replace or remove it")
        return values

    @property
    def is_measured(self) -> bool:
        """Whether the values have a physical unit, rather than a scale of their own."""
        return self.unit.split(",")[0] not in RELATIVE_UNITS

    def dtype_in(self, window: Window | None) -> np.dtype[Any]:
        """Return the dtype of the result of ``decoded``."""
        return self.dtype if window is None else np.dtype(np.uint8)


def windowed(values: NDArray[Any], window: Window | None) -> NDArray[Any]:
    """Apply a window, giving uint8 (DICOM's LINEAR_EXACT, PS3.3 C.11.2.1.3.2).

    Values up to centre - width / 2 become 0, and values from centre + width / 2 become 255.
    """
    if window is None:
        return values
    centre, width = window
    share = (values.astype(np.float64) - (centre - width / 2)) / width
    eight: NDArray[Any] = np.rint(share.clip(0, 1) * 255).astype(np.uint8)
    return eight


def in_mm(sides: Sequence[float]) -> str:
    """Return the sides of a pixel as ``0.5 x 0.5 mm``; nothing if unknown."""
    return " x ".join(f"{side:.3g}" for side in sides) + " mm" * bool(sides)


def scaled_type(low: float, high: float, slope: float, shift: float) -> np.dtype[Any]:
    """Return the first image dtype that holds slope * v + shift for all integers v from low to
    high.
    """
    limits = (low * slope + shift, high * slope + shift)
    if float(slope).is_integer() and float(shift).is_integer():
        for dtype in DTYPES[:-1]:
            if np.iinfo(dtype).min <= min(limits) and max(limits) <= np.iinfo(dtype).max:
                return dtype
    return np.dtype(np.float32)


def stored_type(stored: np.dtype[Any], slope: float = 1.0, shift: float = 0.0) -> np.dtype[Any]:
    """Return the first image dtype that holds slope * v + shift for all numbers v of a dtype."""
    if stored.kind == "f":
        return np.dtype(np.float32)
    limits = np.iinfo(stored)
    return scaled_type(float(limits.min), float(limits.max), slope, shift)


def scaled(
    values: NDArray[Any], slope: float, shift: float, dtype: np.dtype[Any], path: Path
) -> NDArray[Any]:
    """Return slope * v + shift in the dtype of ``scaled_type``.

    Raises DataError for integers out of its range.
    """
    if values.dtype == dtype and (slope, shift) == (1, 0):
        return values
    wide = values.astype(np.float64) * slope + shift
    with np.errstate(over="ignore", invalid="ignore"):
        converted = wide.astype(dtype)
    integers = values.dtype.kind in "iu" and slope.is_integer() and shift.is_integer()
    if integers and (converted != wide).any():
        raise DataError(
            f"{path} has whole numbers beyond the range of its header or of {dtype}; write it again"
        )
    return converted


def within(path: Path, shape: tuple[int, ...]) -> None:
    """Raise DataError for an image without pixels."""
    if min(shape) < 1:
        size = " x ".join(map(str, shape[:-1]))
        raise DataError(
            f"{path} has size {size} with {shape[-1]} channels, so it has no pixels; remove it"
        )


@contextmanager
def decoding(path: Path) -> Iterator[None]:
    """Turn all decoder errors into one DataError with the file, and suppress decoder warnings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except PomonaError:
        raise
    except MemoryError:
        raise DataError(
            f"{path} takes more memory than a reader process may have; make it smaller"
        ) from None
    except Exception as fault:  # decoders raise all kinds of errors for damaged files
        reason = bounds.plain(str(fault), 120) or type(fault).__name__
        raise DataError(f"cannot read the image {path} ({reason}); replace or remove it") from fault


def volume(
    grid: Grid,
    channels: int,
    dtype: np.dtype[Any],
    voxels: Callable[[], NDArray[Any]],
    **attributes: Any,
) -> ImageFile:
    """Create a file (D, H, W, C) of the voxels (i, j, k, C) that ``voxels`` returns on the grid's
    stored axes; ``attributes``: further ones of ``ImageFile``.
    """
    notes = [*attributes.pop("notes", ()), *([] if grid.oriented else [UNORIENTED])]
    if (angle := grid.angle) > OBLIQUE:
        notes.append(
            f"axes are up to {angle:.3g} degrees off those of the patient, and taken for the "
            "closest ones: resample oblique volumes, or keep all alike"
        )
    if (tilt := grid.skew) > TILT:
        notes.append(
            f"tilted by {tilt:.3g} degrees (gantry tilt, or a shear): slices are stacked at this "
            "angle, as stored; resample them to a right-angled block, or keep all scans alike"
        )
    return ImageFile(
        grid.path,
        (*grid.turned_shape, channels),
        dtype,
        lambda: np.ascontiguousarray(grid.turned(voxels())),
        grid=grid,
        notes=tuple(notes),
        **attributes,
    )

"""How the stored array of a TIFF becomes the array of an image: upright, channels last, colours and
polarity by its tags.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.data.images.image_arrays import sample_type
from pomona.data.images.image_file import scaled


@dataclass(frozen=True)
class Layout:
    """What the tags of a TIFF say about its one image or volume.

    Attributes:
        path: of the file.
        axes: of the stored array: Y and X, and Z, C (channels in planes or pages) and S (samples of
            a pixel), if it has them.
        shape: of the stored array.
        dtype: of the stored array.
        bits: of a sample.
        colours: tifffile's name of the photometric interpretation.
        alpha: samples of transparency.
        orientation: of the rows and columns, 1 to 8.
        ends: the ends of the values' range, where tags have it.
        spacing: mm between voxels along z, y, x, where the metadata have it.
        notes: remarks.
    """

    path: Path
    axes: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    bits: int
    colours: str
    alpha: tuple[int, ...] = ()
    orientation: int = 1
    ends: tuple[float, float] | None = None
    spacing: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of ``arranged``: (H, W, C) or (D, H, W, C)."""
        size = dict(zip(self.axes, self.shape, strict=True))
        rows, columns = (size["X"], size["Y"]) if self.orientation > 4 else (size["Y"], size["X"])
        channels = size.get("C", 1) * size.get("S", 1) - len(self.alpha)
        return (*([size["Z"]] if "Z" in size else []), rows, columns, channels)

    @property
    def shown_type(self) -> np.dtype[Any]:
        """The dtype of ``shown``."""
        if self.bits < 8 or self.colours == "PALETTE":
            return np.dtype(np.uint8)
        if self.dtype.kind in "iu" and self.dtype.itemsize > 2:
            return np.dtype(np.float32)
        return sample_type([self.dtype], self.path)

    def arranged(self, values: NDArray[Any]) -> NDArray[Any]:
        """Bring stored values into ``stored_shape``: upright, channels last, transparency left
        out.
        """
        axes = self.axes
        if not {"C", "S"} & {*axes}:
            values, axes = values[..., None], f"{axes}S"
        order = [axes.index(axis) for axis in "ZYXCS" if axis in axes]
        values = upright(values.transpose(order), self.orientation, "Z" in axes)
        if self.alpha:
            values = np.delete(values, self.alpha, axis=-1)
        return values.astype(np.uint8) if values.dtype == bool else values

    def shown(self, values: NDArray[Any], colormap: NDArray[Any] | None) -> NDArray[Any]:
        """Return arranged values as those of an image: colours for numbers of a palette or inks,
        one polarity, and 8 bits for fewer.
        """
        if self.colours == "PALETTE" and colormap is not None:
            # some programs write 8 bits into the 16 of a palette
            eight = colormap if colormap.max() < 256 else colormap >> 8
            return np.ascontiguousarray(
                np.moveaxis(eight.astype(np.uint8)[:, values[..., 0]], 0, -1)
            )
        if self.colours == "MINISWHITE":
            values = self._inverted(values)
        if self.bits < 8:
            values = (values * (255 // (2**self.bits - 1))).astype(np.uint8)
        if self.colours == "SEPARATED":
            most = np.uint64(2**self.bits - 1)
            light = most - values.astype(np.uint64)
            rgb = (light[..., :3] * light[..., 3:] + most // np.uint64(2)) // most
            values = rgb.astype(values.dtype)
        if self.dtype.kind in "iu":
            return scaled(values, 1.0, 0.0, self.shown_type, self.path)
        with np.errstate(over="ignore"):  # infinite numbers are refused later
            return np.ascontiguousarray(values, self.shown_type)

    def _inverted(self, values: NDArray[Any]) -> NDArray[Any]:
        if values.dtype.kind == "f":
            low, high = self.ends or (0, 0)
            return (low + high) - values
        turned = ~values
        return turned & (2**self.bits - 1) if values.dtype.kind == "u" else turned


def upright(values: NDArray[Any], orientation: int, volume: bool = False) -> NDArray[Any]:
    """Turn rows and columns as the tag Orientation (1 to 8) says, as viewers do."""
    rows = int(volume)
    if orientation > 4:
        values = values.swapaxes(rows, rows + 1)
    # the first row of the tag's image is at the bottom, its first column at the right
    bottom, right = orientation in {3, 4, 7, 8}, orientation in {2, 3, 6, 7}
    values = np.flip(values, rows) if bottom else values
    return np.flip(values, rows + 1) if right else values

"""Volumes that nibabel reads: NIfTI (.nii, .hdr with .img; packed or not), Analyze 7.5, and MGH of
FreeSurfer.
"""

import logging
from functools import partial
from math import isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError
from pomona.data.array_file import file
from pomona.data.images.grid import Grid
from pomona.data.images.image_file import ImageFile, decoding, scaled, scaled_type, within
from pomona.data.images.packages import package
from pomona.data.images.volume import volume

PACKED = (".gz", ".bz2")
SUFFIXES = (".nii", ".img", ".hdr", ".mgh")
ENDS = (*SUFFIXES, *(s + p for s in SUFFIXES for p in PACKED), ".mgz")


def opened(path: Path) -> ImageFile:
    """Open a volume from its header; C is the product of the axes beyond the third.

    Raises:
        DataError: not such a volume, or numbers that are not read.
        ConfigError: nibabel is not installed.
    """
    image = _header(path)
    stored = image.get_data_dtype()
    slope, shift = (float(v) for v in (image.dataobj.slope, image.dataobj.inter))
    if stored.kind not in "iuf" or not (isfinite(slope) and isfinite(shift)):
        raise DataError(
            f"{path} holds {stored} times {slope} plus {shift}; store whole or real numbers"
        )
    dtype = np.dtype(np.float32)
    if stored.kind != "f":
        limits = np.iinfo(stored)
        dtype = scaled_type(float(limits.min), float(limits.max), slope, shift)
    i, j, k, channels = _axes(path, tuple(map(int, image.shape)))
    affine, notes = _affine(image)
    grid = Grid.of(path, (i, j, k), affine, _oriented(image))
    read = partial(_values, path, (i, j, k, channels), slope, shift, dtype)
    step = 0.0 if stored.kind == "f" or (slope, shift) == (1, 0) else abs(slope)
    return volume(grid, channels, dtype, read, step=step, notes=notes)


def _header(path: Path) -> Any:
    """Open a file with nibabel, without its values."""
    nibabel = package("nibabel", path)
    nibabel.imageglobals.logger.setLevel(logging.CRITICAL + 1)  # it would print warnings
    file(path)
    kinds = (nibabel.Nifti1Pair, nibabel.AnalyzeImage, nibabel.MGHImage)  # and their subclasses
    with decoding(path):
        image = nibabel.load(path)
        if not isinstance(image, kinds):
            raise DataError(
                f"cannot read the image {path} (it is not a NIfTI, Analyze or MGH file); replace "
                "or remove it"
            )
        for role in {"header", "image"} & image.file_map.keys():  # of a pair
            file(Path(image.file_map[role].filename or path))
        _require_whole(path, image)
    return image


def _require_whole(path: Path, image: Any) -> None:
    """Raise DataError for a file, if not packed, that ends before its last voxel."""
    values = Path(image.file_map["image"].filename)
    needed = (
        int(image.dataobj.offset) + prod(map(int, image.shape)) * image.get_data_dtype().itemsize
    )
    if not values.name.lower().endswith((*PACKED, ".mgz")) and values.stat().st_size < needed:
        raise DataError(
            f"{path} promises {needed} bytes but has {values.stat().st_size}; fetch it again"
        )


def _affine(image: Any) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return the affine in mm, and remarks."""
    header, affine, notes = image.header, np.array(image.affine), list[str]()
    if "qform_code" not in header:
        return affine, ()
    unit = header.get_xyzt_units()[0]
    affine[:3] *= {"meter": 1000, "micron": 0.001}.get(unit, 1)
    if min(header["qform_code"], header["sform_code"]) > 0:
        corner = [*image.shape[:3], 1]
        apart = np.abs((header.get_sform() - header.get_qform()) @ corner)[:3].max()
        if apart > 0.1 * min(header.get_zooms()[:3]):
            notes.append(
                f"sform and qform of the header differ by up to {apart:.3g} {unit}: the sform is "
                "taken, other programs may take the qform"
            )
    return affine, tuple(notes)


def _oriented(image: Any) -> bool:
    """Return whether a header says where its voxels lie, and nibabel does not assume it."""
    header = image.header
    if "goodRASFlag" in header:  # MGH
        return bool(header["goodRASFlag"] > 0)
    if "qform_code" in header:
        return bool(header["qform_code"] > 0 or header["sform_code"] > 0)
    return False  # Analyze


def _axes(path: Path, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Return x, y, z and the channels of a file's shape.

    Raises DataError unless it is a volume's.
    """
    channels = prod(shape[3:])
    if (
        len(shape) not in {3, 4, 5}
        or (len(shape) == 5 and shape[3] != 1)
        or (shape[:3] and shape[2:3] == (1,))
    ):
        raise DataError(
            f"{path} has shape {shape}; a volume has (x, y, z): save a flat image as PNG or TIFF"
        )
    within(path, (*shape[:3], channels))
    return (*shape[:3], channels)  # type: ignore[return-value]


def _values(
    path: Path, shape: tuple[int, ...], slope: float, shift: float, dtype: np.dtype[Any]
) -> NDArray[Any]:
    raw = np.asanyarray(_header(path).dataobj.get_unscaled()).reshape(shape)
    return scaled(raw, slope, shift, dtype, path)

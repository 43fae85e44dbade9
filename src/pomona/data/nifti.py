"""Volumes in NIfTI files (.nii, .nii.gz), read by nibabel."""

import logging
from dataclasses import replace
from functools import partial
from math import isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError
from pomona.data.array_file import MOST_PACKED, file
from pomona.data.image_file import ImageFile, decoding, package, plain, scaled, scaled_type, within


def is_nifti(path: Path) -> bool:
    """Return whether a file name is that of a NIfTI file."""
    return path.name.lower().endswith((".nii", ".nii.gz"))


def opened(path: Path) -> ImageFile:
    """Open a volume (D, H, W, C) from its header, as z, y, x of the patient, along the closest
    header axes.

    Axes are permuted and flipped (never interpolated) so that x increases to the right, y to the
    front and z to the head (RAS+), whatever their stored order. C is the fourth or fifth axis of
    the file: 1 for gray volumes.

    Raises:
        DataError: not a NIfTI volume, or a header that promises more than the file contains or than
            the limit.
        ConfigError: nibabel is not installed.
    """
    image = _header(path)
    stored = image.header.get_data_dtype()
    slope, shift = (float(v) for v in (image.dataobj.slope, image.dataobj.inter))
    if stored.kind not in "iuf" or not (isfinite(slope) and isfinite(shift)):
        raise DataError(
            f"{path} holds {stored} times {slope} plus {shift}; store whole or real numbers"
        )
    dtype = np.dtype(np.float32)
    if stored.kind != "f":
        limits = np.iinfo(stored)
        dtype = scaled_type(float(limits.min), float(limits.max), slope, shift)
    shape = _axes(path, tuple(map(int, image.shape)))
    order = package("nibabel.orientations", path).io_orientation(image.affine)
    if np.isnan(order).any():
        raise DataError(
            f"{path}: its header does not say which axis is which; write it again with its affine"
        )
    sides = tuple(shape[int(np.flatnonzero(order[:, 0] == axis)[0])] for axis in (2, 1, 0))
    zooms = [
        float(image.header.get_zooms()[int(np.flatnonzero(order[:, 0] == axis)[0])])
        for axis in (2, 1, 0)
    ]
    made = plain(
        path, (*sides, shape[3]), dtype, partial(_values, path, shape, slope, shift, dtype)
    )
    return replace(made, spacing=tuple(zooms))


def _header(path: Path) -> Any:
    """Open a file with nibabel, without its values."""
    nibabel = package("nibabel", path)
    nibabel.imageglobals.logger.setLevel(logging.CRITICAL + 1)  # it would print warnings
    size = file(path).stat().st_size
    with decoding(path):
        image = nibabel.load(path)
        if not isinstance(image, nibabel.Nifti1Image):
            raise DataError(
                f"cannot read the image {path} (it is not a NIfTI file); replace or remove it"
            )
        promised = (
            int(image.dataobj.offset)
            + prod(map(int, image.shape)) * image.header.get_data_dtype().itemsize
        )
        room = size * MOST_PACKED if path.suffix.lower() == ".gz" else size
        if promised > room:
            raise DataError(
                f"{path} promises {promised} bytes but has room for {room}; fetch it again"
            )
    return image


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
    image = _header(path)
    raw = np.asanyarray(image.dataobj.get_unscaled()).reshape(shape)
    orientations = package("nibabel.orientations", path)
    turned = orientations.apply_orientation(raw, orientations.io_orientation(image.affine))
    return scaled(np.ascontiguousarray(turned.transpose(2, 1, 0, 3)), slope, shift, dtype, path)

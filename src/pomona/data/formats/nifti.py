"""Volumes that nibabel reads: NIfTI (.nii, .hdr with .img; packed or not), Analyze 7.5, and MGH of
FreeSurfer.
"""

from functools import partial
from math import isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError
from pomona.data.array_file import file
from pomona.data.images import package
from pomona.data.images.grid import Grid
from pomona.data.images.image_file import ROUNDED, ImageFile, scaled, stored_type, volume

PACKED = (".gz", ".bz2")
IN_MM = {"meter": 1000, "micron": 0.001}


def opened(path: Path) -> ImageFile:
    """Open a volume from its header; C is the product of the axes beyond the third.

    Raises:
        DataError: not such a volume, or numbers that are not read.
        ConfigError: nibabel is not installed.
    """
    image = _image(path)
    stored, shape = image.get_data_dtype(), tuple(map(int, image.shape))
    slope, shift = float(image.dataobj.slope), float(image.dataobj.inter)
    if stored.kind not in "iuf" or not (isfinite(slope) and isfinite(shift)):
        raise DataError(
            f"{path} holds {stored} times {slope} plus {shift}; store whole or real numbers"
        )
    if len(shape) not in {3, 4, 5} or shape[2] == 1 or (len(shape) == 5 and 1 not in shape[3:]):
        raise DataError(
            f"{path} has shape {shape}; a volume has (x, y, z): save a flat image as PNG or TIFF"
        )
    shape = (*shape[:3], prod(shape[3:]))
    dtype = stored_type(stored, slope, shift)
    step = 0.0 if stored.kind == "f" or (slope, shift) == (1, 0) else abs(slope)
    affine, oriented, notes = _affine(image)
    notes += [ROUNDED] if stored == np.float64 else []
    notes += [f"the {shape[3]} volumes along the fourth axis are read as channels"] * (shape[3] > 1)
    grid = Grid.from_affine(path, shape[:3], affine, oriented)
    read = partial(_values, path, shape, slope, shift, dtype)
    return volume(grid, shape[3], dtype, read, step=step, notes=notes)


def _image(path: Path) -> Any:
    """Open a file with nibabel, without its values. Raises DataError, also for one that is not
    packed and ends before its last voxel.
    """
    nibabel = package("nibabel", path)
    file(path)
    image = nibabel.load(path)
    # and their subclasses
    if not isinstance(image, nibabel.Nifti1Pair | nibabel.AnalyzeImage | nibabel.MGHImage):
        raise ValueError("it is not a NIfTI, Analyze or MGH file")
    for holder in image.file_map.values():  # two files of a pair
        if holder.filename and Path(holder.filename).suffix != ".mat":
            file(Path(holder.filename))
    if "header" not in image.file_map and not image.dataobj.offset:
        raise DataError(f"{path} has no vox_offset, where voxels begin behind its header; add it")
    values = Path(image.file_map["image"].filename)
    size = prod(map(int, image.shape)) * image.get_data_dtype().itemsize
    needed, stored = int(image.dataobj.offset) + size, values.stat().st_size
    if not values.name.lower().endswith((*PACKED, ".mgz")) and stored < needed:
        raise DataError(f"{path} promises {needed} bytes but has {stored}; fetch it again")
    return image


def _affine(image: Any) -> tuple[NDArray[np.float64], bool, list[str]]:
    """Return the affine in mm, whether the header has one and nibabel does not assume it, and
    remarks.
    """
    header, affine = image.header, np.array(image.affine)
    if "qform_code" not in header:  # MGH; Analyze has neither
        return affine, "goodRASFlag" in header and bool(header["goodRASFlag"] > 0), []
    unit = header.get_xyzt_units()[0]
    affine[:3] *= IN_MM.get(unit, 1)
    codes, notes = (int(header["qform_code"]), int(header["sform_code"])), list[str]()
    sides = np.linalg.norm(image.affine[:3, :3], axis=0)
    if not np.allclose(header.get_zooms()[:3], sides, rtol=0.01):
        notes.append("pixdim of the header gives other voxel sizes than its affine, which is used")
    if min(codes) > 0:
        corner = [*image.shape[:3], 1]
        apart = np.abs((header.get_sform() - header.get_qform()) @ corner)[:3].max()
        if apart > 0.1 * min(header.get_zooms()[:3]):
            distance = apart * IN_MM.get(unit, 1)
            notes.append(
                f"sform and qform of the header differ by up to {distance:.3g} mm: the sform is "
                "used; other programs may use the qform"
            )
    return affine, max(codes) > 0, notes


def _values(
    path: Path, shape: tuple[int, ...], slope: float, shift: float, dtype: np.dtype[Any]
) -> NDArray[Any]:
    raw = np.asanyarray(_image(path).dataobj.get_unscaled()).reshape(shape)
    return scaled(raw, slope, shift, dtype, path)

"""Predicted masks in files, on the grids of the files that they answer."""

import gzip
import os
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError
from pomona.core.files import publish, writing
from pomona.data.images import package
from pomona.data.images.grid import Grid
from pomona.data.images.image_arrays import nearest

NIFTI = (".nii.gz", ".nii")
RIGHT_ANGLED = 0.005  # degrees: a qform cannot store a grid whose axes are off by more


class PredictedMask(NamedTuple):
    """The answer to one sample.

    Attributes:
        source: the file of the sample.
        classes: class numbers (*sides) uint8, of a volume as z, y, x of the patient.
        grid: of a volume in its file.
        sides: rows and columns of an image in its file.
    """

    source: Path
    classes: NDArray[np.uint8]
    grid: Grid | None = None
    sides: tuple[int, ...] = ()


def write(path: Path, masks: Sequence[PredictedMask]) -> str:
    """Write masks, and return what was written.

    A ``.nii`` or ``.nii.gz`` file holds the mask of one volume, voxel for voxel on the volume's own
    grid; a folder (a name without suffix) one such file a volume, and a PNG of its own size an
    image; an ``.npz`` archive all masks as an array ``masks`` (n, *sides), and of volumes
    ``affines`` (n, 4, 4) from their indices (z, y, x) to mm (right, front, head).

    Raises:
        DataError: masks that do not fit into such a file.
        StorageError: it cannot be written.
    """
    name = path.name.lower()
    if name.endswith(".npz"):
        with writing(path):
            publish(path, [_archive(masks)])
        return f"masks of {len(masks)} samples, in the order of the answers: {path}"
    if name.endswith(NIFTI):
        if len(masks) != 1 or masks[0].grid is None:
            raise DataError(
                f"{path} takes the mask of one volume from a file, but there are {len(masks)} "
                "samples; name a folder, or an .npz file"
            )
        with writing(path):
            publish(path, [_nifti(masks[0], name.endswith(".gz"))])
        return f"mask on the grid of {masks[0].source}: {path}"
    if path.suffix and not path.is_dir():
        raise DataError(f"{path}: masks are written to .nii.gz, .npz, or a folder; name one")
    _folder(path, masks)
    return f"{len(masks)} masks, each on the grid of its input: {path}"


def _folder(path: Path, masks: Sequence[PredictedMask]) -> None:
    """Write each mask into a file with its source's name. Raises DataError if two have one name."""
    content = {}
    for mask in masks:
        if mask.grid is None and len(mask.sides) != 2:
            raise DataError(
                f"{mask.source} holds arrays, so its masks have no grid; write them to an .npz file"
            )
        name = f"{_stem(mask.source)}{'.png' if mask.grid is None else NIFTI[0]}"
        if name in content:
            raise DataError(f"{path}: two inputs would give {name}; predict them one after another")
        content[name] = _png(mask) if mask.grid is None else _nifti(mask, packed=True)
    with writing(path):
        for name, data in content.items():
            publish(path / name, [data])


def _stem(source: Path) -> str:
    """Return the name of a file without the suffixes of images and packers."""
    name = Path(os.path.abspath(source)).name  # noqa: PTH100 - links keep their names
    for end in (".gz", ".bz2"):
        name = name.removesuffix(end)
    return name if source.is_dir() else Path(name).stem


def _archive(masks: Sequence[PredictedMask]) -> bytes:
    buffer = BytesIO()
    arrays: dict[str, Any] = {"masks": np.stack([mask.classes for mask in masks])}
    grids = [mask.grid for mask in masks if mask.grid is not None]
    if len(grids) == len(masks):
        arrays["affines"] = np.stack([grid.turned_matrix for grid in grids])
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def _nifti(mask: PredictedMask, packed: bool) -> bytes:
    """Return a NIfTI file of a mask on the stored axes of its volume."""
    grid = mask.grid
    assert grid is not None
    nibabel = package("nibabel", mask.source)
    image = nibabel.Nifti1Image(
        np.ascontiguousarray(grid.stored(mask.classes)), grid.matrix if grid.oriented else None
    )
    header = image.header
    header.set_xyzt_units("mm")
    header.set_intent("label")
    if grid.oriented:
        image.set_sform(grid.matrix, 1)
        image.set_qform(grid.matrix, int(grid.skew < RIGHT_ANGLED))
    else:
        header.set_zooms(np.linalg.norm(grid.matrix[:3, :3], axis=0))
    data: bytes = image.to_bytes()
    return gzip.compress(data, mtime=0) if packed else data


def _png(mask: PredictedMask) -> bytes:
    """Return a PNG of class numbers, of the size of its image."""
    from PIL import Image

    rows, columns = mask.sides
    buffer = BytesIO()
    Image.fromarray(nearest(mask.classes, (columns, rows))).save(buffer, "PNG")
    return buffer.getvalue()

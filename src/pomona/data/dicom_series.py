"""A volume from a folder with the files of one DICOM series, ordered by position in the patient."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError
from pomona.data.array_file import reading
from pomona.data.dicom import SUFFIXES, DicomHeader, header
from pomona.data.image_arrays import sample_type
from pomona.data.image_file import ImageFile, plain

MOST_FILES = 10_000
GAP = 1.5  # a gap of more than this many usual slice distances means that a slice is missing


def opened(folder: Path) -> ImageFile:
    """Open a folder as a volume (D, H, W, C) from its files' headers.

    Slices are sorted by ImagePositionPatient along the normal of their plane (from feet to head,
    for axial slices), or by InstanceNumber if there are no positions.

    Raises:
        DataError: no DICOM files, several series, slices of different form, or missing or duplicate
            slices according to their distances; the files are named.
        ConfigError: pydicom is not installed.
    """
    paths = _files(folder)
    slices = [header(path) for path in paths]
    first = slices[0]
    for one in slices:
        for what, own, other in (
            ("series", one.series, first.series),
            ("size", one.image.shape, first.image.shape),
            (
                "orientation",
                np.round(one.orientation or (), 3).tolist(),
                np.round(first.orientation or (), 3).tolist(),
            ),
        ):
            if own != other:
                raise DataError(
                    f"{folder}: {one.image.path.name} differs from {first.image.path.name} in "
                    f"{what}; put each series into its own folder"
                )
    ordered, step = _ordered(folder, slices)
    dtype = sample_type(one.image.dtype for one in ordered)
    shape = (len(ordered), *first.image.shape)
    names = tuple(one.image.path.name for one in ordered)  # all headers would need much memory
    made = plain(folder, shape, dtype, partial(_values, folder, names, shape, dtype))
    spacing = (step, *first.image.spacing) if step and first.image.spacing else ()
    return replace(made, spacing=spacing, padding=first.image.padding)


def _files(folder: Path) -> list[Path]:
    with reading(folder):
        named = [path for path in folder.iterdir() if path.suffix.lower() in {*SUFFIXES, ""}]
        found = sorted(
            path
            for path in named
            if path.is_file() and path.name[0] != "." and path.name != "DICOMDIR"
        )
    if not found or len(found) > MOST_FILES:
        raise DataError(
            f"{folder} holds {len(found)} DICOM files; a series has from 1 to {MOST_FILES}"
        )
    return found


def _ordered(folder: Path, slices: Sequence[DicomHeader]) -> tuple[list[DicomHeader], float]:
    """Return the slices in order and their distance in mm, or 0.

    Raises DataError for missing or duplicate slices.
    """
    orientation = slices[0].orientation
    if orientation is not None and all(one.position is not None for one in slices):
        normal = np.cross(orientation[:3], orientation[3:])
        places = [float(np.dot(normal, one.position or ())) for one in slices]
        unit = "mm"
    elif all(one.number is not None for one in slices):
        places, unit = [float(one.number or 0) for one in slices], "by InstanceNumber"
    else:
        raise DataError(
            f"{folder}: slices without ImagePositionPatient and InstanceNumber have no order; add "
            "one"
        )
    order = sorted(range(len(slices)), key=places.__getitem__)
    steps = [
        (places[b] - places[a], slices[a].image.path.name, slices[b].image.path.name)
        for a, b in pairwise(order)
    ]
    usual = float(np.median([step for step, _, _ in steps])) if steps else 0.0
    usual = 1.0 if unit != "mm" else usual
    for step, before, after in steps:
        if step <= 1e-3 * max(usual, 1e-3):
            raise DataError(
                f"{folder}: {before} and {after} are at the same place; keep one of them"
            )
        if step > GAP * usual:
            raise DataError(
                f"{folder}: slices are missing between {before} and {after}: {step:g} {unit}, "
                f"elsewhere {usual:g}; fetch the series again"
            )
    return [slices[k] for k in order], usual if unit == "mm" else 0.0


def _values(
    folder: Path, names: Sequence[str], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    out = np.empty(shape, dtype)
    for plane, name in zip(out, names, strict=True):
        plane[...] = header(folder / name).image.decoded(shape[-1])
    return out

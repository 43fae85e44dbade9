"""Slices as a volume: their order and grid, and everything that keeps them from being a block."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError, listed
from pomona.data.images.grid import LPS_TO_RAS, Grid

GAP = 1.5  # a gap of more than this many median slice distances means that a slice is missing
UNEVEN = 0.02  # of the median distance: more is not rounding
# elements that all slices of a volume share
SHARED = (
    "EchoTime",
    "EffectiveEchoTime",
    "TemporalPositionIdentifier",
    "TemporalPositionIndex",
    "DiffusionBValue",
)
SHIFT = 0.25  # of a pixel: a slice further from the line of the others is shifted against them
ROUNDING = 2e-3  # of the largest number of a spacing or a direction


@dataclass(frozen=True)
class Slice:
    """Where a slice lies.

    Attributes:
        name: of the file, or of the frame in it.
        size: rows and columns.
        position: of the centre of its first pixel, in DICOM's coordinates (left, back, head).
        orientation: directions of a row and of a column.
        spacing: mm between rows, and between columns.
        thickness: mm, used where there is one slice alone.
        number: by which slices without positions are ordered.
        series: UID of its series.
        instance: UID of its file.
        localizer: whether it is an overview that shows where the slices lie.
        attributes: what tells slices at one position apart, as echoes and time points.

    A position, orientation or spacing that the header does not have is empty.
    """

    name: str
    size: tuple[int, ...]
    position: tuple[float, ...]
    orientation: tuple[float, ...]
    spacing: tuple[float, ...]
    thickness: float
    number: int | None
    series: str
    instance: str
    localizer: bool
    attributes: dict[str, str]


class Block(NamedTuple):
    """Slices as a volume.

    Attributes:
        order: of the slices, from the foot of the stack on.
        grid: whose stored axes are columns, rows and slices.
        notes: remarks.
    """

    order: list[int]
    grid: Grid
    notes: tuple[str, ...]


def block(path: Path, slices: Sequence[Slice]) -> Block:
    """Return the block that slices of one series form.

    Raises:
        DataError: several series, slices of different form, at one position or shifted against each
            other, missing slices, or no order.
    """
    used = [k for k, plane in enumerate(slices) if not plane.localizer] or [*range(len(slices))]
    notes = []
    if len(used) < len(slices):
        overviews = [plane.name for plane in slices if plane.localizer]
        notes.append(f"{len(overviews)} localizers are left out ({listed(overviews, 2)})")
    planes = [slices[k] for k in used]
    _require_alike(path, planes)
    placed = all(plane.position and plane.orientation for plane in planes)
    sort_keys = _sort_keys(path, planes, placed)
    order = np.argsort(sort_keys, kind="stable")
    ordered = [planes[k] for k in order]
    notes += _checked_distances(path, ordered, np.diff(sort_keys[order]), placed)
    notes += _several_volumes(planes)
    if not ordered[0].spacing:
        notes.append("PixelSpacing is missing; 1 mm is assumed")
    return Block(np.take(used, order).tolist(), _grid(path, ordered, placed), tuple(notes))


def _several_volumes(slices: Sequence[Slice]) -> list[str]:
    """Return a remark on slices that differ in what a volume has once."""
    names = [n for n in SHARED if len({plane.attributes.get(n) for plane in slices}) > 1]
    return [f"slices differ in {listed(names)}: they may be of several volumes"] * bool(names)


def plane_affine(plane: Slice) -> NDArray[np.float64]:
    """Return the affine (4, 4) from columns, rows and layers of a slice to mm in DICOM's
    coordinates, with the next layer at its thickness.
    """
    row_direction, column_direction = np.reshape(plane.orientation or (1, 0, 0, 0, 1, 0), (2, 3))
    between_rows, between_columns = plane.spacing or (1.0, 1.0)
    affine = np.eye(4)
    affine[:3, 0] = row_direction * between_columns
    affine[:3, 1] = column_direction * between_rows
    affine[:3, 2] = np.cross(row_direction, column_direction) * (plane.thickness or 1.0)
    affine[:3, 3] = plane.position or (0, 0, 0)
    return affine


def _require_alike(path: Path, slices: Sequence[Slice]) -> None:
    """Raise DataError unless all slices are of one series, size, orientation and spacing."""
    first, series = slices[0], len({plane.series for plane in slices})
    for name in ("series", "size", "orientation", "spacing"):
        for plane in slices:
            values, expected = getattr(plane, name), getattr(first, name)
            if _differs(values, expected):
                raise DataError(
                    f"{path}: {plane.name} differs from {first.name} in {name} ({values} and "
                    f"{expected}; {series} series); put each series into its own folder"
                )


def _differs(values: Any, expected: Any) -> bool:
    """Return whether numbers differ by more than rounding, or texts at all."""
    if values == expected or isinstance(values, str) or len(values) != len(expected):
        return bool(values != expected)
    return bool(np.abs(np.subtract(values, expected)).max() > ROUNDING * np.abs(expected).max())


def _sort_keys(path: Path, slices: Sequence[Slice], placed: bool) -> NDArray[np.float64]:
    """Return the position of each slice along the normal of their plane, or its number.

    Raises DataError for slices without both.
    """
    if placed:
        normal = np.cross(slices[0].orientation[:3], slices[0].orientation[3:])
        return np.array([np.dot(plane.position, normal) for plane in slices])
    numbers = [plane.number for plane in slices]
    if None in numbers and len(slices) > 1:
        raise DataError(
            f"{path}: slices without ImagePositionPatient and InstanceNumber have no order; add one"
        )
    return np.array([number or 0 for number in numbers], np.float64)


def _checked_distances(
    path: Path, ordered: Sequence[Slice], steps: NDArray[Any], placed: bool
) -> list[str]:
    """Return a remark on uneven distances. Raises DataError for slices at one position, and for
    gaps.
    """
    median_distance = float(np.median(steps)) if placed and len(steps) else 1.0
    same_position = np.flatnonzero(steps <= 1e-3 * max(np.max(steps, initial=0), 1e-3))
    gaps = np.flatnonzero(steps > GAP * median_distance)
    for index in (*same_position, *gaps):
        lower, upper = ordered[index : index + 2]
        if not len(same_position):
            raise DataError(
                f"{path}: slices are missing between {lower.name} and {upper.name}: distance "
                f"{steps[index]:.4g}, elsewhere {median_distance:.4g} (mm, or InstanceNumber); "
                "fetch the series again, or resample it"
            )
        differences = [
            f"{name} {value} and {upper.attributes.get(name)}"
            for name, value in lower.attributes.items()
            if value != upper.attributes.get(name)
        ]
        raise DataError(
            f"{path}: {lower.name} and {upper.name} are at the same position and differ in "
            f"{listed(differences, 3) or 'nothing'} ({len(ordered)} slices at "
            f"{len(ordered) - len(same_position)} positions); keep one of them, or put each volume "
            "(echo, time point) into its own folder"
        )
    if not placed or np.abs(steps - median_distance).max(initial=0) <= max(
        UNEVEN * median_distance, 0.01
    ):
        return []
    return [
        f"slice distances from {steps.min():.4g} to {steps.max():.4g} mm; they are taken as "
        f"{steps.mean():.4g} mm, nothing is resampled here"
    ]


def _grid(path: Path, ordered: Sequence[Slice], placed: bool) -> Grid:
    """Return the grid of slices in order.

    Raises DataError if a slice does not lie on the line through the first and the last.
    """
    first, affine = ordered[0], plane_affine(ordered[0])
    shape = (*first.size[::-1], len(ordered))
    if not placed:
        affine = plane_affine(replace(first, position=(), orientation=()))
        return Grid.from_affine(path, shape, affine, oriented=False)
    if len(ordered) > 1:
        offsets = np.array([plane.position for plane in ordered]) - first.position
        line = offsets[-1] / np.linalg.norm(offsets[-1])
        distance_from_line = np.linalg.norm(offsets - np.outer(offsets @ line, line), axis=1)
        if distance_from_line.max() > max(SHIFT * min(first.spacing or (1.0,)), 0.05):
            raise DataError(
                f"{path}: {ordered[distance_from_line.argmax()].name} is shifted by "
                f"{distance_from_line.max():.3g} mm off the line of the other slices; resample them"
            )
        affine[:3, 2] = offsets[-1] / (len(ordered) - 1)
    return Grid.from_affine(path, shape, LPS_TO_RAS @ affine)

"""Slices as a volume: their order and grid, and everything that keeps them from being a block."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError, listed
from pomona.data.images.grid import Grid

GAP = 1.5  # a gap of more than this many usual slice distances means that a slice is missing
UNEVEN = 0.02  # of the usual distance: more is not rounding
TILT = 0.2  # degrees: less is rounding
SHIFT = 0.25  # of a pixel: a slice further from the line of the others is shifted against them
SAME_DIRECTION, SAME_SPACING = 2e-3, 2e-3
TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])  # DICOM's coordinates grow to the left and to the back


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
        localizer: whether it is an overview that shows where the slices lie.
        attributes: what tells slices at one position apart: echoes, time points, files.
    """

    name: str
    size: tuple[int, int]
    position: Sequence[float] | None
    orientation: tuple[float, ...] | None
    spacing: tuple[float, ...] | None
    thickness: float | None = None
    number: int | None = None
    series: str = ""
    localizer: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)


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
    kept = [k for k, one in enumerate(slices) if not one.localizer] or [*range(len(slices))]
    used = [slices[k] for k in kept]
    notes = []
    if len(kept) < len(slices):
        overviews = [one.name for one in slices if one.localizer]
        notes.append(f"{len(overviews)} localizers are left out ({listed(overviews, 2)})")
    _require_alike(path, used)
    coordinates, unit = _coordinates(path, used)
    order = sorted(range(len(used)), key=coordinates.__getitem__)
    ordered = [used[k] for k in order]
    steps = np.diff([coordinates[k] for k in order])
    usual = 1.0 if unit != "mm" else float(np.median(steps)) if len(steps) else 0.0
    _require_distances(path, ordered, steps, usual, unit)
    if unit == "mm":
        notes += _uneven(steps, usual)
    grid, more = _grid(path, ordered, unit == "mm")
    return Block([kept[k] for k in order], grid, (*notes, *more))


def _require_alike(path: Path, slices: Sequence[Slice]) -> None:
    """Raise DataError unless all slices are of one series, size, orientation and spacing."""
    first = slices[0]
    series = list(dict.fromkeys(one.series for one in slices))
    alike: tuple[tuple[str, Callable[[Slice], bool]], ...] = (
        ("series", lambda one: one.series == first.series),
        ("size", lambda one: one.size == first.size),
        ("orientation", lambda one: _near(one.orientation, first.orientation, SAME_DIRECTION)),
        (
            "spacing (PixelSpacing)",
            lambda one: _near(
                one.spacing, first.spacing, SAME_SPACING * min(first.spacing or (1,))
            ),
        ),
    )
    for name, same in alike:
        if other := next((one for one in slices if not same(one)), None):
            count = f" of {len(series)} series" if len(series) > 1 else ""
            detail = f" ({_shown(other)} and {_shown(first)})" if name[:2] == "or" else ""
            raise DataError(
                f"{path}: {other.name} differs from {first.name} in {name}{detail}; put each "
                f"series{count} into its own folder"
            )


def _near(one: Sequence[float] | None, other: Sequence[float] | None, tolerance: float) -> bool:
    if one is None or other is None:
        return one is other
    return bool(np.abs(np.subtract(one, other)).max() <= tolerance)


def _shown(one: Slice) -> str:
    return "none" if one.orientation is None else "\\".join(f"{v:.3g}" for v in one.orientation)


def _coordinates(path: Path, slices: Sequence[Slice]) -> tuple[list[float], str]:
    """Return the coordinate of each slice along the normal of their plane, or its number; and the
    unit.

    Raises DataError for slices without both.
    """
    orientation = slices[0].orientation
    positions = [one.position for one in slices if one.position is not None]
    if orientation is not None and len(positions) == len(slices):
        normal = _normal(orientation)
        return [float(np.dot(normal, position)) for position in positions], "mm"
    numbers = [float(one.number) for one in slices if one.number is not None]
    if len(numbers) < len(slices):
        if len(slices) == 1:
            return [0.0], "by InstanceNumber"
        raise DataError(
            f"{path}: slices without ImagePositionPatient and InstanceNumber have no order; add one"
        )
    return numbers, "by InstanceNumber"


def _normal(orientation: Sequence[float]) -> NDArray[np.float64]:
    return np.cross(orientation[:3], orientation[3:])


def _require_distances(
    path: Path, ordered: Sequence[Slice], steps: NDArray[Any], usual: float, unit: str
) -> None:
    """Raise DataError for slices at one position, and for gaps."""
    least = 1e-3 * max(float(np.max(steps, initial=0)), 1e-3)
    doubles = int((steps <= least).sum())
    for step, (before, after) in zip(steps, pairwise(ordered), strict=True):
        if step <= least:
            raise DataError(
                f"{path}: {before.name} and {after.name} are at the same place; "
                f"{_apart(before, after, len(ordered), doubles)}"
            )
    for step, (before, after) in zip(steps, pairwise(ordered), strict=True):
        if step > GAP * usual:
            raise DataError(
                f"{path}: slices are missing between {before.name} and {after.name}: {step:.4g} "
                f"{unit}, elsewhere {usual:.4g}; fetch the series again, or resample it to one "
                "distance"
            )


def _apart(before: Slice, after: Slice, count: int, doubles: int) -> str:
    """Return what tells two slices at one position apart, and what to do."""
    different = [
        f"{name} {before.attributes[name]} and {after.attributes.get(name)}"
        for name in before.attributes
        if before.attributes[name] != after.attributes.get(name)
    ]
    if not different:
        return "keep one of them"
    return (
        f"they differ in {listed(different, 3)} ({count} slices at {count - doubles} positions); "
        "put each volume (echo, time point) into its own folder"
    )


def _uneven(steps: NDArray[Any], usual: float) -> list[str]:
    """Warn if slices are not equally far apart."""
    if not len(steps) or np.abs(steps - usual).max() <= max(UNEVEN * usual, 0.01):
        return []
    return [
        (
            f"slice distances from {steps.min():.4g} to {steps.max():.4g} mm; they are taken as "
            f"{usual:.4g} mm, nothing is resampled here"
        )
    ]


def _grid(path: Path, ordered: Sequence[Slice], placed: bool) -> tuple[Grid, list[str]]:
    """Return the grid of slices in order, and remarks."""
    first, last, count = ordered[0], ordered[-1], len(ordered)
    notes = []
    spacing = first.spacing
    if spacing is None or min(spacing) <= 0:
        spacing = (1.0, 1.0)
        notes.append("PixelSpacing is missing; 1 mm is assumed")
    thickness = first.thickness or 1.0
    shape = (first.size[1], first.size[0], count)
    if not placed or first.orientation is None:
        affine = np.diag([spacing[1], spacing[0], thickness, 1.0])
        return Grid.of(path, shape, affine, oriented=False), notes
    normal = _normal(first.orientation)
    line = normal * thickness
    if count > 1:
        line = (np.array(last.position) - np.array(first.position)) / (count - 1)
        notes += _tilted(line, normal)
        _require_straight(path, ordered, line, SHIFT * min(spacing))
    affine = np.eye(4)
    affine[:3, 0] = np.array(first.orientation[:3]) * spacing[1]
    affine[:3, 1] = np.array(first.orientation[3:]) * spacing[0]
    affine[:3, 2] = line
    affine[:3, 3] = first.position
    return Grid.of(path, shape, TO_RAS @ affine), notes


def _tilted(line: NDArray[Any], normal: NDArray[Any]) -> Iterator[str]:
    """Warn if slices are not stacked at a right angle."""
    share = abs(line @ normal) / (np.linalg.norm(line) * np.linalg.norm(normal))
    angle = float(np.degrees(np.arccos(min(1.0, share))))
    if angle > TILT:
        yield (
            f"tilted by {angle:.3g} degrees (gantry tilt): slices are stacked aslant, as stored; "
            "resample them to a right-angled block, or keep all scans alike"
        )


def _require_straight(
    path: Path, ordered: Sequence[Slice], line: NDArray[Any], most: float
) -> None:
    """Raise DataError if a slice lies beside the line through the first and the last."""
    direction = line / np.linalg.norm(line)
    for one in ordered:
        offset = np.array(one.position) - np.array(ordered[0].position)
        aside = float(np.linalg.norm(offset - (offset @ direction) * direction))
        if aside > max(most, 0.05):
            raise DataError(
                f"{path}: {one.name} is shifted by {aside:.3g} mm against the line of the other "
                "slices; they form no block: resample them, or fetch the series again"
            )

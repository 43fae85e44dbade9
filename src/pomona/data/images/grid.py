"""Where the voxels of a volume lie in the patient.

Every source of volumes gives voxels on stored axes and an affine. All are turned the same way: to
z, y, x of the patient, that is from feet to head, from back to front and from left to right, along
the closest stored axes, by permuting and flipping, never by interpolating.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pomona.core.errors import DataError
from pomona.data.images.packages import package

TOLERANCE = 0.1  # of the smallest side of a voxel: less is rounding of numbers in headers
ORIENTATION = "RAS"  # the ends to which x, y and z grow: right, anterior (front), superior (head)


@dataclass(frozen=True)
class Grid:
    """The grid of a volume as its file stores it.

    Attributes:
        path: of the file, for messages.
        shape: the numbers of voxels along the three stored axes.
        affine: rows of the 4 x 4 matrix from stored indices to mm in the patient, which grow to the
            right, front and head (RAS+).
        oriented: whether the header says where the voxels lie; if not, ``affine`` is what its
            format assumes.
    """

    path: Path
    shape: tuple[int, int, int]
    affine: tuple[tuple[float, ...], ...]
    oriented: bool = True

    @classmethod
    def of(
        cls, path: Path, shape: Sequence[int], affine: ArrayLike, oriented: bool = True
    ) -> "Grid":
        """Create a grid. Raises DataError for an affine in which two axes coincide or one is
        missing.
        """
        matrix = np.asarray(affine, np.float64)
        if np.isfinite(matrix).all():
            sides = np.linalg.norm(matrix[:3, :3], axis=0)
            if (sides > 0).all() and abs(np.linalg.det(matrix[:3, :3] / sides)) > 1e-4:
                i, j, k = map(int, shape)
                rows = tuple(tuple(map(float, row)) for row in matrix)
                return cls(path, (i, j, k), rows, oriented)
        raise DataError(
            f"{path}: its header does not say which axis is which; write it again with its affine"
        )

    @property
    def matrix(self) -> NDArray[np.float64]:
        """The affine as an array (4, 4)."""
        return np.array(self.affine)

    @cached_property
    def axes(self) -> tuple[tuple[int, int], ...]:
        """For each stored axis the axis of the patient (0 is x) that is closest to it, and 1, or -1
        if it runs against that.
        """
        orientations = package("nibabel.orientations", self.path)
        return tuple((int(a), int(d)) for a, d in orientations.io_orientation(self.matrix))

    @property
    def stored_axes(self) -> str:
        """The ends to which the stored axes run, as ``LPS``."""
        return "".join(("LR", "PA", "IS")[axis][direction > 0] for axis, direction in self.axes)

    @property
    def turned_shape(self) -> tuple[int, int, int]:
        """The numbers of voxels along z, y and x of the patient."""
        return self._along([int(n) for n in self.shape])

    @cached_property
    def spacing(self) -> tuple[float, float, float]:
        """Mm between voxels along z, y and x."""
        sides = np.linalg.norm(self.matrix[:3, :3], axis=0)
        return self._along(list(map(float, sides)))

    def _along(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return values of the stored axes in the order z, y, x."""
        return tuple(values[stored] for stored in self._turned_order)

    @property
    def _turned_order(self) -> list[int]:
        """The stored axes that become z, y and x."""
        closest = [axis for axis, _ in self.axes]
        return [closest.index(axis) for axis in (2, 1, 0)]

    def turned(self, voxels: NDArray[Any]) -> NDArray[Any]:
        """Turn voxels (i, j, k, ...) on the stored axes to (z, y, x, ...)."""
        order = self._turned_order
        steps = [slice(None, None, self.axes[stored][1]) for stored in order]
        return voxels.transpose(*order, *range(3, voxels.ndim))[tuple(steps)]

    def stored(self, voxels: NDArray[Any]) -> NDArray[Any]:
        """Turn voxels (z, y, x, ...) back to the stored axes (i, j, k, ...)."""
        order = [2 - axis for axis, _ in self.axes]
        steps = [slice(None, None, direction) for _, direction in self.axes]
        return voxels.transpose(*order, *range(3, voxels.ndim))[tuple(steps)]

    @cached_property
    def turned_matrix(self) -> NDArray[np.float64]:
        """The affine (4, 4) from indices (z, y, x) of the turned voxels to mm (x, y, z)."""
        back = np.zeros((4, 4))
        back[3, 3] = 1
        for stored, (axis, direction) in enumerate(self.axes):
            back[stored, 2 - axis] = direction
            back[stored, 3] = self.shape[stored] - 1 if direction < 0 else 0
        return self.matrix @ back

    def matched(self, image: "Grid", voxels: NDArray[Any]) -> NDArray[Any]:
        """Turn voxels (i, j, k, ...) of this grid to z, y, x as the image is turned.

        Raises DataError if the grids differ.
        """
        order = self._order(image)
        if order is None:
            raise DataError(
                f"the grids of the mask {self.path} and its image {image.path} differ: "
                f"{difference(image, self)}; save the mask on the grid of the image"
            )
        steps = [slice(None, None, direction) for _, direction in order]
        permuted = voxels.transpose(*(axis for axis, _ in order), *range(3, voxels.ndim))
        return image.turned(permuted[tuple(steps)])

    def _order(self, image: "Grid") -> list[tuple[int, int]] | None:
        """Return for each stored axis of an image the axis of this grid, and 1, or -1 if it runs
        against that; None if no corner lies within ``TOLERANCE`` of a voxel of the image's.
        """
        steps = np.linalg.inv(image.matrix) @ self.matrix
        exact = np.zeros((4, 4))
        exact[3, 3] = 1
        order = []
        for stored in range(3):
            axis = int(np.abs(steps[stored, :3]).argmax())
            direction = 1 if steps[stored, axis] > 0 else -1
            exact[stored, axis] = direction
            exact[stored, 3] = image.shape[stored] - 1 if direction < 0 else 0
            order.append((axis, direction))
        if tuple(self.shape[axis] for axis, _ in order) != image.shape:
            return None
        corners = np.array([[*c, 1] for c in product(*((0, n - 1) for n in self.shape))]).T
        apart = image.matrix @ (steps - exact) @ corners
        near = np.linalg.norm(apart[:3], axis=0).max() <= TOLERANCE * min(image.spacing)
        return order if near else None


def difference(image: Grid, mask: Grid) -> str:
    """Return how two grids differ."""
    if image.turned_shape != mask.turned_shape:
        return (
            f"sizes (z, y, x) {_times(image.turned_shape)} of the image and "
            f"{_times(mask.turned_shape)} of the mask"
        )
    differences = []
    if not np.allclose(image.spacing, mask.spacing, rtol=1e-3):
        differences.append(
            f"voxels (z, y, x) of {_times(image.spacing)} and {_times(mask.spacing)} mm"
        )
    if (angle := _angle(image, mask)) > 0.05:
        differences.append(f"axes turned by {angle:.3g} degrees")
    first, other = (grid.turned_matrix[:3, 3] for grid in (image, mask))
    if np.linalg.norm(first - other) > TOLERANCE * min(image.spacing):
        differences.append(f"first voxels (x, y, z) at {_point(first)} and {_point(other)} mm")
    if image.stored_axes != mask.stored_axes:
        differences.append(f"stored axes {image.stored_axes} and {mask.stored_axes}")
    if any((grid.matrix == np.eye(4)).all() for grid in (image, mask)):
        differences.append("one affine is the identity (np.eye), as a file without affine has")
    return ", ".join(differences) or "their affines"


def _angle(one: Grid, other: Grid) -> float:
    """Return the largest angle in degrees between axes of two grids."""
    a, b = (
        g.turned_matrix[:3, :3] / np.linalg.norm(g.turned_matrix[:3, :3], axis=0)
        for g in (one, other)
    )
    return float(np.degrees(np.arccos((a * b).sum(axis=0).clip(-1, 1))).max())


def _times(values: Sequence[float]) -> str:
    return " x ".join(f"{value:.4g}" for value in values)


def _point(values: NDArray[np.float64]) -> str:
    return f"({', '.join(f'{value + 0:.4g}' for value in values.round(3))})"

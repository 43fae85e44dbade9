"""Where the voxels of a volume lie in the patient.

Every source of volumes gives voxels on stored axes and an affine. All are turned the same way: to
z, y, x of the patient, that is from feet to head, from back to front and from left to right, along
the closest stored axes, by permuting and flipping, never by interpolating.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pomona.core.errors import DataError
from pomona.data.images import package

TOLERANCE = 0.1  # of the smallest side of a voxel: less is rounding of numbers in headers
ORIENTATION = "RAS"  # the ends to which x, y and z grow: right, anterior (front), superior (head)
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])  # DICOM's and ITK's axes grow to the left and back
UNORIENTED = (
    "the header does not state the volume's orientation in the patient (left and right, front and "
    "back): its axes are taken as its format assumes; save it with an orientation"
)


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
    def from_affine(
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

    @property
    def _nibabel(self) -> Any:
        return package("nibabel.orientations", self.path)

    @property
    def stored_axes(self) -> str:
        """The ends to which the stored axes run, as ``LPS``."""
        return "".join(self._nibabel.aff2axcodes(self.matrix))

    @cached_property
    def _turn(self) -> NDArray[np.float64]:
        """For each stored axis, its number among z, y, x, and -1 if it runs against that."""
        turn: NDArray[np.float64] = self._nibabel.io_orientation(self.matrix)
        turn[:, 0] = 2 - turn[:, 0]
        return turn

    def turned(self, voxels: NDArray[Any]) -> NDArray[Any]:
        """Turn voxels (i, j, k, ...) on the stored axes to (z, y, x, ...)."""
        return np.asarray(self._nibabel.apply_orientation(voxels, self._turn))

    def stored(self, voxels: NDArray[Any]) -> NDArray[Any]:
        """Turn voxels (z, y, x, ...) back to the stored axes (i, j, k, ...)."""
        back = self._nibabel.ornt_transform([[0, 1], [1, 1], [2, 1]], self._turn)
        return np.asarray(self._nibabel.apply_orientation(voxels, back))

    @cached_property
    def turned_matrix(self) -> NDArray[np.float64]:
        """The affine (4, 4) from indices (z, y, x) of the turned voxels to mm (x, y, z)."""
        stored: NDArray[np.float64] = self._nibabel.inv_ornt_aff(self._turn, self.shape)
        return np.asarray(self.matrix @ stored)

    @property
    def turned_shape(self) -> tuple[int, int, int]:
        """The numbers of voxels along z, y and x of the patient."""
        z, y, x = (self.shape[axis] for axis in np.argsort(self._turn[:, 0]))
        return z, y, x

    @cached_property
    def spacing(self) -> tuple[float, float, float]:
        """Mm between voxels along z, y and x."""
        z, y, x = map(float, np.linalg.norm(self.turned_matrix[:3, :3], axis=0))
        return z, y, x

    @property
    def angle(self) -> float:
        """The largest angle in degrees between an axis of the turned voxels and the patient's."""
        cosines = np.diag(self.turned_matrix[:3, :3][::-1]) / self.spacing
        return float(np.degrees(np.arccos(cosines.clip(-1, 1))).max())

    @property
    def skew(self) -> float:
        """By how many degrees the three axes are off right angles, as of a tilted stack."""
        volume = np.linalg.det(self.turned_matrix[:3, :3] / self.spacing)
        return float(np.degrees(np.arccos(min(1.0, abs(volume)))))

    def onto(
        self, image: "Grid", voxels: NDArray[Any]
    ) -> tuple[NDArray[Any], tuple[int, ...]] | None:
        """Turn voxels (i, j, k, ...) of this grid to the stored axes of an image.

        Returns the voxels and the indices of the first in the image; None if a corner does not lie
        within ``TOLERANCE`` of a voxel of the image's, continued beyond its ends.
        """
        steps = np.linalg.inv(image.matrix) @ self.matrix
        turn = self._nibabel.io_orientation(steps)
        aligned = steps @ self._nibabel.inv_ornt_aff(turn, self.shape)
        values: NDArray[Any] = self._nibabel.apply_orientation(voxels, turn)
        nearest = np.eye(4)
        nearest[:3, 3] = np.rint(aligned[:3, 3])
        corners = np.array([[*c, 1] for c in product(*((0, n - 1) for n in values.shape[:3]))]).T
        apart = np.linalg.norm((image.matrix @ (aligned - nearest) @ corners)[:3], axis=0)
        if apart.max() > TOLERANCE * min(image.spacing):
            return None
        return values, tuple(map(int, nearest[:3, 3]))

    def extended(self, image: "Grid", voxels: NDArray[Any]) -> tuple["Grid", NDArray[Any]]:
        """Return an image's grid and these voxels (i, j, k, ...) on it, 0 elsewhere, if they lie on
        a part of it; else this grid and the voxels.
        """
        if self.oriented and image.oriented and (placed := self.onto(image, voxels)):
            values, corner = placed
            window = tuple(map(slice, corner, np.add(corner, values.shape[:3])))
            extended = np.zeros((*image.shape, *values.shape[3:]), values.dtype)
            if min(corner) >= 0 and extended[window].shape == values.shape:
                extended[window] = values
                return image, extended
        return self, voxels

    def matched(self, image: "Grid", voxels: NDArray[Any]) -> NDArray[Any]:
        """Turn voxels (i, j, k, ...) of this grid to z, y, x as the image is turned.

        Raises DataError if the grids differ.
        """
        match self.onto(image, voxels):
            case values, (0, 0, 0) if values.shape[:3] == image.shape:
                return image.turned(values)
        raise DataError(
            f"the grids of the mask {self.path} and its image {image.path} differ, use the latter: "
            f"{self._described()} and {image._described()}{self._angle(image)}"
        )

    def _described(self) -> str:
        sides, mm = dimensions(self.turned_shape), dimensions(self.spacing)
        corner = ", ".join(f"{value + 0:.4g}" for value in self.turned_matrix[:3, 3].round(3))
        return f"{sides} voxels (z, y, x) of {mm} mm from ({corner}) on axes {self.stored_axes}"

    def _angle(self, image: "Grid") -> str:
        """Return by how much the axes of two grids are turned against each other, if at all."""
        axes = [grid.turned_matrix[:3, :3] / grid.spacing for grid in (self, image)]
        angle = np.degrees(np.arccos((axes[0] * axes[1]).sum(axis=0).clip(-1, 1))).max()
        return f", turned by {angle:.3g} degrees" if angle > 0.05 else ""


def dimensions(values: Iterable[float]) -> str:
    """Return the sides of a volume, or of its voxels, as text."""
    return " x ".join(f"{value:.4g}" for value in values)

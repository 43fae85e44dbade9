"""A volume of any format as an ``ImageFile``: turned to the patient's axes by its grid."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.data.images.grid import Grid
from pomona.data.images.image_file import ImageFile, plain

UNORIENTED = (
    "the header does not say how the volume lies in the patient (left and right, front and back): "
    "its axes are taken as stored; save it with an orientation"
)


def volume(
    grid: Grid,
    channels: int,
    dtype: np.dtype[Any],
    voxels: Callable[[], NDArray[Any]],
    **attributes: Any,
) -> ImageFile:
    """Create a file (D, H, W, C) of the voxels (i, j, k, C) that ``voxels`` returns on the grid's
    stored axes; ``attributes``: others of ``ImageFile``.

    Raises DataError if too large.
    """
    image = plain(
        grid.path,
        (*grid.turned_shape, channels),
        dtype,
        lambda: np.ascontiguousarray(grid.turned(voxels())),
    )
    notes = (*attributes.pop("notes", ()), *([] if grid.oriented else [UNORIENTED]))
    return replace(image, grid=grid, notes=notes, **attributes)

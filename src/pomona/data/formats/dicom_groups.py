"""Elements of a frame, wherever DICOM keeps them: in the frame's own functional groups, in those
that all frames share, or at the top level of the file.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np


def frames(dataset: Any) -> int:
    """Return the number of frames."""
    return int(dataset.get("NumberOfFrames", 1) or 1)


def item(dataset: Any, frame: int, sequence: str) -> Any:
    """Return the first item of a sequence that a frame has, or None."""
    return next(iter(items(dataset, frame, sequence)), None)


def items(dataset: Any, frame: int, sequence: str) -> list[Any]:
    """Return the items of a sequence from the first level that has it."""
    for level in _levels(dataset, frame):
        if found := level.get(sequence):
            return list(found)
    return []


def element(dataset: Any, frame: int, name: str, sequence: str) -> Any:
    """Return an element of a functional group, or of the top level, or None."""
    group = item(dataset, frame, sequence)
    value = None if group is None else group.get(name)
    return dataset.get(name) if value is None else value


def numbers(values: Any, count: int) -> tuple[float, ...] | None:
    """Return ``count`` finite numbers, or None if not present."""
    found = tuple(map(float, values)) if values else ()
    return found if len(found) == count and np.isfinite(found).all() else None


def _levels(dataset: Any, frame: int) -> Iterator[Any]:
    own = dataset.get("PerFrameFunctionalGroupsSequence") or ()
    if frame < len(own):
        yield own[frame]
    yield from (dataset.get("SharedFunctionalGroupsSequence") or ())[:1]
    yield dataset

"""Segments of a mask that its file names, as the classes of the data."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError, listed


def classes(
    path: Path, labels: Mapping[int, str], names: Sequence[str]
) -> tuple[dict[int, int], list[str]]:
    """Return the class of each segment, and remarks.

    Segments are those classes that have their names; if no segment is named like a class, segment
    number k is class k.

    Args:
        path: of the mask.
        labels: names of the segments by their numbers.
        names: of the classes, background first.

    Raises DataError for segments that are no class.
    """
    index = {_folded(name): k for k, name in enumerate(names)}
    numbers = {n: index[_folded(label)] for n, label in labels.items() if _folded(label) in index}
    notes = []
    if not numbers:
        numbers = {n: n for n in labels if n < len(names)}
        pairs = [f"{labels[n] or n} is {names[n]}" for n in numbers]
        notes = [f"segments are taken by number, as none is named like a class: {listed(pairs, 4)}"]
    if nameless := [f"{n} ({label})" for n, label in labels.items() if n not in numbers]:
        raise DataError(
            f"the mask {path} has segments {listed(nameless, 4)}, but data.classes names "
            f"{len(names)} classes ({listed(names, 6)}); name each segment there"
        )
    return numbers, notes


def as_classes(path: Path, segments: NDArray[Any], numbers: Mapping[int, int]) -> NDArray[np.uint8]:
    """Return the class of each pixel from the number of its segment; 0 is the background.

    Raises DataError for a segment that has no class.
    """
    if undescribed := {*np.unique(segments).tolist()} - {0, *numbers}:
        raise DataError(
            f"the mask {path} holds segment {min(undescribed):g}, which it does not describe"
        )
    lookup = np.zeros(max(numbers, default=0) + 1, np.uint8)
    lookup[list(numbers)] = list(numbers.values())
    return np.asarray(lookup[segments.astype(np.int64)])


def _folded(name: str) -> str:
    return normalize("NFC", name).casefold().strip()

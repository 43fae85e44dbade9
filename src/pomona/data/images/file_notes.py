"""Remarks on the files of a data set, and what a model keeps of them: voxel sizes, orientation."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pomona.core.errors import listed
from pomona.data.images.grid import ORIENTATION
from pomona.data.images.image_file import ImageFile

MOST_SPACINGS = 64
NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)*")
Spacing = tuple[float, float, float]  # mm along z, y, x


def notes(files: Sequence[ImageFile]) -> tuple[str, ...]:
    """Return one line for each remark, with the files that it is about."""
    names = short_names([file.path for file in files])
    remarks = by_note([*zip(names, (file.notes for file in files), strict=True)], "files")
    return (*_spacings(files), *_padded(files), *_units(files), *_orientations(files), *remarks)


def by_note(remarks: Sequence[tuple[str, Sequence[str]]], noun: str) -> tuple[str, ...]:
    """Return one line for each note, with how many of the files have it; ``remarks``: the name of
    each file, and its notes. Notes that differ in numbers alone share a line.
    """
    names: dict[str, list[str]] = {}
    wordings: dict[str, list[str]] = {}
    for name, file_notes in remarks:
        for note in file_notes:
            form = NUMBER.sub("0", note)
            names.setdefault(form, []).append(name)
            wordings.setdefault(form, []).append(note)
    return tuple(
        f"{len(having)} of {len(remarks)} {noun} ({listed(having, 2)}): {wordings[form][0]}"
        f"{' (numbers of the first; others differ)' if len({*wordings[form]}) > 1 else ''}"
        for form, having in names.items()
    )


def short_names(paths: Sequence[Path]) -> list[str]:
    """Return the paths from the folder on that all have in common."""
    root = os.path.commonpath([path.parent for path in paths]) if paths else ""
    return [os.path.relpath(path, root) for path in paths]


def spacings(files: Sequence[ImageFile]) -> tuple[Spacing, ...]:
    """Return the voxel sizes of the volumes, the most frequent first, to 4 digits."""
    counts = Counter(_rounded(file.grid.spacing, 4) for file in files if file.grid)
    return tuple(spacing for spacing, _ in counts.most_common(MOST_SPACINGS))


def orientation(files: Sequence[ImageFile]) -> str:
    """Return the orientation of the volumes' axes, or nothing unless all headers have it."""
    known = bool(files) and all(file.grid and file.grid.oriented for file in files)
    return ORIENTATION if known else ""


def _rounded(spacing: Spacing, digits: int) -> Spacing:
    z, y, x = (float(f"{side:.{digits}g}") for side in spacing)
    return z, y, x


def _spacings(files: Sequence[ImageFile]) -> list[str]:
    """Warn if volumes have different voxel sizes, which a network cannot see."""
    sizes = {file.path: _rounded(file.grid.spacing, 3) for file in files if file.grid}
    counts = Counter(sizes.values())
    if len(counts) < 2:
        return []
    example = {size: path.name for path, size in reversed(sizes.items())}
    shown = [
        f"{n} of {' x '.join(f'{side:g}' for side in size)} mm ({example[size]})"
        for size, n in counts.most_common(4)
    ]
    return [
        (
            f"volumes of several voxel sizes (z, y, x): {', '.join(shown)}; bring all to one, "
            "nothing is resampled here"
        )
    ]


def _padded(files: Sequence[ImageFile]) -> list[str]:
    """Warn if headers declare a padding value, which would be read as very dark."""
    values = Counter(file.padding for file in files if file.padding is not None)
    if not values:
        return []
    shown = ", ".join(f"{value:g} in {n}" for value, n in values.most_common(3))
    return [
        (
            f"{values.total()} of {len(files)} files name a padding value ({shown}); data.window "
            "cuts it off"
        )
    ]


def _units(files: Sequence[ImageFile]) -> list[str]:
    """Warn if the values of files have different units."""
    counts = Counter(file.unit for file in files if file.unit)
    if len(counts) < 2:
        return []
    example = {file.unit: file.path.name for file in reversed(files)}
    shown = [f"{n} of {unit} ({example[unit]})" for unit, n in counts.most_common(4)]
    return [f"values of several units: {', '.join(shown)}; convert all to one"]


def _orientations(files: Sequence[ImageFile]) -> list[str]:
    """Warn if only some volumes say how they lie in the patient."""
    names = [file.path.name for file in files if file.grid and not file.grid.oriented]
    if not 0 < len(names) < len(files):
        return []
    return [
        (
            f"{len(names)} of {len(files)} volumes ({listed(names, 2)}) do not say how they lie in "
            "the patient, the others do: they may be mirrored against each other; save them with "
            "an orientation"
        )
    ]

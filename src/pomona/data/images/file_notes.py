"""Remarks on the files of a data set, and what a model keeps of them: voxel sizes, orientation."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from pathlib import Path

from pomona.core.errors import listed
from pomona.data.images.grid import ORIENTATION
from pomona.data.images.image_file import ImageFile

MOST_VALUES = 64  # voxel sizes and traits that a model keeps
UNIT, PROPORTIONS = "values in", "width / height"
# by the names of traits
PROBLEMS = {
    UNIT: "values are in several units",
    "rows and columns to": "rows and columns of images run to several sides of the patient",
    "pixels of": "images have several pixel sizes",
    "presentation intent": "some images are raw (FOR PROCESSING), others made for display",
    "channels": "images have channels of several names or orders",
    PROPORTIONS: "images have several proportions (width / height)",
}
REMEDIES = {
    UNIT: "convert all to one",
    "rows and columns to": "turn the images alike, unless they are different views",
    "pixels of": "resample all to one size, since Pomona does not",
    "presentation intent": "take one kind, since their values have different scales",
    "channels": "bring them into one order",
    PROPORTIONS: "cut or pad all alike to keep shapes, since data.resize makes all square",
}
NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)*")
Spacing = tuple[float, float, float]  # mm along z, y, x


def notes(files: Sequence[ImageFile]) -> Iterator[str]:
    """Yield one line for each remark, with the files that it is about."""
    sizes = {f.path: f"{times(_rounded(f.grid.spacing, 3))} mm" for f in files if f.grid}
    if len({*sizes.values()}) > 1:
        yield (
            f"volumes have several voxel sizes (z, y, x): {shares(sizes)}; resample all to one size"
        )
    for name, values in traits(files).items():
        if len({*values.values()}) > 1:
            yield f"{PROBLEMS[name]}: {shares(values)}; {REMEDIES[name]}"
    names = short_names([file.path for file in files])
    yield from _several_orientations(names, files)
    yield from by_note([*zip(names, (file.notes for file in files), strict=True)], "files")


def traits(files: Sequence[ImageFile]) -> dict[str, dict[Path, str]]:
    """Return by the name of each trait what the headers of files that have it say."""
    values: dict[str, dict[Path, str]] = {}
    for file in files:
        shape = f"{file.shape[1] / file.shape[0]:.2g}" if len(file.shape) == 3 else ""
        for name, text in ((UNIT, file.unit), (PROPORTIONS, shape), *file.traits):
            if text:
                values.setdefault(name, {})[file.path] = text
    return values


def is_among(name: str, text: str, trained: Sequence[str]) -> bool:
    """Return whether a trait is one of those trained on; proportions, if between two of them."""
    if name == PROPORTIONS:
        return min(map(float, trained)) <= float(text) <= max(map(float, trained))
    return text in trained


def _several_orientations(names: Sequence[str], files: Sequence[ImageFile]) -> Iterator[str]:
    """Report volumes without an orientation next to others that have one."""
    unoriented = [*compress(names, (file.grid and not file.grid.oriented for file in files))]
    if 0 < len(unoriented) < len(files):
        yield (
            f"{len(unoriented)} of {len(files)} volumes ({listed(unoriented, 2)}) have no "
            "orientation in the patient, the others have one: they may be mirrored against each "
            "other; save them with an orientation"
        )


def shares(values: dict[Path, str]) -> str:
    """Return how many files have each value, the most frequent first, with an example of each."""
    counts = Counter(values.values())
    names = zip(values.values(), short_names([*values]), strict=True)
    example = dict(reversed([*names]))
    remainder = f" and {len(counts) - 4} others" if len(counts) > 4 else ""
    phrases = (f"{n} of {value} ({example[value]})" for value, n in counts.most_common(4))
    return ", ".join(phrases) + remainder


def by_note(remarks: Sequence[tuple[str, Sequence[str]]], noun: str) -> tuple[str, ...]:
    """Return one line for each note, with how many of the files have it; ``remarks``: the name of
    each file, and its notes. Notes that differ in numbers alone share a line.
    """
    names: dict[str, list[str]] = {}
    wordings: dict[str, list[str]] = {}
    for name, file_notes in remarks:
        for note in file_notes:
            pattern = NUMBER.sub("0", note)
            names.setdefault(pattern, []).append(name)
            wordings.setdefault(pattern, []).append(note)
    return tuple(
        f"{len(files)} of {len(remarks)} {noun} ({listed(files, 2)}): {wordings[pattern][0]}"
        f"{' (numbers of the first; others differ)' if len({*wordings[pattern]}) > 1 else ''}"
        for pattern, files in names.items()
    )


def palettes(masks: Mapping[str, Mapping[int, str]]) -> Iterator[str]:
    """Report a number that palettes of masks show in several colours, which may be several classes;
    ``masks``: the colour of each number, by the name of the mask.
    """
    examples = dict[int, dict[str, str]]()
    for mask, colours in masks.items():
        for number, colour in colours.items():
            examples.setdefault(number, {}).setdefault(colour, mask)
    for number, of_colour in examples.items():
        if len(of_colour) > 1:
            texts = [f"{colour} in {mask}" for colour, mask in of_colour.items()]
            yield (
                f"palettes of masks show number {number} as {listed(texts, 2)}: numbers count, not "
                "colours; save all with one palette if they mean different classes"
            )
            return


def short_names(paths: Sequence[Path]) -> list[str]:
    """Return the paths from the folder on that all have in common."""
    root = os.path.commonpath([path.parent for path in paths]) if paths else ""
    return [os.path.relpath(path, root) for path in paths]


def spacings(files: Sequence[ImageFile]) -> tuple[Spacing, ...]:
    """Return the voxel sizes of the volumes, the most frequent first, to 4 digits."""
    counts = Counter(_rounded(file.grid.spacing, 4) for file in files if file.grid)
    return tuple(spacing for spacing, _ in counts.most_common(MOST_VALUES))


def orientation(files: Sequence[ImageFile]) -> str:
    """Return the orientation of the volumes' axes, or nothing unless all headers have it."""
    oriented = bool(files) and all(file.grid and file.grid.oriented for file in files)
    return ORIENTATION if oriented else ""


def times(sides: Sequence[float]) -> str:
    """Return sides as ``2 x 3 x 4``."""
    return " x ".join(f"{side:g}" for side in sides)


def _rounded(spacing: Spacing, digits: int) -> Spacing:
    z, y, x = (float(f"{side:.{digits}g}") for side in spacing)
    return z, y, x

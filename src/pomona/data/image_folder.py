"""Images in folders, one folder a class; Tiny-ImageNet's own layout."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError
from pomona.data import image_arrays, image_folder_survey
from pomona.data.array_file import file, reading
from pomona.data.catalogue import locate, own_path
from pomona.data.dataset import Dataset
from pomona.data.image_decoding import Size, decoded, form
from pomona.data.image_folder_survey import Labelled
from pomona.data.problem_report import refuse
from pomona.data.settings import DataSettings
from pomona.storage.mapped_array import allocate

S = TypeVar("S")
T = TypeVar("T")


def read(settings: DataSettings) -> Dataset:
    """Own images: one folder a class, perhaps inside train/ with test/ or val/ beside it.

    With both test/ and val/, validation images count as training images. All images must have one size, or ``resize``
    must be set. Colour if any image has colour.

    Raises:
        DataError: all that is wrong with folders and files, at once.
    """
    root = own_path(settings)
    if (root / "val" / "val_annotations.txt").exists():
        return _tiny(root, str(root), settings)
    found = image_folder_survey.survey(root, settings.classes)
    return _dataset(str(root), found.training, found.testing, found.classes, settings, found.problems, found.notes)


def tiny_imagenet(settings: DataSettings) -> Dataset:
    """Tiny-ImageNet-200: training images by class folder, the annotated validation images for testing."""
    return _tiny(locate(settings).parent.parent, "tiny-imagenet", settings)


def _tiny(root: Path, name: str, settings: DataSettings) -> Dataset:
    classes = tuple(folder.name for folder in image_folder_survey.folders(root / "train"))
    notes = root / "val" / "val_annotations.txt"
    index = {label: i for i, label in enumerate(classes)}
    testing: Labelled = []
    with reading(notes):
        lines = file(notes).read_text(encoding="utf-8").splitlines()
    for line, cells in enumerate((text.split("\t") for text in lines if text), start=1):
        if len(cells) < 2 or cells[1] not in index:
            raise DataError(f"{notes}, line {line}: no file name and known class in {cells[:2]}; fetch it again")
        testing.append((notes.parent / "images" / cells[0], index[cells[1]]))
    training = [
        (path, k) for k, label in enumerate(classes) for path in image_folder_survey.images(root / "train" / label)
    ]
    return _dataset(name, training, testing, classes, settings)


def _dataset(
    name: str,
    training: Labelled,
    testing: Labelled,
    classes: tuple[str, ...],
    settings: DataSettings,
    problems: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Dataset:
    labelled = training + testing
    if not training and not problems:
        raise DataError(f"{name} has no training images; make a folder for each class and put its images there")
    x = _pixels(name, [path for path, _ in labelled], settings, problems)
    y = np.array([label for _, label in labelled], np.int64)
    return Dataset(
        name, "image", x, y, classes, len(training), image_arrays.SHIFT, image_arrays.SCALE, notes=tuple(notes)
    )


def _pixels(name: str, paths: Sequence[Path], settings: DataSettings, problems: Sequence[str]) -> NDArray[np.generic]:
    """All images as one array. Raises DataError with these problems, and with those of every file."""
    faults = list(problems)
    forms = list(_each(paths, form, faults))
    side = settings.resize
    if not side:
        faults += _sizes(forms)
    mode = "L" if all(colours == "L" for _, (colours, _) in forms) else "RGB"
    if faults:  # what else is wrong shows when the others are decoded
        for _ in _each([path for path, _ in forms], lambda path: decoded(path, mode), faults):
            pass
        refuse(name, faults)
    width, height = (side, side) if side else forms[0][1][1]
    x = allocate((len(paths), height, width, len(mode)), np.uint8, settings.memory_share)
    every = _each(paths, lambda path: decoded(path, mode, (width, height)), faults)
    for k, (_, image) in enumerate(every):
        x[k] = image
    refuse(name, faults)
    return x


def _each(items: Sequence[S], function: Callable[[S], T], faults: list[str]) -> Iterator[tuple[S, T]]:
    """Items and what the function makes of them; of those it refuses, the refusals join the faults."""
    for item in items:
        try:
            yield item, function(item)
        except DataError as fault:
            faults.append(str(fault))


def _sizes(forms: Sequence[tuple[Path, tuple[str, Size]]]) -> list[str]:
    """A line if images have several sizes: each with its count and an example, the most frequent first."""
    counts = Counter(size for _, (_, size) in forms)
    if len(counts) < 2:
        return []
    example = {size: path for path, (_, size) in reversed(forms)}
    shown = [f"{n} of {w} x {h} ({example[w, h].name})" for (w, h), n in counts.most_common(4)]
    more = f" and {len(counts) - 4} other sizes" if len(counts) > 4 else ""
    return [f"images of several sizes: {', '.join(shown)}{more}; set data.resize"]

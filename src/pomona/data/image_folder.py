"""Images in one folder per class; also Tiny-ImageNet's own layout."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pomona.core import files
from pomona.core.errors import DataError
from pomona.data import image_arrays, image_folder_survey, image_stack
from pomona.data.array_file import file, reading
from pomona.data.catalogue import locate, own_path
from pomona.data.dataset import Dataset
from pomona.data.image_folder_survey import Labelled
from pomona.data.kinds import ImageFolder, PublicImages


def read(settings: ImageFolder) -> Dataset:
    """Read own images: one folder per class, optionally inside train/ with test/ or val/ beside it.

    If both test/ and val/ exist, validation images become training images. All images must have the same size unless
    ``resize`` is set. All are read in colour if any image has colour.

    Raises:
        DataError: all problems with folders and files, reported together.
    """
    root = own_path(settings)
    if (root / "val" / "val_annotations.txt").exists():
        return _tiny(root, str(root), settings)
    found = image_folder_survey.survey(root, settings.classes)
    return _dataset(str(root), found.training, found.testing, found.classes, settings, found.problems, found.notes)


def tiny_imagenet(settings: PublicImages) -> Dataset:
    """Read Tiny-ImageNet-200: training images by class folder, the annotated validation images for testing."""
    return _tiny(locate(settings).parent.parent, "tiny-imagenet", settings)


def _tiny(root: Path, name: str, settings: ImageFolder | PublicImages) -> Dataset:
    classes = tuple(folder.name for folder in image_folder_survey.folders(root / "train"))
    notes = root / "val" / "val_annotations.txt"
    index = {label: i for i, label in enumerate(classes)}
    testing: Labelled = []
    with reading(notes):
        lines = files.text(file(notes), files.LONG).splitlines()
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
    settings: ImageFolder | PublicImages,
    problems: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Dataset:
    labelled = training + testing
    if not training and not problems:
        raise DataError(f"{name} has no training images; make a folder for each class and put its images there")
    stack = image_stack.stacked(name, [path for path, _ in labelled], settings, problems)
    y = np.array([label for _, label in labelled], np.int64)[stack.kept]
    n_train, told = int((stack.kept < len(training)).sum()), (*notes, *stack.notes)
    return Dataset(name, "image", stack.x, y, classes, n_train, *image_arrays.usual(stack.x), notes=told)

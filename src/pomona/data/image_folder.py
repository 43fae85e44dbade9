"""Images in one folder per class; also Tiny-ImageNet's own layout."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from unicodedata import normalize

import numpy as np

from pomona.core import files
from pomona.core.errors import DataError, listed, near
from pomona.data import image_arrays, image_stack
from pomona.data.array_file import file, reading
from pomona.data.catalogue import locate, own_path
from pomona.data.dataset import Dataset
from pomona.data.formats import volumes
from pomona.data.kinds import ImageFolder, PublicImages

Labelled = list[tuple[Path, int]]  # (path, class index) of images

# Pictures and volumes that cannot be decoded; skipping them silently would leave a class
# incomplete.
UNREAD = {".npy", ".npz", ".jp2", ".heic", ".avif", ".svs"}
# From file managers and storage servers, as are all names that start with a dot.
TIDY = {"thumbs.db", "desktop.ini", "@eadir"}


@dataclass(frozen=True)
class FolderContents:
    """Contents of an image folder.

    Attributes:
        training, testing: images with their class indices.
        classes: class names.
        problems: one line for each problem to fix.
        notes: one line for each item that is skipped.
    """

    training: Labelled
    testing: Labelled
    classes: tuple[str, ...]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def survey(root: Path, classes: tuple[str, ...]) -> FolderContents:
    """List the images of a folder with one folder per class, optionally inside train/ with test/ or
    val/ beside it.

    Args:
        root: the folder.
        classes: class names if known in advance; else the names of the (training) folders.

    Raises:
        DataError: the folder cannot be read.
    """
    train = root / "train" if (root / "train").is_dir() else root
    beside = [root / part for part in ("val", "test") if train != root and (root / part).is_dir()]
    known = classes or tuple(dict.fromkeys(map(_class, folders(train))))
    problems = _loose(root) + _astray(root, {train, *beside}) if train != root else []
    labelled, notes = [], list[str]()
    for part in (train, *beside):
        found, wrong, skipped = _part(part, known, not classes and part == train)
        labelled.append(found)
        problems += wrong
        notes += skipped
    testing = labelled.pop() if beside else []
    training = list(chain.from_iterable(labelled))
    return FolderContents(training, testing, known, tuple(problems), tuple(notes))


def _part(
    root: Path, classes: Sequence[str], complete: bool
) -> tuple[Labelled, list[str], list[str]]:
    """Return the images in a folder's class folders, the problems, and what is skipped; if
    ``complete``, each class needs an image.
    """
    numbers = {normalize("NFC", name): k for k, name in enumerate(classes)}
    labelled: Labelled = []
    problems, notes = _loose(root), list[str]()
    for folder in folders(root):
        number = numbers.get(_class(folder))
        if number is None:
            problems.append(
                f"{folder}: no such class among the training images; {near(folder.name, classes)}"
            )
            continue
        found = images(folder)
        labelled += [(path, number) for path in found]
        if complete and not found:
            problems.append(
                f"{folder}: no image in it, so no class; remove it, or put its images there"
            )
        unread, other = _others(folder)
        problems += unread
        notes += other
    return labelled, problems, notes


def _class(folder: Path) -> str:
    """Return a folder's class: its name in NFC, as for labels, since some systems store names
    decomposed.
    """
    return normalize("NFC", folder.name)


def is_image(path: Path) -> bool:
    """Return whether a file name has the suffix of an image or volume."""
    return path.suffix.lower() in image_stack.PICTURES or volumes.is_volume(path)


def folders(root: Path) -> list[Path]:
    """Return a folder's subfolders in alphabetical order, without hidden ones."""
    with reading(root):
        return sorted(path for path in root.iterdir() if path.is_dir() and not _hidden(path.name))


def images(root: Path) -> list[Path]:
    """Return the images below a folder, sorted by path."""
    return [path for path in _files(root) if is_image(path)]


def _files(root: Path) -> list[Path]:
    """Return the files below a folder, sorted by path, without hidden ones and those of hidden
    folders.
    """
    paths = (path for path in root.rglob("*") if not path.is_dir())
    return sorted(p for p in paths if not any(map(_hidden, p.relative_to(root).parts)))


def _hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in TIDY


def _loose(root: Path) -> list[str]:
    """Report images that lie beside the class folders."""
    with reading(root):
        files = [path for path in root.iterdir() if not _hidden(path.name)]
    names = sorted(p.name for p in files if is_image(p) or p.suffix.lower() in UNREAD)
    if not names:
        return []
    where = "beside train/, so in no class" if (root / "train").is_dir() else "in no class"
    return [
        (
            f"{root}: {len(names)} images lie {where} ({listed(names, 3)}); put them into class "
            "folders, or away"
        )
    ]


def _astray(root: Path, parts: set[Path]) -> list[str]:
    """Report each folder with images beside train/ that is not a known split."""
    odd = [folder for folder in folders(root) if folder not in parts and images(folder)]
    return [f"{folder}: neither train, val nor test; rename it, or put it away" for folder in odd]


def _others(folder: Path) -> tuple[list[str], list[str]]:
    """Report files of a class that are not read: unsupported pictures (problems), and other files
    (notes).
    """
    files = [path for path in _files(folder) if not is_image(path)]
    lines: tuple[list[str], list[str]] = ([], [])
    for suffix, group in groupby(sorted(files, key=_kind), key=_kind):
        names = sorted(str(path.relative_to(folder)) for path in group)
        kind = suffix or "without a suffix"
        are = "file {} is" if len(names) == 1 else "files {} are"
        line = f"{folder}: {len(names)} {are.format(kind)} not read ({listed(names, 3)})"
        if suffix in UNREAD:
            lines[0].append(f"{line}; convert them to PNG, or put them away")
        else:
            lines[1].append(line)
    return lines


def _kind(path: Path) -> str:
    """Return the suffix of a file, ignoring .gz."""
    return Path(path.stem).suffix.lower() if path.suffix.lower() == ".gz" else path.suffix.lower()


def read(settings: ImageFolder) -> Dataset:
    """Read own images: one folder per class, optionally inside train/ with test/ or val/ beside it.

    If both test/ and val/ exist, validation images become training images. All images must have the
    same size unless ``resize`` is set. All are read in colour if any image has colour.

    Raises:
        DataError: all problems with folders and files, reported together.
    """
    root = own_path(settings)
    if (root / "val" / "val_annotations.txt").exists():
        return _tiny(root, str(root), settings)
    return _dataset(str(root), survey(root, settings.classes), settings)


def tiny_imagenet(settings: PublicImages) -> Dataset:
    """Read Tiny-ImageNet-200: training images by class folder, the annotated validation images for
    testing.
    """
    return _tiny(locate(settings).parent.parent, "tiny-imagenet", settings)


def _tiny(root: Path, name: str, settings: ImageFolder | PublicImages) -> Dataset:
    classes = tuple(folder.name for folder in folders(root / "train"))
    notes = root / "val" / "val_annotations.txt"
    index = {label: i for i, label in enumerate(classes)}
    testing: Labelled = []
    with reading(notes):
        lines = files.text(file(notes), files.LONG).splitlines()
    for line, cells in enumerate((text.split("\t") for text in lines if text), start=1):
        if len(cells) < 2 or cells[1] not in index:
            raise DataError(
                f"{notes}, line {line}: no file name and known class in {cells[:2]}; fetch it again"
            )
        testing.append((notes.parent / "images" / cells[0], index[cells[1]]))
    training = [
        (path, k) for k, label in enumerate(classes) for path in images(root / "train" / label)
    ]
    return _dataset(name, FolderContents(training, testing, classes), settings)


def _dataset(name: str, found: FolderContents, settings: ImageFolder | PublicImages) -> Dataset:
    if not found.training and not found.problems:
        raise DataError(
            f"{name} has no training images; make a folder for each class and put its images there"
        )
    labelled = found.training + found.testing
    stack = image_stack.stacked(name, [path for path, _ in labelled], settings, found.problems)
    y = np.array([label for _, label in labelled], np.int64)[stack.kept]
    n_train = int((stack.kept < len(found.training)).sum())
    shift, scale = image_arrays.usual(stack.x)
    notes = (*found.notes, *stack.notes)
    return Dataset(
        name,
        "image",
        stack.x,
        y,
        found.classes,
        n_train,
        shift,
        scale,
        notes=notes,
        spacings=stack.spacings,
        orientation=stack.orientation,
    )

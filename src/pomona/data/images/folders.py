"""Images in folders: CLASS/*, SITE/CLASS/*, with folders of patients, and train/, val/ and test/.

Also Tiny-ImageNet's own layout.
"""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from unicodedata import normalize

import numpy as np

from pomona.core import files
from pomona.core.errors import ConfigError, DataError, listed, near
from pomona.data import targets
from pomona.data.array_file import file, reading
from pomona.data.axes import Pictures, PublicImages
from pomona.data.catalogue import locate, own_path
from pomona.data.dataset import Dataset, Owners
from pomona.data.formats import volumes
from pomona.data.formats.dicom_header import is_dicom
from pomona.data.images import folder_levels, image_arrays, image_stack, other_formats, patients

TRAIN, VALIDATION, TEST = 0, 1, 2
PARTS = {"train": TRAIN, "val": VALIDATION, "test": TEST}
# From file managers and storage servers, as are all names that start with a dot.
VAL_TRAINS = "images of val/ are used for training, since there is test/ (but not with sites)"
TIDY = {"thumbs.db", "desktop.ini", "@eadir"}


class ImageRow(NamedTuple):
    """An image with its class, part, site and patient."""

    path: Path
    label: int
    part: int = TRAIN
    site: str = ""
    patient: str = ""


class FoundFile(NamedTuple):
    """A file: the names of its folders without that of its part, its part (-1 outside of parts),
    and whether it is read.
    """

    path: Path
    folders: tuple[str, ...]
    part: int
    is_read: bool


@dataclass(frozen=True)
class FolderContents:
    """Contents of an image folder: images for training first, then for testing.

    Attributes:
        root: the folder.
        rows: images.
        classes: class names.
        problems: one line for each problem to fix.
        notes: one line for each item that is skipped or interpreted.
    """

    root: Path
    rows: tuple[ImageRow, ...]
    classes: tuple[str, ...]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def survey(
    root: Path, classes: tuple[str, ...], levels: folder_levels.Levels = ()
) -> FolderContents:
    """List the images of a folder with their classes, and sites, parts and patients if it has them.

    Args:
        root: the folder.
        classes: class names if known in advance; else the names of the (training) folders.
        levels: the meaning of the levels of folders; by themselves if empty.

    Raises:
        DataError: the folder cannot be read, or its levels have no clear meaning.
    """
    found, tops = _walked(root)
    images = [item for item in found if item.is_read and item.part >= 0]
    problems = _outside(root, found)
    placed = [item for item in images if item.folders]
    automatic = not levels
    levels = levels or folder_levels.levels(root, {item.folders for item in placed}, classes)
    at = {level: levels.index(level) for level in levels}
    least = max(at["class"], at.get("site", 0)) + 1
    if shallow := [item.path for item in placed if len(item.folders) < least]:
        problems.append(
            f"{root}: {len(shallow)} images lie above the folders of data.folders = {list(levels)} "
            f"({_names(root, shallow)}); put them into those folders"
        )
    placed = [item for item in placed if len(item.folders) >= least]
    names = [normalize("NFC", item.folders[at["class"]]) for item in placed]
    labels = {name for name, item in zip(names, placed, strict=True) if item.part != TEST}
    if levels[0] == "class" and not classes:
        with_images = {(item.part, item.folders[0]) for item in placed}
        for folder, name, part in tops:
            if part in {TRAIN, VALIDATION} and (part, name) not in with_images:
                problems.append(
                    f"{folder}: no image in it, so no class; remove it, or put its images there"
                )
    classes = classes or tuple(sorted(labels))
    numbers = {normalize("NFC", name): k for k, name in enumerate(classes)}
    unknown = {
        name: item.path.parent
        for name, item in zip(names, placed, strict=True)
        if name not in numbers
    }
    problems += [
        f"{folder}: no such class among the training images; {near(name, classes)}"
        for name, folder in unknown.items()
    ]
    rows = [
        ImageRow(
            item.path,
            numbers[name],
            item.part,
            normalize("NFC", item.folders[at["site"]]) if "site" in at else "",
            "/".join(item.folders[at["patient"] : at["patient"] + 1]) if "patient" in at else "",
        )
        for item, name in zip(placed, names, strict=True)
        if name in numbers
    ]
    rows.sort(key=lambda row: (row.part == TEST, row.part if "site" not in at else 0))
    unread, notes = _others(root, [item for item in found if not item.is_read and item.folders])
    meaning = _meaning(levels, automatic, rows, classes)
    return FolderContents(root, tuple(rows), classes, (*problems, *unread), (*meaning, *notes))


def is_image(path: Path) -> bool:
    """Return whether a file is an image or volume by its suffix; DICOM without one by content."""
    suffix = path.suffix.lower()
    if suffix in volumes.COMPANIONS:
        return not path.with_suffix(volumes.COMPANIONS[suffix]).exists() and volumes.is_volume(path)
    if suffix in image_stack.PICTURES or volumes.is_volume(path):
        return True
    return (not suffix or suffix[1:].isdigit()) and is_dicom(path)


def folders(root: Path) -> list[Path]:
    """Return a folder's subfolders in alphabetical order, without hidden ones."""
    with reading(root):
        return sorted(path for path in root.iterdir() if path.is_dir() and not _hidden(path.name))


def _hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in TIDY


def _walked(root: Path) -> tuple[list[FoundFile], list[tuple[Path, str, int]]]:
    """Return the files below a folder, sorted by part and path, and its outermost folders (of each
    part) with their name and part.
    """
    tree = dict(_folders(root))
    outer = [names for names in tree if len(names) == 1 and _any_file(tree, names)]
    position = None
    if ("train",) in tree:
        position = 0
    elif outer and all((*names, "train") in tree for names in outer):
        position = 1
    tested = position is not None and any(n[position : position + 1] == ("test",) for n in tree)
    parts = PARTS if tested else {**PARTS, "val": TEST}

    def placed(names: tuple[str, ...]) -> tuple[tuple[str, ...], int]:
        if position is None or not names:
            return names, TRAIN if position is None else -1
        part = parts.get(names[position], -1) if len(names) > position else -1
        return (*names[:position], *names[position + 1 :]), part

    found = [
        FoundFile(path, *placed(names), is_image(path))
        for names, paths in tree.items()
        for path in paths
    ]
    tops = []
    for names in tree:
        inside, part = placed(names)
        if len(inside) == 1:
            tops.append((root.joinpath(*names), inside[0], part))
    return sorted(found, key=lambda item: item.path), sorted(tops)


def _any_file(tree: dict[tuple[str, ...], list[Path]], names: tuple[str, ...]) -> bool:
    return any(paths and other[: len(names)] == names for other, paths in tree.items())


def _folders(root: Path) -> Iterator[tuple[tuple[str, ...], list[Path]]]:
    """Yield the names and files of a folder and of all below it, without hidden ones."""
    seen = set()
    with reading(root):
        for folder, inner, names in os.walk(root, onerror=_raise, followlinks=True):
            real = os.path.realpath(folder)
            inner[:] = sorted(name for name in inner if not _hidden(name) and real not in seen)
            if real not in seen:  # else a link to a folder above
                seen.add(real)
                path = Path(folder)
                kept = [path / name for name in names if not _hidden(name)]
                yield path.relative_to(root).parts, kept


def _raise(fault: OSError) -> None:
    raise fault


def _names(root: Path, paths: Sequence[Path]) -> str:
    return listed(sorted(str(path.relative_to(root)) for path in paths), 3)


def _outside(root: Path, found: Sequence[FoundFile]) -> list[str]:
    """Report images outside of class folders, and of train/, val/ and test/ if there are such."""
    loose: dict[Path, list[Path]] = defaultdict(list)
    astray: set[Path] = set()
    for item in found:
        if not (item.is_read or other_formats.kind_of(item.path)):
            continue
        if not item.folders:
            loose[item.path.parent].append(item.path)
        elif item.part < 0 and item.is_read:
            astray.add(root / item.path.relative_to(root).parts[0])
    return [
        *(
            f"{folder}: {len(paths)} images lie "
            f"{'outside of train/, so ' if (folder / 'train').is_dir() else ''}in no class "
            f"({_names(folder, paths)}); put them into class folders, or away"
            for folder, paths in loose.items()
        ),
        *(
            f"{folder}: neither train, val nor test; rename it, or put it away"
            for folder in sorted(astray)
        ),
    ]


def _others(root: Path, found: Sequence[FoundFile]) -> tuple[list[str], list[str]]:
    """Report files that are not read, by folder and suffix: unreadable images (problems), and other
    files (notes).
    """
    groups: dict[tuple[Path, str], list[Path]] = defaultdict(list)
    for item in found:
        depth = len(item.path.relative_to(root).parts) - len(item.folders)
        folder = root.joinpath(*item.path.relative_to(root).parts[:depth])
        suffix = Path(item.path.name.lower().removesuffix(".gz")).suffix
        if item.path.suffix.lower() not in volumes.COMPANIONS:
            groups[folder, suffix].append(item.path)
    problems, notes = [], []
    for (folder, suffix), paths in sorted(groups.items()):
        several = "file {} is" if len(paths) == 1 else "files {} are"
        line = (
            f"{folder}: {len(paths)} {several.format(suffix or 'without a suffix')} not read "
            f"({_names(folder, paths)})"
        )
        if kind := other_formats.BY_SUFFIX.get(suffix):
            problems.append(f"{line}: {kind[0]}; {kind[1]}, or put it away")
        else:
            notes.append(line)
    return problems, notes


def _meaning(
    levels: folder_levels.Levels,
    automatic: bool,
    rows: Sequence[ImageRow],
    classes: Sequence[str],
) -> list[str]:
    """Return how folders are interpreted, and which classes sites lack."""
    if "site" not in levels:
        return [VAL_TRAINS] if any(row.part == VALIDATION for row in rows) else []
    held: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        held[row.site].add(row.label)
    notes = []
    if automatic:
        notes.append(
            f"folders are SITE/CLASS, since they hold folders of the same names: clients "
            f"{listed(sorted(held), 6)}; classes {listed(list(classes), 6)} (else set "
            "data.folders = ['class', 'patient'], or others)"
        )
    for site in sorted(held):
        lacking = [name for k, name in enumerate(classes) if k not in held[site]]
        if lacking:
            notes.append(f"{site} has no images of {listed(lacking, 6)}")
    return notes


def read(settings: Pictures) -> Dataset:
    """Read own images in folders of classes, of sites with classes, or of patients inside classes;
    each optionally inside train/ with test/ or val/ next to it.

    Sites are clients. Without sites, if both test/ and val/ exist, validation images become
    training images. All images must have the same size unless ``resize`` is set. All are read in
    colour if any image has colour.

    Raises:
        ConfigError: levels without a class.
        DataError: all problems with folders and files, reported together.
    """
    root = own_path(settings)
    levels: folder_levels.Levels = getattr(settings, "folders", ())
    if levels and (levels.count("class") != 1 or max(map(levels.count, ("site", "patient"))) > 1):
        raise ConfigError(
            f"data.folders = {list(levels)}: name one level class, site and patient at most once"
        )
    if (root / "val" / "val_annotations.txt").exists():
        return _tiny(root, str(root), settings)
    return _dataset(str(root), survey(root, settings.classes, levels), settings)


def tiny_imagenet(settings: PublicImages) -> Dataset:
    """Read Tiny-ImageNet-200: training images by class folder, the annotated validation images for
    testing.
    """
    return _tiny(locate(settings).parent.parent, "tiny-imagenet", settings)


def _tiny(root: Path, name: str, settings: Pictures | PublicImages) -> Dataset:
    classes = tuple(folder.name for folder in folders(root / "train"))
    notes = root / "val" / "val_annotations.txt"
    index = {label: i for i, label in enumerate(classes)}
    testing = []
    with reading(notes):
        lines = files.text(file(notes), files.LONG).splitlines()
    for line, cells in enumerate((text.split("\t") for text in lines if text), start=1):
        if len(cells) < 2 or cells[1] not in index:
            raise DataError(
                f"{notes}, line {line}: no file name and known class in {cells[:2]}; fetch it again"
            )
        testing.append(ImageRow(notes.parent / "images" / cells[0], index[cells[1]], TEST))
    training = [
        ImageRow(item.path, k)
        for k, label in enumerate(classes)
        for item in _walked(root / "train" / label)[0]
        if item.is_read
    ]
    return _dataset(name, FolderContents(root, (*training, *testing), classes), settings)


def _dataset(name: str, contents: FolderContents, settings: Pictures | PublicImages) -> Dataset:
    rows = contents.rows
    if not contents.problems and not any(row.part == TRAIN for row in rows):
        raise DataError(
            f"{name} has no training images; make a folder for each class and put its images there"
        )
    stack = image_stack.stacked(name, [row.path for row in rows], settings, contents.problems)
    rows = tuple(rows[k] for k in stack.kept)
    n_train = sum(row.part != TEST for row in rows)
    owners = None
    if any(row.site for row in rows):
        sites, number = targets.numbered([row.site for row in rows])
        owners = Owners(sites, number, np.array([row.part for row in rows], np.int8))
    paths = [row.path.relative_to(contents.root).as_posix() for row in rows]
    groups, notes = patients.grouped(
        [row.patient for row in rows], stack.patients, paths, owners, n_train
    )
    return Dataset(
        name,
        "image",
        stack.x,
        np.array([row.label for row in rows], np.int64),
        contents.classes,
        n_train,
        *image_arrays.usual(stack.x),
        owners=owners,
        groups=groups,
        notes=(
            *contents.notes,
            *stack.notes,
            *notes,
            *_patients_as_classes([row.label for row in rows], stack.patients),
        ),
        spacings=stack.spacings,
        orientation=stack.orientation,
    )


def _patients_as_classes(labels: Sequence[int], headers: Sequence[str]) -> list[str]:
    """Remark on folders that seem to be patients rather than classes, as in an archive's export."""
    pairs = {*zip(labels, headers, strict=True)}
    single = len(pairs) == len({*labels}) == len({*headers} - {""})
    if not single or not 1 < len(pairs) < len(labels):
        return []
    return [
        "each class folder has the files of one patient (PatientID): if folders are patients, set "
        "data.path to a table with the columns path (of an image, or a folder with a series) and "
        "label"
    ]

"""Images in folders: CLASS/*, SITE/CLASS/*, with folders of patients, and train/, val/ and test/.

Also the layouts of Tiny-ImageNet and of the Medical Segmentation Decathlon.
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
from pomona.data.array_file import file, reading
from pomona.data.axes import Pictures, PublicImages
from pomona.data.catalogue import locate, own_path
from pomona.data.dataset import Dataset
from pomona.data.formats import image_formats, unread
from pomona.data.images import folder_levels, image_rows, manifest
from pomona.data.images.folder_levels import Levels
from pomona.data.images.image_rows import TEST, TRAIN, VALIDATION, ImageRows

ROLES = {"train": TRAIN, "val": VALIDATION, "test": TEST}
OUTSIDE = -1  # of train/, val/ and test/
# From file managers and storage servers, as are all names that start with a dot.
TIDY = {"thumbs.db", "desktop.ini", "@eadir"}
Names = tuple[str, ...]


class FolderFile(NamedTuple):
    """A file: the names of its folders without train/, val/ or test/, and which of these has it."""

    path: Path
    folders: Names
    role: int
    is_image: bool


@dataclass(frozen=True)
class Tree:
    """A folder with all folders below it.

    Attributes:
        root: the folder.
        files: by the names of their folder.
        split_level: of the folders train/, val/ and test/; None without a train/.
    """

    root: Path
    files: dict[Names, list[Path]]
    split_level: int | None

    @classmethod
    def of(cls, root: Path) -> "Tree":
        """List a folder. Raises DataError if it cannot be read."""
        tree = dict(_folders(root))
        filled = {names[0] for names, paths in tree.items() if names and paths}
        level = 0 if ("train",) in tree else None
        if level is None and filled and all((name, "train") in tree for name in filled):
            level = 1
        return cls(root, tree, level)

    def split(self, names: Names) -> tuple[Names, int]:
        """Return a folder's names without that of train/, val/ or test/, and the role of that."""
        level = self.split_level
        if level is None:
            return names, TRAIN
        tested = any(other[level : level + 1] == ("test",) for other in self.files)
        roles = ROLES if tested else {**ROLES, "val": TEST}
        role = roles.get(names[level], OUTSIDE) if len(names) > level else OUTSIDE
        return (*names[:level], *names[level + 1 :]), role


def read(settings: Pictures) -> Dataset:
    """Read own images in folders of classes, of sites with classes, or of patients inside classes;
    each optionally inside train/ with test/ or val/ next to it. A folder with a dataset.json is
    read as that lists it.

    Sites are clients. All images must have the same size unless ``resize`` is set. All are read in
    colour if any image has colour.

    Raises:
        ConfigError: levels without a class.
        DataError: all problems with folders and files, reported together.
    """
    root = own_path(settings)
    for path in (root, root / "dataset.json"):
        if path.suffix == ".json" and path.is_file():
            return manifest.decathlon(path, settings)
    levels: Levels = getattr(settings, "folders", ())
    if levels and (levels.count("class") != 1 or max(map(levels.count, ("site", "patient"))) > 1):
        raise ConfigError(
            f"data.folders = {list(levels)}: name one level class, site and patient at most once"
        )
    if (root / "val" / "val_annotations.txt").exists():
        return _tiny(root, str(root), settings)
    rows, problems = _rows(root, settings.classes, levels)
    return image_rows.dataset(rows, settings, problems)


def tiny_imagenet(settings: PublicImages) -> Dataset:
    """Read Tiny-ImageNet-200: training images by class folder, the annotated validation images for
    testing.
    """
    return _tiny(locate(settings).parent.parent, "tiny-imagenet", settings)


def _tiny(root: Path, name: str, settings: Pictures | PublicImages) -> Dataset:
    tree = Tree.of(root / "train")
    images = sorted(p for paths in tree.files.values() for p in paths if image_formats.is_image(p))
    names = [path.relative_to(tree.root).parts[0] for path in images]
    classes = tuple(sorted(n for n, *deeper in filter(None, tree.files) if not deeper))
    notes = root / "val" / "val_annotations.txt"
    with reading(notes):
        lines = files.text(file(notes), files.LONG).splitlines()
    training = len(images)
    for line, cells in enumerate((text.split("\t") for text in lines if text), start=1):
        if len(cells) < 2 or cells[1] not in classes:
            raise DataError(
                f"{notes}, line {line}: no file name and known class in {cells[:2]}; fetch it again"
            )
        images.append(notes.parent / "images" / cells[0])
        names.append(cells[1])
    y = np.array([classes.index(name) for name in names], np.int64)
    roles = [TRAIN if k < training else TEST for k in range(len(images))]
    return image_rows.dataset(ImageRows(name, root, images, roles, y, classes), settings)


def _rows(root: Path, classes: Names, levels: Levels) -> tuple[ImageRows, list[str]]:
    """Return the images of a folder with their classes, and clients, roles and patients if it has
    them; and its problems.

    Args:
        root: the folder.
        classes: class names if known in advance; else the names of the (training) folders.
        levels: the meaning of the levels of folders; by themselves if empty.

    Raises:
        DataError: the folder cannot be read, or its levels have no clear meaning.
    """
    tree = Tree.of(root)
    every = sorted(
        FolderFile(path, *tree.split(names), image_formats.is_image(path))
        for names, paths in tree.files.items()
        for path in paths
    )
    images = [item for item in every if item.is_image and item.role != OUTSIDE and item.folders]
    automatic = not levels
    levels = levels or folder_levels.levels(root, {item.folders for item in images}, classes)
    at = {level: levels.index(level) for level in levels}
    least = max(at["class"], at.get("site", 0)) + 1
    problems = _outside(root, every)
    if shallow := [item.path for item in images if len(item.folders) < least]:
        problems.append(
            f"{root}: {len(shallow)} images lie above the folders of data.folders = {list(levels)} "
            f"({_names(root, shallow)}); put them into those folders"
        )
    images = [item for item in images if len(item.folders) >= least]
    labels = [normalize("NFC", item.folders[at["class"]]) for item in images]
    if levels[0] == "class" and not classes:
        problems += _empty(tree, {(item.folders[0], item.role) for item in images})
    classes = classes or tuple(
        sorted({n for n, item in zip(labels, images, strict=True) if item.role != TEST})
    )
    numbers = {normalize("NFC", name): k for k, name in enumerate(classes)}
    unknown = {
        name: item.path.parent
        for name, item in zip(labels, images, strict=True)
        if name not in numbers
    }
    problems += [
        f"{folder}: no such class among the training images; {near(name, classes)}"
        for name, folder in unknown.items()
    ]
    unread_problems, notes = _unread(root, every)
    clients = _level(images, at.get("site"))
    y = np.array([numbers.get(name, 0) for name in labels], np.int64)
    rows = ImageRows(
        str(root),
        root,
        [item.path for item in images],
        [item.role for item in images],
        y,
        classes,
        clients=clients,
        folders=_level(images, at.get("patient")),
        notes=(
            *(_meaning(levels, clients, classes) if automatic else ()),
            *_lacking(clients, y.tolist(), classes),
            *notes,
        ),
    )
    return rows, [*problems, *unread_problems]


def _level(images: Sequence[FolderFile], level: int | None) -> list[str]:
    """Return the folder of each image at a level, empty for images above it; none without one."""
    if level is None:
        return []
    return [normalize("NFC", "".join(item.folders[level : level + 1])) for item in images]


def _folders(root: Path) -> Iterator[tuple[Names, list[Path]]]:
    """Yield the names and files of a folder and of all below it, without hidden ones."""
    seen = set()
    with reading(root):
        for folder, inner, names in os.walk(root, onerror=_raise, followlinks=True):
            real = os.path.realpath(folder)
            inner[:] = sorted(name for name in inner if not _hidden(name) and real not in seen)
            if real not in seen:  # else a link to a folder above
                seen.add(real)
                path = Path(folder)
                yield (
                    path.relative_to(root).parts,
                    [path / name for name in names if not _hidden(name)],
                )


def _raise(fault: OSError) -> None:
    raise fault


def _hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in TIDY


def _names(root: Path, paths: Sequence[Path]) -> str:
    return listed(sorted(str(path.relative_to(root)) for path in paths), 3)


def _outside(root: Path, every: Sequence[FolderFile]) -> list[str]:
    """Report images outside of class folders, and of train/, val/ and test/ if there are such."""
    problems = []
    for folder in sorted({item.path.parent for item in every if not item.folders}):
        paths = [item.path for item in every if item.path.parent == folder and item.is_image]
        if paths:
            problems.append(
                f"{folder}: {len(paths)} images lie in no class ({_names(folder, paths)}); put "
                "them into class folders, or away"
            )
    astray = {
        root / item.path.relative_to(root).parts[0]
        for item in every
        if item.role == OUTSIDE and item.is_image and item.folders
    }
    return problems + [
        f"{folder}: neither train, val nor test; rename it, or put it away"
        for folder in sorted(astray)
    ]


def _empty(tree: Tree, filled: set[tuple[str, int]]) -> list[str]:
    """Report outermost folders without images, which would be classes."""
    splits = {names: tree.split(names) for names in sorted(tree.files)}
    return [
        f"{tree.root.joinpath(*names)}: no image in it, so no class; remove it, or put its images "
        "there"
        for names, (inside, role) in splits.items()
        if len(inside) == 1 and role in {TRAIN, VALIDATION} and (inside[0], role) not in filled
    ]


def _unread(root: Path, every: Sequence[FolderFile]) -> tuple[list[str], list[str]]:
    """Report files that are not read, by suffix: images (problems), and others (notes)."""
    groups: dict[str, list[Path]] = defaultdict(list)
    for item in every:
        if not item.is_image and not image_formats.is_companion(item.path):
            groups[Path(item.path.name.lower().removesuffix(".gz")).suffix].append(item.path)
    problems, notes = [], []
    for suffix, paths in sorted(groups.items()):
        line = (
            f"{root}: {len(paths)} files {suffix or 'without a suffix'} are not read "
            f"({_names(root, paths)})"
        )
        if text := unread.BY_SUFFIX.get(suffix):
            problems.append(f"{line}: {text}, or put it away")
        elif any(path.parent != root for path in paths):  # not a licence or list at the top
            notes.append(line)
    return problems, notes


def _meaning(levels: Levels, clients: Sequence[str], classes: Names) -> list[str]:
    """Return how folders in folders are interpreted, and the setting for another meaning."""
    if len(levels) < 2:
        return []
    shown = "/".join(levels).upper()
    if "site" in levels:
        return [
            f"folders are {shown}, since they hold folders of the same names: clients "
            f"{listed(sorted({*clients}), 6)}, classes {listed(classes, 6)}; for patients inside "
            "classes set data.folders = ['class', 'patient']"
        ]
    return [
        f"folders are {shown}, by the names of the inner ones; for sites with classes set "
        "data.folders = ['site', 'class']"
    ]


def _lacking(clients: Sequence[str], y: Sequence[int], classes: Names) -> list[str]:
    """Return which classes sites lack."""
    present = {*zip(clients, y, strict=False)}
    notes = []
    for client in sorted({*clients}):
        lacking = [name for k, name in enumerate(classes) if (client, k) not in present]
        if lacking:
            notes.append(f"{client} has no images of {listed(lacking, 6)}")
    return notes

"""Images in folders: CLASS/*, SITE/CLASS/*, with folders of patients, and train/, val/ and test/.

Also the layouts of Tiny-ImageNet and of the Medical Segmentation Decathlon.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unicodedata import normalize

import numpy as np

from pomona.core import files
from pomona.core.errors import ConfigError, DataError, listed, suggestion
from pomona.data.array_file import file, reading
from pomona.data.axes import Pictures, PublicImages
from pomona.data.catalogue import locate, own_path
from pomona.data.dataset import Dataset
from pomona.data.formats import image_formats, unread
from pomona.data.images import folder_levels, image_rows, manifest, patients
from pomona.data.images.folder_levels import Level, Levels
from pomona.data.images.image_rows import TEST, TRAIN, VALIDATION, ImageRows

ROLES = {"train": TRAIN, "val": VALIDATION, "test": TEST}
ROLE_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
OUTSIDE = -1  # of train/, val/ and test/
# From file managers and storage servers, as are all names that start with a dot.
TIDY = {"thumbs.db", "desktop.ini", "@eadir", "__macosx"}
Names = tuple[str, ...]


class FolderFile(NamedTuple):
    """A file: the names of its folders without train/, val/ or test/, and which of these has it."""

    path: Path
    folders: Names
    role: int
    is_image: bool

    @property
    def is_inside(self) -> bool:
        """Whether it is an image in a folder that is read."""
        return self.is_image and self.role != OUTSIDE and bool(self.folders)


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
    if not root.is_dir() or root.suffix.lower() == ".zarr":
        text = unread.BY_SUFFIX.get(root.suffix.lower(), "not a folder")
        raise DataError(f"{root} is {text}; give the folder of the classes, or {manifest.TABLE}")
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
    rows, problems = _rows(root / "train", (), ("class",))
    notes = root / "val" / "val_annotations.txt"
    with reading(notes):
        lines = files.text(file(notes), files.MAX_LOG_BYTES).splitlines()
    cells = [text.split("\t") for text in lines if text]
    for number, line in enumerate(cells, start=1):
        if len(line) < 2 or line[1] not in rows.classes:
            raise DataError(
                f"{notes}, line {number}: {line[:2]} is not a file and a class; fetch it again"
            )
    labels = [rows.classes.index(label) for _, label, *_ in cells]
    tiny = replace(
        rows,
        name=name,
        root=root,
        paths=[*rows.paths, *(notes.parent / "images" / image for image, *_ in cells)],
        roles=[*rows.roles, *(TEST for _ in cells)],
        y=np.concatenate([rows.y, np.array(labels, np.int64)]),
    )
    return image_rows.dataset(tiny, settings, problems)


def _rows(root: Path, classes: Names, levels: Levels) -> tuple[ImageRows, list[str]]:
    """Return the images of a folder with their classes, and clients, roles and patients if it has
    them; and its problems.

    Args:
        root: the folder.
        classes: class names if known in advance; else the names of the (training) folders.
        levels: the meaning of the levels of folders; by themselves if empty.

    Raises:
        DataError: the folder cannot be read, has no training images, or its levels have no clear
            meaning.
    """
    folders, every = _files(root)
    automatic = not levels
    levels = levels or folder_levels.levels(
        root, {item.folders for item in every if item.is_inside}, classes
    )
    images = _images(every, levels)
    paths, roles = [item.path for item in images], [item.role for item in images]
    labels, clients = _level(images, levels, "class"), _level(images, levels, "site")
    unread_problems, notes = _unread_files(root, every)
    problems = [*_misplaced(root, every, levels), *unread_problems]
    if levels[0] == "class" and not classes:
        problems += _empty_classes(root, folders, images)
    classes, y = _numbered(labels, images, classes)
    problems += _unknown_classes(labels, images, classes)
    if not problems and TRAIN not in roles:
        raise DataError(
            f"{root} has no training images; make a folder for each class and put its images "
            "there; tables are read with data.name = 'table' (or --data table)"
        )
    rows = ImageRows(
        str(root),
        root,
        paths,
        roles,
        np.array(y, np.int64),
        classes,
        clients=clients,
        folders=_level(images, levels, "patient"),
        notes=(
            *(_meaning(levels, clients, classes) if automatic else ()),
            *_missing_classes(clients, y, classes),
            *_tested_on_validation(root, every),
            *patients.several_of_one(root, paths),
            *notes,
        ),
    )
    return rows, problems


def _required(levels: Levels) -> int:
    """Return how many folders an image must lie in: those of its class and site."""
    return 1 + max(k for k, level in enumerate(levels) if level in {"class", "site"})


def _images(every: Iterable[FolderFile], levels: Levels) -> list[FolderFile]:
    """Return the images that lie in folders of a class and of a site, as far as there are levels
    for them.
    """
    required = _required(levels)
    return [item for item in every if item.is_inside and len(item.folders) >= required]


def _numbered(
    labels: Sequence[str], images: Sequence[FolderFile], classes: Names
) -> tuple[Names, list[int]]:
    """Return the classes, by default those of images that are not for testing, and the number of
    each image's class; 0 for an unknown one.
    """
    pairs = zip(images, labels, strict=True)
    classes = classes or tuple(sorted({label for item, label in pairs if item.role != TEST}))
    numbers = {normalize("NFC", name): k for k, name in enumerate(classes)}
    return classes, [numbers.get(name, 0) for name in labels]


def _empty_classes(root: Path, folders: set[Path], images: Sequence[FolderFile]) -> list[str]:
    """Report folders of classes without an image."""
    filled = {_outer(root, item) for item in images}
    return [
        f"{root / name}: no image in it, so no class; remove it, or put its images there"
        for name in sorted(folders - filled)
    ]


def _unknown_classes(
    labels: Sequence[str], images: Sequence[FolderFile], classes: Names
) -> list[str]:
    """Report folders whose name is not a class of the training images."""
    names = {normalize("NFC", name) for name in classes}
    unknown = {n: i.path.parent for n, i in zip(labels, images, strict=True) if n not in names}
    return [
        f"{folder}: no such class among the training images; {suggestion(name, classes)}"
        for name, folder in unknown.items()
    ]


def _outer(root: Path, item: FolderFile) -> Path:
    """Return the outermost folder of a file below a folder, with that of train/ and the like."""
    names = item.path.relative_to(root).parts
    return Path(*names[: len(names) - len(item.folders)])


def _level(images: Sequence[FolderFile], levels: Levels, level: Level) -> list[str]:
    """Return the folder of each image at a level, empty for images above it; none without one."""
    if level not in levels:
        return []
    depth = levels.index(level)
    return [normalize("NFC", "".join(item.folders[depth : depth + 1])) for item in images]


def _files(root: Path) -> tuple[set[Path], list[FolderFile]]:
    """Return the outermost folders for training below a folder, and its files.

    Raises DataError if it cannot be read.
    """
    tree = dict(walk(root))
    level = _role_level(tree)
    if level is None:
        roles, inner = dict.fromkeys(tree, TRAIN), {names: names for names in tree}
    else:
        roles = _roles(tree, level)
        inner = _without_roles(roles, level)
    folders = {
        Path(*names)
        for names, role in roles.items()
        if len(inner[names]) == 1 and role in {TRAIN, VALIDATION}
    }
    return folders, sorted(
        FolderFile(path, inner[names], roles[names], image_formats.is_image(path))
        for names, paths in tree.items()
        for path in paths
    )


def _without_roles(roles: Mapping[Names, int], level: int) -> dict[Names, Names]:
    """Return the names of each folder without that of train/, val/ or test/ at a level, and without
    a second one like it: archives are often unpacked into a folder of their name, train/train/.
    """
    deep = [names for names, role in roles.items() if role != OUTSIDE and len(names) > level + 1]
    start = level + 1 + all(names[level] == names[level + 1] for names in deep)
    return {names: (*names[:level], *names[start:]) for names in roles}


def _roles(tree: Iterable[Names], level: int) -> dict[Names, int]:
    """Return the role of each folder, by train/, val/ and test/ at a level; without test/, val/ is
    for testing.
    """
    role_names = {names: _role(names[level]) for names in tree if len(names) > level}
    roles = ROLES if "test" in role_names.values() else {**ROLES, "val": TEST}
    return {names: roles.get(role_names.get(names, ""), OUTSIDE) for names in tree}


def _tested_on_validation(root: Path, every: Iterable[FolderFile]) -> list[str]:
    """Report that images for validation are for testing, where there are none for that."""
    tested = [item.path.relative_to(root).parts for item in every if item.role == TEST]
    names = {_role(name) for folders in tested for name in folders}
    note = "there is no folder test/: the images in val/ are for testing"
    return [note] * ("val" in names and "test" not in names)


def _role_level(tree: Mapping[Names, list[Path]]) -> int | None:
    """Return the level of train/, val/ and test/: outermost, or one below, in all folders there."""
    outer = {names[0] for names, paths in tree.items() if names and paths}
    training = {names[:-1] for names in tree if names and _role(names[-1]) == "train"}
    if () in training:
        return 0
    return 1 if outer and all((name,) in training for name in outer) else None


def _role(name: str) -> str:
    """Return train, val or test for a folder that is called so, or in another usual form."""
    return ROLE_NAMES.get(re.sub("[ _-]?(set|data|images)$", "", name.lower()), "")


def walk(root: Path) -> Iterator[tuple[Names, list[Path]]]:
    """Yield the names and files of a folder and of all below it, without hidden ones, in order.

    Raises DataError if it cannot be read.
    """
    visited = set()
    with reading(root):
        for folder, inner, names in os.walk(root, onerror=_raise, followlinks=True):
            real, path = os.path.realpath(folder), Path(folder)
            if real in visited:  # a link to a folder above
                inner.clear()
                continue
            visited.add(real)
            inner[:] = sorted(name for name in inner if not _hidden(name))
            yield path.relative_to(root).parts, [path / n for n in sorted(names) if not _hidden(n)]


def _raise(fault: OSError) -> None:
    raise fault


def _hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in TIDY


def _misplaced(root: Path, every: Sequence[FolderFile], levels: Levels) -> list[str]:
    """Report images outside of the folders for them: one line for each reason."""
    images = defaultdict[str, list[str]](list)
    for item in every:
        if location := _outside(item, levels):
            images[location].append(item.path.relative_to(root).as_posix())
    return [
        f"{root}: {len(names)} images lie {location} ({listed(names, 3)}); put them into class "
        f"folders, or elsewhere, or {manifest.TABLE}"
        for location, names in images.items()
    ]


def _unread_files(root: Path, every: Sequence[FolderFile]) -> tuple[list[str], list[str]]:
    """Report images in formats that are not read as problems, and other files as notes: one line
    for each suffix.
    """
    files_by_suffix, problems, notes = defaultdict[str, list[str]](list), list[str](), list[str]()
    for item in every:
        if not item.is_image and not image_formats.is_companion(item.path):
            suffix = Path(item.path.name.lower().removesuffix(".gz")).suffix
            files_by_suffix[suffix].append(item.path.relative_to(root).as_posix())
    for suffix, names in files_by_suffix.items():
        ending = suffix or "without a suffix"
        line = f"{root}: {len(names)} files {ending} are not read ({listed(names, 3)})"
        if text := unread.BY_SUFFIX.get(suffix):
            problems.append(f"{line}: {text}, or move it elsewhere")
        elif any("/" in name for name in names):  # no licence or list at the top
            notes.append(line)
    return problems, notes


def _outside(item: FolderFile, levels: Levels) -> str:
    """Return where an image lies that is in no folder for it; nothing for all other files."""
    if not item.is_image:
        return ""
    if not item.folders:
        return "in no class"
    if item.role == OUTSIDE:
        return "outside of train/, val/ and test/"
    if len(item.folders) < _required(levels):
        return f"above the folders of data.folders = {list(levels)}"
    return ""


def _meaning(levels: Levels, clients: Sequence[str], classes: Names) -> list[str]:
    """Return how folders in folders are interpreted, and the setting for another meaning."""
    pattern = "/".join(levels).upper()
    if "site" in levels:
        return [
            f"folders are {pattern}, since they hold folders of the same names: clients "
            f"{listed(sorted({*clients}), 6)}, classes {listed(classes, 6)}; for patients inside "
            "classes set data.folders = ['class', 'patient']"
        ]
    return [
        f"folders are {pattern}, by the names of the inner ones; for sites with classes set "
        "data.folders = ['site', 'class']"
    ] * (len(levels) > 1)


def _missing_classes(clients: Sequence[str], y: Sequence[int], classes: Names) -> list[str]:
    """Return which classes sites lack."""
    present = {*zip(clients, y, strict=False)}
    absent = {c: [n for k, n in enumerate(classes) if (c, k) not in present] for c in clients}
    return [
        f"{c} has no images of {listed(names, 6)}" for c, names in sorted(absent.items()) if names
    ]

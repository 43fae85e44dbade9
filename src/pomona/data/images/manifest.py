"""A list of images or volumes with label or mask, client and split: a table, or a dataset.json of
the Medical Segmentation Decathlon.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core import files
from pomona.core.bounds import SPLITS, parse, plain
from pomona.core.errors import ConfigError, DataError, listed, refuse, suggestion
from pomona.data import cell_values, targets
from pomona.data.array_file import file
from pomona.data.axes import ImageList, Pictures
from pomona.data.catalogue import own_path
from pomona.data.dataset import Dataset
from pomona.data.images import image_rows
from pomona.data.images.image_rows import ImageRows
from pomona.data.settings import Images
from pomona.data.tables import cells as table_cells
from pomona.data.tables import source

COLUMNS = ("path", "label", "mask", "client", "split", "group")
ALIKE = {"": "train", "val": "validation"}
TABLE = "write a table with the columns path and mask (or label), and set data.path to it"


@dataclass(frozen=True)
class Listing:
    """A list of images.

    Attributes:
        path: of the list.
        cells: by column, of n rows each.
        location: returns the location of a row, for messages.
        notes: remarks.
    """

    path: Path
    cells: dict[str, list[str]]
    location: Callable[[int], str]
    notes: tuple[str, ...] = ()

    def files(self, column: str, problems: Sequence[str]) -> tuple[list[Path], list[str]]:
        """Return each row's file, and the problems with those that are missing or outside the
        list's folder.
        """
        folder, problems = self.path.parent, [*problems]
        root = f"{_real(folder).rstrip('/')}/"
        for row, cell in enumerate(self.cells[column]):
            if not cell or "\0" in cell:
                problem = f"no {column}; every line needs one"
            elif not _real(folder / cell).startswith(root):
                problem = f"{cell!r} is not within the manifest's folder; put it there"
            elif not os.path.exists(folder / cell):  # noqa: PTH110 - False for too long a name
                problem = f"{plain(cell)!r} does not exist; correct the {column}"
            else:
                continue
            problems.append(f"{self.location(row)}: {problem}")
        return [folder / cell for cell in self.cells[column]], problems


def read(settings: ImageList) -> Dataset:
    """Read own images or volumes listed in a table: ``path``, ``label`` or ``mask``; optional
    client, split, group.

    Paths are relative to the file's folder and must stay inside it. ``split`` is train, validation
    or test; rows of one ``group`` (a patient) must have the same split and client, and stay
    together when rows are split; without that column, rows of one PatientID or BIDS subject do.
    With ``data.targets = "segmentation"`` masks are the targets (N, H, W) or (N, D, H, W) uint8,
    and ``data.classes`` gives the names of their values.

    Raises:
        DataError: all problems with the lines, or with the files they name, reported together.
        ConfigError: columns or settings that are incompatible.
    """
    listing = _table(file(own_path(settings)), settings)
    if settings.targets == "segmentation":
        return _dataset(listing, settings, settings.classes)
    column = targets.LabelColumn("label", listing.cells["label"], listing.location)
    (y, classes), problems = targets.from_cells([column], settings)
    return _dataset(listing, settings, classes, y, problems)


def decathlon(path: Path, settings: Pictures) -> Dataset:
    """Read the images and masks that a dataset.json of the Medical Segmentation Decathlon, or of
    MONAI, lists for training and validation; test images have no masks and are left out.

    Raises DataError for other content.
    """
    tree = parse(
        files.content(file(path), files.MAX_LOG_BYTES),
        lambda reason: DataError(f"{path}: {reason}; {TABLE}"),
        files.MAX_LOG_BYTES,
    )
    content = tree if isinstance(tree, dict) else {}
    lists = {key: content.get(key, []) for key in ("training", "validation", "test")}
    if not lists["training"] or {*map(type, lists.values())} != {list}:
        raise DataError(f"{path} has no lists 'training', 'validation' and 'test'; {TABLE}")
    training, validation = lists["training"], lists["validation"]
    pairs = [*training, *validation]
    if not all(map(_is_pair, pairs)):
        raise DataError(f"{path} lists no pairs of image and mask under 'training'; {TABLE}")
    cells = {
        "path": [item["image"] for item in pairs],
        "mask": [item["label"] for item in pairs],
        "split": ["train"] * len(training) + ["validation"] * len(validation),
    }
    untested = len(lists["test"])
    note = f"{path.name}: {untested} images for testing have no masks and are not read"
    listing = Listing(path, cells, lambda row: f"pair {row + 1}", (note,) if untested else ())
    return _dataset(listing, settings, settings.classes or _class_names(content.get("labels")))


def _is_pair(item: Any) -> bool:
    """Return whether an entry of a dataset.json names an image and its mask."""
    return isinstance(item, dict) and all(isinstance(item.get(k), str) for k in ("image", "label"))


def _class_names(labels: Any) -> tuple[str, ...]:
    """Return the classes by number from {"0": "background"}, or from {"background": 0}."""
    if not isinstance(labels, dict):
        return ()
    pairs = [(k, v) if str(k).isdigit() else (v, k) for k, v in labels.items()]
    names = {int(k): plain(str(name)) for k, name in pairs if str(k).isdigit()}
    return tuple(names[k] for k in sorted(names)) if sorted(names) == [*range(len(pairs))] else ()


def _dataset(
    listing: Listing,
    settings: Images,
    classes: tuple[str, ...],
    y: NDArray[np.generic] | None = None,
    problems: Sequence[str] = (),
) -> Dataset:
    """Read the listed images, with masks as targets if ``y`` is None."""
    if y is None and not classes:
        raise ConfigError(
            "data.targets = 'segmentation' needs names for the numbers in masks: set data.classes"
        )
    cells = listing.cells
    paths, problems = listing.files("path", problems)
    masks: Sequence[Path] = ()
    if y is None:
        masks, problems = listing.files("mask", problems)
    refuse(listing.path, sorted([*problems, *_problems(listing, paths)], key=_line))
    shared = [mask.name for mask, count in Counter(masks).items() if count > 1]
    note = (
        f"{len(shared)} masks belong to several images ({listed(shared, 3)}): if these are of one "
        "patient, keep them together by a column group"
    )
    rows = ImageRows(
        str(listing.path),
        listing.path.parent,
        paths,
        [SPLITS.index(split) for split in cells.get("split", [SPLITS[0]] * len(paths))],
        np.zeros(0, np.uint8) if y is None else y,
        classes,
        masks,
        cells.get("client", ()),
        cells.get("group", ()),
        notes=(*listing.notes, *[note] * (bool(shared) and "group" not in cells)),
    )
    return image_rows.dataset(rows, settings)


def _table(path: Path, settings: ImageList) -> Listing:
    """Read the table. Raises DataError or ConfigError if columns are missing or unknown."""
    (table,) = source.opened([path], settings.csv_form, header=True)
    if settings.targets == "survival":
        raise ConfigError("data.targets = 'survival' is for tables; images have a label or a mask")
    if unknown := [name for name in table.names if name not in COLUMNS]:
        raise DataError(f"{path} has the column {unknown[0]!r}; {suggestion(unknown[0], COLUMNS)}")
    if not len(table):
        raise DataError(f"{path} has no line below its header; add one for each image")
    _require_columns(path, table.names, "mask" if settings.targets == "segmentation" else "label")
    cells = {
        name: [_cell(name, cell) for cell in table_cells.texts(table.cells(k))]
        for k, name in enumerate(table.names)
    }
    return Listing(path, cells, table.location)


def _require_columns(path: Path, names: Sequence[str], target: str) -> None:
    """Raise DataError for a table without paths, or without its labels or masks."""
    if missing := [name for name in ("path", target) if name not in names]:
        masked = missing == ["label"] and "mask" in names
        remedy = '; or set data.targets = "segmentation"' if masked else ""
        raise DataError(f"{path} has no column {missing[0]!r}; add it{remedy}")


def _cell(column: str, cell: str) -> str:
    """Strip a cell; names and splits are also normalised for comparison."""
    if column == "split":
        split = cell.strip().lower()
        return ALIKE.get(split, split)
    return cell_values.name(cell) if column in {"client", "group"} else cell.strip()


def _problems(listing: Listing, paths: Sequence[Path]) -> Iterator[str]:
    """Return the problems of splits, clients and groups."""
    cells, location = listing.cells, listing.location
    for row, split in enumerate(cells.get("split", ())):
        if split not in SPLITS:
            yield f"{location(row)}: split {split!r}; say train, validation or test"
    if unnamed := [location(row) for row, name in enumerate(cells.get("client", ())) if not name]:
        yield f"{len(unnamed)} of {len(paths)} lines name no client, first {unnamed[0]}; name it"
    yield from _scattered(listing, "group", cells.get("group", ()))
    yield from _scattered(listing, "path", [_real(path) for path in paths])


def _line(problem: str) -> float:
    """Return the number of the line that a problem begins with; those of no line come last."""
    match = re.match(r"line (\d+)", problem)
    return int(match[1]) if match else inf


def _real(path: Path) -> str:
    """Return a path without links; unlike ``resolve`` it tolerates loops of them."""
    return os.path.realpath(path.as_posix().replace("\0", ""))


def _scattered(listing: Listing, column: str, keys: Sequence[str]) -> Iterator[str]:
    """Report each group or repeated image that has several splits or clients, or may have."""
    cells, location = listing.cells, listing.location
    rows: dict[str, int] = {}
    for row, key in enumerate(keys):
        if not key or (first := rows.setdefault(key, row)) == row:
            continue
        name = cells[column][first]
        for role in ("split", "client"):
            values = cells.get(role)
            if values and values[first] != values[row]:
                yield (
                    f"{column} {name} is in {role} {values[first]} ({location(first)}) and "
                    f"{values[row]} ({location(row)}); keep a {column} together"
                )
        if column == "path" and "split" not in cells:
            yield (
                f"{name!r} is in {location(first)} and {location(row)}, and rows are split at "
                "random; list it once, or add a split"
            )

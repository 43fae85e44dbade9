"""A CSV manifest: one line per image or volume, with its label or mask, client and split."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pomona.core.bounds import SPLITS, plain
from pomona.core.errors import ConfigError, DataError, near, refuse
from pomona.data import cell_values, targets
from pomona.data.array_file import file
from pomona.data.axes import ImageList
from pomona.data.catalogue import own_path
from pomona.data.dataset import Dataset, Owners, RowGroups
from pomona.data.images import image_arrays, image_stack, mask, patients
from pomona.data.settings import CsvForm
from pomona.data.tables import cells as table_cells
from pomona.data.tables import source
from pomona.data.tables.source import TableSource

COLUMNS = ("path", "label", "mask", "client", "split", "group")
ALIKE = {"": "train", "val": "validation"}
TEST = 2


@dataclass(frozen=True)
class ManifestRows:
    """The cells of a manifest by column, with test rows last, and each row's number in the file."""

    path: Path
    cells: dict[str, list[str]]
    table: TableSource
    order: list[int]

    def __len__(self) -> int:
        return len(self.order)

    def where(self, row: int) -> str:
        """Return the location of a row, for messages."""
        return self.table.where(self.order[row])


def read(settings: ImageList) -> Dataset:
    """Read own images or volumes listed in a CSV file: ``path``, ``label`` or ``mask``; optional
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
    found = _rows(file(own_path(settings)), settings.form)
    masks = settings.targets == "segmentation"
    _require(found, settings, masks)
    paths, images, problems = _paths(found, "path")
    role, wrong = _roles(found)
    problems += wrong + _ownerless(found) + _torn(found, images)
    (y, classes), wrong = _labels(found, settings, masks)
    problems += wrong
    name, read_masks = str(found.path), None
    if masks:
        drawn, _, wrong = _paths(found, "mask")
        problems += wrong
        read_masks = mask.reader(drawn, settings)
    refuse(name, sorted(problems, key=_line))  # in the lines; those in the files follow
    stack = image_stack.stacked(name, paths, settings, read_masks=read_masks)
    kept, y = stack.kept, y[stack.kept] if stack.masks is None else stack.masks
    n_train = int((role[kept] < TEST).sum())
    dataset = Dataset(name, "image", stack.x, y, classes, n_train, *image_arrays.usual(stack.x))
    owners, groups = _owners(found, kept, role), _groups(found, kept)
    notes: tuple[str, ...] = ()
    if groups is None:
        listed = [found.cells["path"][k] for k in kept]
        groups, notes = patients.grouped((), stack.patients, listed, owners, n_train)
    return replace(
        dataset,
        owners=owners,
        notes=(*stack.notes, *notes),
        target_kind=settings.targets if masks else None,
        groups=groups,
        spacings=stack.spacings,
        orientation=stack.orientation,
    )


def _rows(path: Path, form: CsvForm) -> ManifestRows:
    (table,) = source.opened([path], form, header=True)
    if unknown := [name for name in table.names if name not in COLUMNS]:
        raise DataError(f"{path} has the column {unknown[0]!r}; {near(unknown[0], COLUMNS)}")
    if not len(table):
        raise DataError(f"{path} has no line below its header; add one for each image")
    cells = {
        name: [_cell(name, cell) for cell in table_cells.texts(table.cells(i))]
        for i, name in enumerate(table.names)
    }
    test = [split == SPLITS[TEST] for split in cells.get("split", [""] * len(table))]
    order = np.argsort(test, kind="stable").tolist()  # training rows come first
    cells = {name: [column[row] for row in order] for name, column in cells.items()}
    return ManifestRows(path, cells, table, order)


def _cell(column: str, cell: str) -> str:
    """Strip a cell; names and splits are also normalised for comparison."""
    if column == "split":
        return ALIKE.get(split := cell.strip().lower(), split)
    return cell_values.name(cell) if column in {"client", "group"} else cell.strip()


def _require(found: ManifestRows, settings: ImageList, masks: bool) -> None:
    """Raise ConfigError or DataError unless the columns required by the settings exist."""
    if settings.targets == "survival":
        raise ConfigError(
            "data.targets = 'survival' is for tables; a manifest has one label for each image, or "
            "a mask"
        )
    needed = "mask" if masks else "label"
    for name in ("path", needed):
        if name not in found.cells:
            other = (
                '; or set data.targets = "segmentation"'
                if name == "label" and "mask" in found.cells
                else ""
            )
            raise DataError(f"{found.path} has no column {name!r}; add it{other}")
    if masks and not settings.classes:
        raise ConfigError(
            "data.targets = 'segmentation' needs names for the numbers in masks: set data.classes"
        )


def _line(problem: str) -> int:
    """Return the line at the start of a problem; problems of several lines sort last."""
    first = re.match(r"line (\d+):", problem)
    return int(first[1]) if first else 2**63


def _paths(found: ManifestRows, column: str) -> tuple[list[Path], list[str], list[str]]:
    """Return each row's file, as given and without links, and report files that are missing or
    outside the manifest's folder.
    """
    folder, problems, paths, real = found.path.parent, [], [], []
    root = Path(_real(folder))
    for row, cell in enumerate(found.cells[column]):
        path = folder / cell
        paths.append(path)
        real.append(_real(path))
        at = Path(real[-1])
        if not cell or "\0" in cell:
            problems.append(f"{found.where(row)}: no {column}; every line needs one")
        elif not at.is_relative_to(root) or at == root:
            problems.append(
                f"{found.where(row)}: {cell!r} is not within the manifest's folder; put it there"
            )
        elif not os.path.exists(path):  # noqa: PTH110 - False for a name that is too long, too
            problems.append(
                f"{found.where(row)}: {plain(cell)!r} does not exist; correct the {column}"
            )
    return paths, real, problems


def _real(path: Path) -> str:
    """Return a path without links; unlike ``resolve`` it tolerates loops of them."""
    return os.path.realpath(path.as_posix().replace("\0", ""))


def _roles(found: ManifestRows) -> tuple[NDArray[np.int8], list[str]]:
    cells = found.cells.get("split", [SPLITS[0]] * len(found))
    odd = [row for row, cell in enumerate(cells) if cell not in SPLITS]
    problems = [
        f"{found.where(row)}: split {cells[row]!r}; say train, validation or test" for row in odd
    ]
    roles = [0 if cell not in SPLITS else SPLITS.index(cell) for cell in cells]
    return np.array(roles, np.int8), problems


def _ownerless(found: ManifestRows) -> list[str]:
    odd = [found.where(row) for row, name in enumerate(found.cells.get("client", ())) if not name]
    return (
        [f"{len(odd)} of {len(found)} lines name no client, first {odd[0]}; name it"] if odd else []
    )


def _torn(found: ManifestRows, images: Sequence[str]) -> list[str]:
    """Report each group or repeated image that has several splits or clients; ``images``: the paths
    without links.
    """
    lines = []
    for kind in ("group", "path"):
        first: dict[str, int] = {}
        for row, cell in enumerate(found.cells.get(kind, ())):
            one = images[row] if kind == "path" else cell
            if cell and (at := first.setdefault(one, row)) != row:
                lines += _apart(found, kind, at, row)
    return lines


def _apart(found: ManifestRows, kind: str, first: int, again: int) -> list[str]:
    """Report two rows of one group or path that are in several splits or clients, or may be."""
    lines, one = [], found.cells[kind][first]
    at, there = found.where(first), found.where(again)
    for column in ("split", "client"):
        cells = found.cells.get(column)
        if cells and cells[first] != cells[again]:
            places = f"{cells[first]} ({at}) and {cells[again]} ({there})"
            lines.append(f"{kind} {one} is in {column} {places}; keep a {kind} together")
    if kind == "path" and "split" not in found.cells:
        lines.append(
            f"{one!r} is in {at} and {there}, and rows are split at random; list it once, or add a "
            "split"
        )
    return lines


def _labels(
    found: ManifestRows, settings: ImageList, masks: bool
) -> tuple[targets.Answer, list[str]]:
    if masks:
        return (np.zeros(0, np.uint8), settings.classes), []
    column = targets.LabelColumn("label", found.cells["label"], found.where)
    return targets.from_cells([column], settings)


def _owners(found: ManifestRows, kept: NDArray[np.int64], role: NDArray[np.int8]) -> Owners | None:
    if "client" not in found.cells:
        return None
    names, number = targets.numbered([found.cells["client"][k] for k in kept])
    return Owners(names, number, role[kept])


def _groups(found: ManifestRows, kept: NDArray[np.int64]) -> RowGroups | None:
    if "group" not in found.cells:
        return None
    return RowGroups("group", targets.grouped([found.cells["group"][k] for k in kept]))

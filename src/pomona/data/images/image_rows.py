"""Images that folders or a table list: files with labels or masks, read as a data set."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pomona.data import cell_values, targets
from pomona.data.dataset import Dataset, Owners, RowGroups
from pomona.data.images import image_arrays, image_stack, patients
from pomona.data.settings import Images

TRAIN, VALIDATION, TEST = 0, 1, 2
MOST_ALIKE = 10  # files of a patient
T = TypeVar("T")


@dataclass(frozen=True)
class ImageRows:
    """Images of a data set, in any order.

    Attributes:
        name: of the data.
        root: the folder that the files are below.
        paths: of the files (n,).
        roles: (n,) for training, validation or testing.
        y: targets (n, ...); not used with masks.
        classes: names of the classes.
        masks: of the files (n,), if they are the targets.
        clients: the owner of each file (n,), or nothing.
        groups: names of files that belong together (n,), or nothing: patients are then looked for.
        folders: the folder of each file's patient (n,), or nothing.
        notes: remarks.
    """

    name: str
    root: Path
    paths: Sequence[Path]
    roles: Sequence[int]
    y: NDArray[np.generic]
    classes: tuple[str, ...]
    masks: Sequence[Path] = ()
    clients: Sequence[str] = ()
    groups: Sequence[str] = ()
    folders: Sequence[str] = ()
    notes: tuple[str, ...] = ()


def dataset(rows: ImageRows, settings: Images, problems: Sequence[str] = ()) -> Dataset:
    """Read the files, test rows last.

    Without clients, validation rows are for training: a validation set is drawn for each client.

    Raises:
        DataError: the problems, and those of the files, reported together.
        ConfigError: a package is missing.
    """
    roles = np.array(rows.roles, np.int8)
    order = np.argsort(roles == TEST, kind="stable")
    stack = image_stack.stacked(
        rows.name,
        _chosen(rows.paths, order),
        settings,
        problems,
        _chosen(rows.masks, order),
        rows.classes,
    )
    decoded = order[stack.rows]
    n_train = int((roles[decoded] != TEST).sum())
    owners, notes = None, [*rows.notes, *stack.notes]
    if rows.clients:
        names, number = targets.numbered(_chosen(rows.clients, decoded))
        owners = Owners(names, number, roles[decoded])
    elif VALIDATION in roles:
        notes.append("validation images are used for training, since there are no clients")
    groups, remarks = _groups(rows, decoded, stack.patients, owners, n_train)
    return Dataset(
        rows.name,
        "image",
        stack.x,
        rows.y[decoded] if stack.masks is None else stack.masks,
        rows.classes,
        n_train,
        *image_arrays.usual(stack.x),
        owners=owners,
        groups=groups,
        notes=(*notes, *remarks),
        target_kind="segmentation" if rows.masks else None,
        spacings=stack.spacings,
        orientation=stack.orientation,
        traits=stack.traits,
    )


def _chosen(values: Sequence[T], rows: NDArray[np.intp]) -> list[T]:
    """Return the values of some rows, or nothing if there are none at all."""
    return [values[k] for k in rows.tolist()] if values else []


def _groups(
    rows: ImageRows,
    decoded: NDArray[np.intp],
    headers: Sequence[str],
    owners: Owners | None,
    n_train: int,
) -> tuple[RowGroups | None, tuple[str, ...]]:
    """Return which of the decoded rows belong together, as listed or of one patient; and remarks.

    ``headers``: the PatientID, else the FrameOfReferenceUID, of each decoded row.
    """
    if rows.groups:
        notes = cell_values.alike_notes("groups", rows.groups)
        return RowGroups("group", targets.grouped(_chosen(rows.groups, decoded))), tuple(notes)
    groups, remarks = patients.grouped(
        _chosen(rows.folders, decoded),
        headers,
        [os.path.relpath(path, rows.root) for path in _chosen(rows.paths, decoded)],
        owners,
        n_train,
        len(rows.classes) + len({*rows.clients}),
    )
    return groups, (*remarks, *_patients_as_classes(rows, decoded, headers))


def _patients_as_classes(
    rows: ImageRows, decoded: NDArray[np.int64], headers: Sequence[str]
) -> list[str]:
    """Remark on folders that seem to be patients rather than classes, as in an archive's export:
    by PatientID, or by numbers in their names and the same few names of files.
    """
    if rows.y.ndim != 1 or rows.masks:
        return []
    labels = rows.y[decoded].tolist()
    pairs = {*zip(labels, headers, strict=True)}
    single = len(pairs) == len({*labels}) == len({*headers} - {""}) and len(pairs) < len(labels)
    if len({*labels}) < 2 or not (single or _are_patients(rows, decoded, labels)):
        return []
    return [
        f"each class has the files of one patient ({'PatientID' if single else 'by the names'}): "
        "if the folders are patients, set data.path to a table with the columns path (of an image, "
        "or a folder with a series) and label, or mask"
    ]


def _are_patients(rows: ImageRows, decoded: NDArray[np.int64], labels: Sequence[int]) -> bool:
    """Return whether all of several classes are named by numbers, and have the same few files, each
    once, whose names differ not only in numbers.
    """
    paths = zip(_chosen(rows.paths, decoded), labels, strict=True)
    files = [(k, path.name.replace(rows.classes[k], "")) for path, k in paths]
    names, folders = {name for _, name in files}, {*labels}
    return (
        len({*files}) == len(files) == len(names) * len(folders)
        and len(folders) > 2
        and len(names) <= MOST_ALIKE
        and (len(names) == 1 or len({re.sub(r"\d", "", name) for name in names}) > 1)
        and all(re.search(r"\d", rows.classes[k]) for k in folders)
    )

"""NumPy archives, read in a child process and without pickle; own data as x and y in an archive."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from pomona.core.bounds import WITH_CLASS_NAMES, plain
from pomona.core.errors import DataError, listed, worded
from pomona.core.files import opened
from pomona.data import cell_values, targets, validation
from pomona.data.array_file import NamedArray, concatenated, file, paired
from pomona.data.axes import Arrays
from pomona.data.catalogue import own_path
from pomona.data.dataset import Dataset, Owners, RowGroups
from pomona.data.images import image_arrays
from pomona.data.reader_process import Reply, read_in_child
from pomona.data.tables import tabular

SUFFIXES = ("_train", "_test")
Pair = tuple[NamedArray, NamedArray]


@dataclass(frozen=True)
class Archive:
    """Arrays of an archive: the names of all, and those that were read."""

    path: Path
    names: tuple[str, ...]
    arrays: Mapping[str, NamedArray]

    def __getitem__(self, name: str) -> NamedArray:
        """Return an array. Raises DataError if there is none of this name."""
        if name not in self.arrays:
            names = ", ".join(self.names) or "none"
            raise DataError(
                f"{self.path} has no array {name!r} (it has {names}); store one by that name"
            )
        return self.arrays[name]

    def pair(self, x: str, y: str) -> Pair:
        """Return inputs and labels, with as many rows."""
        return paired(self[x], self[y])


def archive(path: Path, names: Collection[str] = ()) -> Archive:
    """Read those of the named arrays that an archive has; all if none is named.

    Raises:
        DataError: not an archive, a damaged one, two arrays of one name, or an array of anything
            but numbers or texts.
        OutOfMemoryError: as ``read_in_child``.
    """
    size = file(path).stat().st_size
    (every, numeric, texts), arrays = read_in_child(lambda: _read(path, names), path, size)
    values = dict(zip(numeric, arrays, strict=True))
    values |= {name: np.array(array, dtype=str) for name, array in texts.items()}
    named_arrays = {key: NamedArray(f"{path}, array {key}", array) for key, array in values.items()}
    return Archive(path, tuple(every), named_arrays)


def _read(path: Path, names: Collection[str]) -> Reply:
    """Return the names of all arrays, those of the numeric ones, and texts; and the arrays."""
    source, arrays = str(path), dict[str, NDArray[np.generic]]()
    try:
        with opened(path) as raw, NpzFile(raw, allow_pickle=False) as stored:
            every = [plain(name, 80) for name in stored.files]
            for name in [name for name in stored.files if name in names or not names]:
                source = f"{path}, array {name}"
                arrays[name] = stored[name]
                if not isinstance(arrays[name], np.ndarray):
                    raise ValueError("its header is missing")
    except MemoryError:
        raise
    except Exception as fault:  # NumPy parses headers as Python, and raises whatever that raises
        raise DataError(
            f"cannot read {source} ({worded(fault)}); use numpy.savez: pickle is never read"
        ) from fault
    _require_readable(path, every, arrays)
    texts = {name: values.tolist() for name, values in arrays.items() if values.dtype.kind == "U"}
    numeric = [name for name in arrays if name not in texts]
    return Reply((every, numeric, texts), [arrays[name] for name in numeric])


def _require_readable(
    path: Path, names: Sequence[str], arrays: Mapping[str, NDArray[np.generic]]
) -> None:
    """Raise DataError for two arrays of one name, and for one of anything but numbers or texts."""
    if len({*names}) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{path} has two arrays named {repeated!r}; write it again")
    for name, values in arrays.items():
        if values.dtype.kind not in "biufU" or not values.ndim:
            raise DataError(
                f"{path}, array {name} is {values.dtype} {values.shape}; store numbers or texts, "
                "with one entry per row"
            )


ROLES = ("x", "y", "client", "group")
OWN_ARRAYS = ("classes", *(role + suffix for role in ROLES for suffix in ("", *SUFFIXES)))


def _own_arrays(path: Path) -> Archive:
    """Read the arrays of own data; those that end in ``_train`` if there is no x, without it."""
    stored = archive(path, OWN_ARRAYS)
    if "x" in stored.names:
        return stored
    return replace(stored, arrays={k.removesuffix("_train"): v for k, v in stored.arrays.items()})


def read(settings: Arrays) -> Dataset:
    """Read own data: x and y (or x_train, y_train), optional x_test, y_test and names ``classes``,
    in one archive.

    x is (N, H, W) or (N, H, W, C) for images, (N, D, H, W, C) for volumes, (N, F) numbers for a
    table. ``client`` (N,) is the owner of each row and ``group`` (N,) the rows that belong together
    (a patient), as numbers or text; ``client_test`` and ``group_test`` are those of x_test.
    """
    path = own_path(settings)
    stored = _own_arrays(path)
    splits = [(stored, ""), (stored, "_test")] if "x_test" in stored.names else [(stored, "")]
    dataset, counts = _dataset(str(path), splits, 1, settings)
    owners = _names_of_rows("client", splits, counts)
    if owners is None:
        return dataset
    if "" in owners:
        raise DataError(f"{path}, array client: row {owners.index('')} names no client; name it")
    role = np.where(np.arange(len(dataset)) < dataset.n_train, 0, 2).astype(np.int8)
    return replace(dataset, owners=Owners(*targets.numbered(owners), role))


def _names_of_rows(
    role: str, splits: Sequence[tuple[Archive, str]], counts: Sequence[int]
) -> list[str] | None:
    """Return each row's name from a given array, for each archive and the suffix of its split; None
    if there is none.

    Raises DataError if only some archives or splits have it, or if it does not have one value per
    row.
    """
    names: list[str] = []
    if not any(role + suffix in stored.names for stored, suffix in splits):
        return None
    for (stored, suffix), count in zip(splits, counts, strict=True):
        if role + suffix not in stored.names:
            raise DataError(
                f"{stored.path} has no array {role + suffix!r}, others have; give all one, or none"
            )
        array = stored[role + suffix]
        if array.shape != (count,) or array.dtype.kind == "f":
            raise DataError(
                f"{array.source} is {array.dtype} {array.shape}; give {count} numbers or texts"
            )
        names += map(cell_values.name, map(str, array.values.tolist()))
    return names


def read_parts(
    paths: Sequence[Path], training: int, settings: Arrays
) -> tuple[Dataset, tuple[int, ...]]:
    """Read archives with x and y, the first ``training`` of them for training; returns the data and
    row counts.
    """
    archives = [_own_arrays(path) for path in paths]
    return _dataset(str(paths[0].parent), [(stored, "") for stored in archives], training, settings)


def _dataset(
    name: str, splits: Sequence[tuple[Archive, str]], training: int, settings: Arrays
) -> tuple[Dataset, tuple[int, ...]]:
    """Join the arrays of these archives with these suffixes of their names, the first ``training``
    for training; returns the data and row counts.
    """
    pairs = [stored.pair(f"x{suffix}", f"y{suffix}") for stored, suffix in splits]
    counts = tuple(len(x) for x, _ in pairs)
    classes, names = settings.classes, splits[0][0].arrays.get("classes")
    if names and not classes and settings.targets in WITH_CLASS_NAMES:
        classes = tuple(map(str, names.values.tolist()))
    dataset = assembled(name, pairs, training, settings, classes)
    unread = dict.fromkeys(n for stored, _ in splits for n in stored.names if n not in OWN_ARRAYS)
    note = f"arrays that are not read: {listed([*unread], 8)}; those of rows are {listed(ROLES)}"
    dataset = replace(dataset, notes=(*dataset.notes, *[note] * bool(unread)))
    return grouped(dataset, _names_of_rows("group", splits, counts)), counts


def assembled(
    name: str, pairs: Sequence[Pair], training: int, settings: Arrays, classes: tuple[str, ...]
) -> Dataset:
    """Return inputs and targets as one data set, the first ``training`` parts for training: a table
    if samples are rows of numbers, else images or volumes.

    Raises DataError for arrays of other forms, and for bad values, with part and row.
    """
    targets_type, share = settings.targets, settings.memory_share
    if len(pairs[0][0].shape) != 2:
        return image_arrays.dataset(name, pairs, training, share, targets_type, classes)
    y, classes = targets.from_arrays(
        [(y.source, y.values) for _, y in pairs], targets_type, classes
    )
    x, n_train = rows([x for x, _ in pairs], share), sum(len(x) for x, _ in pairs[:training])
    return tabular.in_single(Dataset(name, "table", x, y, classes, n_train), share)


def grouped(dataset: Dataset, names: Sequence[str] | None) -> Dataset:
    """Return the data set with the group of each row by name, if there are names."""
    if names is None:
        return dataset
    return replace(dataset, groups=RowGroups("group", targets.grouped(names)))


def rows(arrays: Sequence[NamedArray], memory_share: float) -> NDArray[np.generic]:
    """Return the rows of all arrays, numbers (n, F), as one table (N, F): float32, or float64 if
    some do not fit.

    Raises DataError for other arrays.
    """
    for array in arrays:
        if array.dtype.kind not in "biuf":
            raise DataError(f"{array.source} is {array.dtype}; a table holds numbers")
    fits = all(np.can_cast(array.dtype, np.float32) for array in arrays)
    x = concatenated(arrays, arrays[0].shape[1:], np.float32 if fits else np.float64, memory_share)
    bounds = np.cumsum([len(array) for array in arrays])[:-1]
    for array, values in zip(arrays, np.split(x, bounds), strict=True):
        validation.finite(values, array.source)
    return x

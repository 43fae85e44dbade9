"""NumPy archives, read member by member and without pickle; own data as x and y in an archive."""

import struct
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from io import SEEK_CUR
from itertools import pairwise
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, cast

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from pomona.core.bounds import NAMED, plain
from pomona.core.errors import DataError
from pomona.core.files import opened
from pomona.data import cell_values, targets, validation
from pomona.data.array_file import MOST_PACKED, StoredArray, file, joined, paired, promised, reading
from pomona.data.axes import Arrays
from pomona.data.catalogue import own_path
from pomona.data.dataset import Dataset, Owners, RowGroups
from pomona.data.images import image_arrays
from pomona.data.tables import tabular

Pair = tuple[StoredArray, StoredArray]
Index = Mapping[str, zipfile.ZipInfo]
_ENDS = {"": ("", "_train"), "_test": ("_test",)}  # of the names of x and y, by part
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def index(path: Path) -> Index:
    """Index an archive's arrays by name and position, for any number of later reads.

    Raises DataError if it is not an archive, a name occurs twice, or two arrays share bytes.
    """
    with reading(path), opened(file(path)) as raw, zipfile.ZipFile(raw) as archive:
        members = archive.infolist()
    found = Counter(info.filename.removesuffix(".npy") for info in members)
    twice = next((name for name, times in found.items() if times > 1), None)
    if twice is not None:
        raise DataError(f"{path} has two arrays named {plain(twice, 80)!r}; write it again")
    places = sorted((info.header_offset, info.compress_size) for info in members)
    if any(start + size > following for (start, size), (following, _) in pairwise(places)):
        raise DataError(f"{path} has arrays that share bytes; write it again")
    return {info.filename.removesuffix(".npy"): info for info in members}


def stored(path: Path, name: str, known: Index | None = None) -> StoredArray:
    """Open an array of an archive by its header; ``known`` is the archive's index, if available.

    Raises:
        DataError: no such array, Python objects, or a header that does not match the data; or as
            ``index``.
    """
    known = index(path) if known is None else known
    if name not in known:
        raise DataError(
            f"{path} has no array {name!r} (it has {', '.join(known) or 'none'}); store one by "
            "that name"
        )
    where, info = f"{path}, array {name}", known[name]
    with _member(path, info, where) as stream:
        shape, fortran, dtype = _header(stream, where)
        skip = stream.tell()
    array = StoredArray(where, shape, dtype, partial(_body, path, info, skip), fortran)
    room = info.file_size - skip
    if array.size != room:
        raise DataError(f"{where} promises {array.size} bytes but has {room}; write it again")
    return promised(array, MOST_PACKED * (info.compress_size + 1))


def _header(stream: IO[bytes], where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        shape, fortran, dtype = _HEADERS[npy.read_magic(stream)](stream)
    except (ValueError, KeyError, SyntaxError, TokenError, RecursionError, MemoryError) as fault:
        # NumPy parses the header as a Python literal, and does not turn every error into a
        # ValueError.
        line = plain(str(fault), 200)
        raise DataError(
            f"{where} is not a plain NumPy array ({line}); write it with numpy.savez"
        ) from fault
    if dtype.hasobject or dtype.names or dtype.subdtype:
        raise DataError(
            f"{where} holds Python objects or records ({dtype}); store plain numbers, pickle is "
            "never read"
        )
    if not shape or min(shape) < 0:
        raise DataError(f"{where} has shape {shape}; store one entry per row")
    return shape, fortran, dtype


@contextmanager
def _member(path: Path, info: zipfile.ZipInfo, where: str) -> Iterator[IO[bytes]]:
    """Open a member at its first byte without reading the archive's directory, which is slow with
    many members.
    """
    with reading(where), opened(path) as raw:
        raw.seek(info.header_offset)
        magic, name, extra = struct.unpack("<4s22x2H", raw.read(30))
        if magic != b"PK\x03\x04" or info.flag_bits & 1:
            raise zipfile.BadZipFile("no member of an archive starts there, or it is encrypted")
        raw.seek(name + extra, SEEK_CUR)
        with zipfile.ZipExtFile(raw, "r", info) as stream:
            yield cast("IO[bytes]", stream)


@contextmanager
def _body(path: Path, info: zipfile.ZipInfo, skip: int) -> Iterator[IO[bytes]]:
    with _member(path, info, f"{path}, array {info.filename}") as stream:
        stream.read(skip)
        yield stream


def pair(path: Path, *candidates: tuple[str, str]) -> Pair:
    """Return the arrays of the first of the name pairs that exists."""
    known = index(path)
    x, y = next((c for c in candidates if c[0] in known), candidates[0])
    return paired(stored(path, x, known), stored(path, y, known))


def read(settings: Arrays) -> Dataset:
    """Read own data: x and y (or x_train, y_train), optional x_test, y_test and names ``classes``,
    in one archive.

    x is (N, H, W) or (N, H, W, C) for images, (N, D, H, W, C) for volumes, (N, F) numbers for a
    table. ``client`` (N,) is the owner of each row and ``group`` (N,) the rows that belong together
    (a patient), as numbers or text; ``client_test`` and ``group_test`` are those of x_test.
    """
    path = own_path(settings)
    files = [(path, ""), (path, "_test")] if "x_test" in index(path) else [(path, "")]
    dataset, counts = _joined(str(path), files, 1, settings)
    owners = _named("client", files, counts)
    if owners is None:
        return dataset
    if "" in owners:
        raise DataError(f"{path}, array client: row {owners.index('')} names no client; name it")
    role = np.where(np.arange(len(dataset)) < dataset.n_train, 0, 2).astype(np.int8)
    return replace(dataset, owners=Owners(*targets.numbered(owners), role))


def _named(what: str, files: Sequence[tuple[Path, str]], counts: Sequence[int]) -> list[str] | None:
    """Return each row's name from a given array, for each file and the suffix of its split; None if
    there is none.

    Raises DataError if only some archives or splits have it, or if it does not have one value per
    row.
    """
    found: list[str] = []
    indices = [index(path) for path, _ in files]
    if not any(what + end in known for (_, end), known in zip(files, indices, strict=True)):
        return None
    for (path, end), known, count in zip(files, indices, counts, strict=True):
        if what + end not in known:
            raise DataError(
                f"{path} has no array {what + end!r}, others have; give every part one, or none"
            )
        values = stored(path, what + end, known)
        if values.shape != (count,) or values.dtype.kind not in "biuU":
            raise DataError(
                f"{values.where} is {values.dtype} {values.shape}; give {count} whole numbers or "
                "texts"
            )
        found += map(cell_values.name, map(str, values.load()))
    return found


def read_parts(
    paths: Sequence[Path], training: int, settings: Arrays
) -> tuple[Dataset, tuple[int, ...]]:
    """Read archives with x and y, the first ``training`` of them for training; returns the data and
    row counts.
    """
    return _joined(str(paths[0].parent), [(path, "") for path in paths], training, settings)


def _joined(
    name: str, files: Sequence[tuple[Path, str]], training: int, settings: Arrays
) -> tuple[Dataset, tuple[int, ...]]:
    """Read the arrays of these files with these suffixes of their names, the first ``training`` of
    them for training; returns the data and row counts.
    """
    parts = [pair(path, *((f"x{way}", f"y{way}") for way in _ENDS[end])) for path, end in files]
    counts = tuple(len(x) for x, _ in parts)
    dataset = assembled(name, parts, training, settings, _classes(files[0][0], settings))
    return grouped(dataset, _named("group", files, counts)), counts


def assembled(
    name: str, parts: Sequence[Pair], training: int, settings: Arrays, classes: tuple[str, ...]
) -> Dataset:
    """Return inputs and targets as one data set, the first ``training`` parts for training: a table
    if samples are rows of numbers, else images or volumes.

    Raises DataError for arrays of other forms, and for bad values, with part and row.
    """
    kind, share = settings.targets, settings.memory_share
    if len(parts[0][0].shape) != 2:
        return image_arrays.dataset(name, parts, training, share, kind, classes)
    y, classes = targets.from_arrays([(y.where, y.load()) for _, y in parts], kind, classes)
    x, n_train = rows([x for x, _ in parts], share), sum(len(x) for x, _ in parts[:training])
    return tabular.in_single(Dataset(name, "table", x, y, classes, n_train), share)


def grouped(dataset: Dataset, names: Sequence[str] | None) -> Dataset:
    """Return the data set with the group of each row by name, if there are names."""
    if names is None:
        return dataset
    return replace(dataset, groups=RowGroups("group", targets.grouped(names)))


def _classes(path: Path, settings: Arrays) -> tuple[str, ...]:
    """Return the class names from the settings, else from the archive, else none."""
    if settings.classes or settings.targets not in NAMED or "classes" not in (known := index(path)):
        return settings.classes
    return tuple(map(str, stored(path, "classes", known).load()))


def rows(parts: Sequence[StoredArray], memory_share: float) -> NDArray[np.generic]:
    """Return the rows of all parts, numbers (n, F), as one table (N, F): float32, or float64 if
    some do not fit.

    Raises DataError for other arrays.
    """
    for part in parts:
        if part.dtype.kind not in "biuf":
            raise DataError(f"{part.where} is {part.dtype}; a table holds numbers")
    fits = all(np.can_cast(part.dtype, np.float32) for part in parts)
    x = joined(parts, parts[0].shape[1:], np.float32 if fits else np.float64, memory_share)
    for part, own in zip(
        parts, np.split(x, np.cumsum([len(part) for part in parts])[:-1]), strict=True
    ):
        validation.finite(own, part.where)
    return x

"""Many image or volume files as one array: headers first, then one file at a time decoded into
place.

All files are read in one child process (``reader_process``), one at a time, into memory that this
process then has. An array larger than ``data.memory_share`` of the machine's memory lies on disk:
it is decoded once, and then paged by the operating system.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pomona.core.errors import MOST_PROBLEMS, DataError, listed, refuse
from pomona.data.formats import pictures, tiff, volumes
from pomona.data.images import file_notes, other_formats
from pomona.data.images.file_notes import Spacing
from pomona.data.images.image_arrays import sample_type
from pomona.data.images.image_file import ImageFile, Size, Window, decoding
from pomona.data.reader_process import CrashError, LateArray, Reply, read_in_child, shared

SMALL_FILE = 1 << 16  # bytes
MOST_CRASHES = 10  # of the reader process, if bad files are skipped

PICTURES = {*pictures.SUFFIXES, *tiff.SUFFIXES}  # of files

S = TypeVar("S")
T = TypeVar("T")
Opened = Callable[[int], ImageFile]  # opens a file by its number
Allocate = Callable[[tuple[int, ...], DTypeLike], NDArray[Any]]


class Masks(NamedTuple):
    """Masks of images: (n, *spatial) uint8, the numbers of the images that have one, problems with
    the others, and remarks.
    """

    values: NDArray[np.uint8]
    rows: NDArray[np.int64]
    problems: list[str]
    notes: tuple[str, ...]


MaskReader = Callable[[Opened, Allocate], Masks]


def opened(path: Path) -> ImageFile:
    """Open an image, a volume, or a folder with a DICOM series, by name and headers.

    Raises:
        DataError: it cannot be read, with the reason.
        ConfigError: a package is missing.
    """
    suffix = path.suffix.lower()
    if kind := other_formats.kind_of(path):
        raise DataError(f"{path} {kind}")
    if file := volumes.opened(path, picture=suffix in PICTURES):
        return file
    return tiff.opened(path) if suffix in tiff.SUFFIXES else pictures.opened(path)


class FileSettings(Protocol):
    """Settings of images in files, which may also have ``window`` and ``skip_bad``."""

    @property
    def resize(self) -> int | None:
        """The side of the images."""

    @property
    def memory_share(self) -> float:
        """The share of memory above which data lie on disk."""


@dataclass(frozen=True)
class Stack:
    """Decoded files.

    Attributes:
        x: (n, ..., C), in the first dtype that holds all values.
        kept: (n,) int64, indices of the files that were decoded, in order.
        notes: remarks on skipped files, and of ``file_notes``.
        spacings: voxel sizes (z, y, x) in mm of the volumes, the most frequent first.
        orientation: of the volumes' axes, if all headers say how they lie.
        patients: identifier of each file's patient in its header (n,), or nothing.
        masks: (n, ...) uint8, if there are masks.
    """

    x: NDArray[Any]
    kept: NDArray[np.int64]
    notes: tuple[str, ...]
    spacings: tuple[Spacing, ...] = ()
    orientation: str = ""
    patients: tuple[str, ...] = ()
    masks: NDArray[np.uint8] | None = None


class _Position:
    """The file that the reader process is at, for messages of this process."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        self.index = shared((1,), np.int64, 1.0)
        self.crashes: dict[int, str] = {}

    def __str__(self) -> str:
        return str(self.paths[self.index[0]])

    def opened(self, k: int) -> ImageFile:
        """Open file ``k``. Raises as ``opened``, and DataError if it has crashed its reader."""
        self.index[0] = k
        if k in self.crashes:
            raise DataError(self.crashes[k])
        with decoding(self.paths[k]):
            return opened(self.paths[k])


def stacked(
    name: str,
    paths: Sequence[Path],
    settings: FileSettings,
    problems: Sequence[str] = (),
    read_masks: MaskReader | None = None,
) -> Stack:
    """Decode all files into one array, in a reader process; unreadable files are skipped if
    ``data.skip_bad`` is set.

    Args:
        name: of the data.
        paths: of the files.
        settings: size, window, memory, and whether bad files are skipped.
        problems: found earlier; the files are still checked, so that all problems are reported
            together.
        read_masks: reads the masks of the files before these, in the same process.

    Raises:
        DataError: these problems and those of every file; or sizes, channels or dtypes that do not
            match.
        ConfigError: a package is missing.
    """
    position = _Position(paths)
    total = sum(map(stored_bytes, paths))
    while True:
        with LateArray(settings.memory_share) as x, LateArray(settings.memory_share) as y:

            def work(x: LateArray = x, y: LateArray = y) -> Reply:
                return _decoded(name, position, settings, problems, read_masks, x, y)

            try:
                facts, (kept,) = read_in_child(work, position, total)
            except CrashError as crash:
                if not _skips(settings) or len(position.crashes) == MOST_CRASHES:
                    raise
                position.crashes[int(position.index[0])] = str(crash)
                continue
            n, shape, dtype, mask_shape = facts["x"]
            masks = y.received(mask_shape, np.uint8)[:n] if mask_shape else None
            return Stack(
                x.received(shape, dtype)[:n],
                kept,
                tuple(facts["notes"]),
                tuple((a, b, c) for a, b, c in facts["spacings"]),
                facts["orientation"],
                tuple(facts["patients"]),
                masks,
            )


def _decoded(
    name: str,
    position: _Position,
    settings: FileSettings,
    problems: Sequence[str],
    read_masks: MaskReader | None,
    x_memory: LateArray,
    y_memory: LateArray,
) -> Reply:
    """Read headers and masks, then decode the files into place; in the reader process."""
    skip_bad, bad, count = _skips(settings), list[str](), len(position.paths)
    window: Window | None = getattr(settings, "window", None)
    rows = np.arange(count)
    mask_notes: tuple[str, ...] = ()
    if read_masks:
        y, rows, bad, mask_notes = read_masks(position.opened, y_memory.allocate)
    forms = list(each(rows.tolist(), position.opened, bad))
    files = [file for _, file in forms]
    faults = [*problems, *([] if skip_bad else bad)]
    if not files and not faults:
        faults = [f"none of {count} files can be read: {bad[0]}" if bad else "there are no images"]
    _require(name, files, faults, settings, window)
    form, size = _form(files, settings, window)
    x = x_memory.allocate(*form)

    def image(form: tuple[int, ImageFile]) -> NDArray[Any]:
        position.index[0] = form[0]
        return form[1].decoded(x.shape[-1], size, window)

    kept: list[int] = []
    for (k, _), values in each(forms, image, bad):
        x[len(kept)] = values
        kept.append(k)
    if not skip_bad or not kept:
        refuse(name, bad)
    if read_masks:
        kept_masks = np.isin(rows, kept).nonzero()[0]
        for row, k in enumerate(kept_masks):
            if row != k:
                y[row] = y[k]
    decoded = {*kept}
    facts = {
        "x": (len(kept), x.shape, x.dtype.str, y.shape if read_masks else ()),
        "notes": (*skipped(name, bad, count), *file_notes.notes(files), *mask_notes),
        "spacings": file_notes.spacings(files),
        "orientation": file_notes.orientation(files),
        "patients": [file.patient for k, file in forms if k in decoded],
    }
    return Reply(facts, [np.array(kept, np.int64)])


def _skips(settings: FileSettings) -> bool:
    return bool(getattr(settings, "skip_bad", False))


def stored_bytes(path: Path) -> int:
    """Return the size of a file, or of the files in a folder, for the limit of processor time; a
    small file takes as long as one of ``SMALL_FILE``.
    """
    try:
        if path.is_dir():
            return sum(map(stored_bytes, path.iterdir()))
        return max(SMALL_FILE, path.stat().st_size)
    except OSError:  # the reader says so
        return 0


def _require(
    name: str,
    files: Sequence[ImageFile],
    problems: Sequence[str],
    settings: FileSettings,
    window: Window | None,
) -> None:
    """Raise DataError for these problems and for forms that do not match, together with what is
    found on decoding.
    """
    faults = [*problems, *_sizes(files, bool(settings.resize)), *_dtypes(files)]
    if faults:
        for _ in each(files, lambda file: file.decoded(file.shape[-1], window=window), faults):
            pass
        refuse(name, faults)


def _form(
    files: Sequence[ImageFile], settings: FileSettings, window: Window | None
) -> tuple[tuple[tuple[int, ...], np.dtype[Any]], Size | None]:
    """Return shape and dtype of an array for all files, with room for colour if any has it, and the
    size to which images are resized.
    """
    side = settings.resize
    size = (side, side) if side and len(files[0].shape) == 3 else None
    channels = max(file.shape[-1] for file in files)
    dtype = sample_type(file.dtype_in(window) for file in files)
    return ((len(files), *(size or files[0].shape[:-1]), channels), dtype), size


def each(
    items: Sequence[S] | range, function: Callable[[Any], T], faults: list[str]
) -> Iterator[tuple[Any, T]]:
    """Yield items with the function's result; errors for failing items are collected in faults."""
    for item in items:
        try:
            yield item, function(item)
        except DataError as fault:
            faults.append(str(fault))


def skipped(name: str, bad: Sequence[str], count: int) -> tuple[str, ...]:
    """Report skipped files: how many, and why."""
    if not bad:
        return ()
    folder = Path(name).parent if Path(name).suffix else name
    lines = [line.replace(f"{folder}/", "") for line in bad]
    more = [f"and {len(bad) - MOST_PROBLEMS} more"] if len(bad) > MOST_PROBLEMS else []
    return (
        f"{name}: {len(bad)} of {count} files are skipped (data.skip_bad)",
        *lines[:MOST_PROBLEMS],
        *more,
    )


def _sizes(files: Sequence[ImageFile], resized: bool) -> list[str]:
    """Report different image sizes: each with its count and an example, most frequent first."""
    counts = Counter(file.shape[:-1] for file in files)
    flat = all(len(size) == 2 for size in counts)
    if len(counts) < 2 or (resized and flat):
        return []
    example = {file.shape[:-1]: file.path for file in reversed(files)}
    # width first, as usual for pictures
    shown = [
        f"{n} of {' x '.join(map(str, size[::-1]))} ({example[size].name})"
        for size, n in counts.most_common(4)
    ]
    more = f" and {len(counts) - 4} other sizes" if len(counts) > 4 else ""
    remedy = "set data.resize" if flat else "bring all volumes to one size"
    return [f"images of several sizes: {', '.join(shown)}{more}; {remedy}"]


def _dtypes(files: Sequence[ImageFile]) -> list[str]:
    """Warn if only some images have 8 bits, since their values have different scales."""
    eight = [file.path.name for file in files if file.dtype == np.uint8]
    if not 0 < len(eight) < len(files):
        return []
    others = [f"{file.path.name}: {file.dtype}" for file in files if file.dtype != np.uint8]
    return [
        (
            f"images of 8 bits ({listed(eight, 2)}) and of others ({listed(others, 2)}) do not "
            "mix; convert all to one"
        )
    ]

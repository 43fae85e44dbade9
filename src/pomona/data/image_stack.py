"""Many image or volume files as one array: headers first, then one file at a time decoded into
place.

An array larger than ``data.memory_share`` of the machine's memory lies on disk
(``storage/mapped_array.py``): it is decoded once, and then paged by the operating system. At most
one file at a time is decoded in memory.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import MOST_PROBLEMS, DataError, listed, refuse
from pomona.data import dicom, image_decoding
from pomona.data.formats import nifti
from pomona.data.image_arrays import sample_type
from pomona.data.image_file import ImageFile, Size, Window
from pomona.data.images import file_notes
from pomona.data.images.file_notes import Spacing
from pomona.data.kinds import HubImages, ImageFolder, ImageManifest, PublicImages
from pomona.data.settings import ImageFiles, Images
from pomona.storage.mapped_array import allocate

S = TypeVar("S")
T = TypeVar("T")


def opened(path: Path) -> ImageFile:
    """Open an image, a volume, or a folder with a DICOM series, by name and headers.

    Raises:
        DataError: it cannot be read, with the reason.
        ConfigError: a package is missing.
    """
    suffix = path.suffix.lower()
    if path.is_dir():
        return dicom.series(path)
    if suffix in dicom.SUFFIXES:
        return dicom.opened(path)
    if path.name.lower().endswith(nifti.ENDS):
        return nifti.opened(path)
    try:
        return image_decoding.picture(path)
    except DataError:
        if suffix not in image_decoding.TIFF:
            raise
        return image_decoding.tiff(path)


@dataclass(frozen=True)
class Stack:
    """Decoded files.

    Attributes:
        x: (n, ..., C), in the first dtype that holds all values.
        kept: (n,) int64, indices of the files that were decoded, in order.
        notes: remarks on skipped files, and of ``file_notes``.
        spacings: voxel sizes (z, y, x) in mm of the volumes, the most frequent first.
        orientation: of the volumes' axes, if all headers say how they lie.
    """

    x: NDArray[Any]
    kept: NDArray[np.int64]
    notes: tuple[str, ...]
    spacings: tuple[Spacing, ...] = ()
    orientation: str = ""


def stacked(
    name: str,
    paths: Sequence[Path],
    settings: HubImages | ImageFolder | ImageManifest | PublicImages,
    problems: Sequence[str] = (),
    unread: Sequence[str] = (),
) -> Stack:
    """Decode all files into one array, skipping unreadable ones if ``data.skip_bad`` is set.

    Args:
        name: of the data.
        paths: of the files.
        settings: size, window, memory, and whether bad files are skipped.
        problems: found earlier; the files are still checked, so that all problems are reported
            together.
        unread: remarks on files not in ``paths`` because of a related problem.

    Raises:
        DataError: these problems and those of every file; or sizes, channels or dtypes that do not
            match.
        ConfigError: a package is missing.
    """
    window, skip_bad = (
        (settings.window, settings.skip_bad) if isinstance(settings, ImageFiles) else (None, False)
    )
    bad, count = list(unread), len(paths) + len(unread)
    forms = list(each(range(len(paths)), lambda k: opened(paths[k]), bad))
    files = [file for _, file in forms]
    faults = [*problems, *([] if skip_bad else bad)]
    if not files and not faults:
        faults = [f"none of {count} files can be read: {bad[0]}" if bad else "there are no images"]
    _require(name, files, faults, settings, window)
    x, size = _allocated(files, settings, window)
    channels = x.shape[-1]
    kept: list[int] = []
    for (k, _), image in each(forms, lambda form: form[1].decoded(channels, size, window), bad):
        x[len(kept)] = image
        kept.append(k)
    if not skip_bad or not kept:
        refuse(name, bad)
    notes = (*skipped(name, bad, count), *file_notes.notes(files))
    return Stack(
        x[: len(kept)],
        np.array(kept, np.int64),
        notes,
        file_notes.spacings(files),
        file_notes.orientation(files),
    )


def _require(
    name: str,
    files: Sequence[ImageFile],
    problems: Sequence[str],
    settings: Images,
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


def _allocated(
    files: Sequence[ImageFile], settings: Images, window: Window | None
) -> tuple[NDArray[np.generic], Size | None]:
    """Return an array for all files, with room for colour if any has it, and the size to which
    images are resized.
    """
    side = settings.resize
    size = (side, side) if side and len(files[0].shape) == 3 else None
    channels = max(file.shape[-1] for file in files)
    dtype = sample_type(file.dtype_in(window) for file in files)
    shape = (len(files), *(size or files[0].shape[:-1]), channels)
    return allocate(shape, dtype, settings.memory_share), size


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
            "mix; convert one kind"
        )
    ]

"""Many image or volume files as one array: headers first, then one file at a time decoded into
place.

All files are read in one child process (``reader_process``), one at a time, into memory that this
process then has. An array larger than ``data.memory_share`` of the machine's memory lies on disk:
it is decoded once, and then paged by the operating system.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import MOST_PROBLEMS, DataError, listed, refuse
from pomona.data.formats.image_formats import opened
from pomona.data.images import file_notes, mask
from pomona.data.images.file_notes import Spacing
from pomona.data.images.image_arrays import sample_type
from pomona.data.images.image_file import ImageFile, NoPixelsError, Size, Window
from pomona.data.reader_process import CrashError, LateArray, Reply, read_in_child, shared_number
from pomona.data.settings import Images

SMALL_FILE = 1 << 16  # bytes
MOST_CRASHES = 10  # of the reader process, if bad files are skipped

T = TypeVar("T")


@dataclass(frozen=True)
class Stack:
    """Decoded files.

    Attributes:
        x: (n, ..., C), in the first dtype that holds all values.
        rows: (n,) int64, indices of the files that were decoded, in order.
        notes: remarks on skipped files, and of ``file_notes``.
        spacings: voxel sizes (z, y, x) in mm of the volumes, the most frequent first.
        orientation: of the volumes' axes, if all headers say how they lie.
        traits: as in ``Dataset``.
        patients: identifier in each file's header of its patient, else of its coordinates (n,), or
            nothing.
        masks: (n, ...) uint8, if there are masks.
    """

    x: NDArray[Any]
    rows: NDArray[np.int64]
    notes: tuple[str, ...]
    spacings: tuple[Spacing, ...] = ()
    orientation: str = ""
    traits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    patients: tuple[str, ...] = ()
    masks: NDArray[np.uint8] | None = None


class _Reader:
    """Reads the files, in the reader process; its text is the file that it is at, for messages of
    this process.
    """

    def __init__(
        self, paths: Sequence[Path], settings: Images, masks: Sequence[Path], classes: Sequence[str]
    ) -> None:
        self.paths, self.masks, self.classes = paths, masks, classes
        self.window: Window | None = getattr(settings, "window", None)
        self.side = settings.resize
        self.index = shared_number()
        self.crashes: dict[int, str] = {}

    def __str__(self) -> str:
        return str(self.paths[self.index[0]])

    def opened(self, k: int) -> ImageFile:
        """Open file ``k``. Raises as ``opened``, and DataError if it has crashed its reader."""
        self.index[0] = k
        if k in self.crashes:
            raise DataError(self.crashes[k])
        return opened(self.paths[k])

    def decoded(
        self, k: int, file: ImageFile, channels: int
    ) -> tuple[NDArray[Any], mask.Mask | None]:
        """Return the values of file ``k``, and its mask."""
        self.index[0] = k
        size: Size | None = None
        if self.side and len(file.shape) == 3:
            size = (self.side, self.side)
        labels = mask.read(self.masks[k], file, self.classes, size) if self.masks else None
        return file.decoded(channels, size, self.window), labels


def stacked(
    name: str,
    paths: Sequence[Path],
    settings: Images,
    problems: Sequence[str] = (),
    masks: Sequence[Path] = (),
    classes: Sequence[str] = (),
) -> Stack:
    """Decode all files into one array, in a reader process; unreadable files are skipped if
    ``data.skip_bad`` is set.

    Args:
        name: of the data.
        paths: of the files.
        settings: size, window, memory, and whether bad files are skipped.
        problems: found earlier; the files are still checked, so that all problems are reported
            together.
        masks: of the files, if they have any.
        classes: names of the numbers in masks.

    Raises:
        DataError: these problems and those of every file; or sizes, channels or dtypes that do not
            match.
        ConfigError: a package is missing.
    """
    reader = _Reader(paths, settings, masks, classes)
    skip_bad = bool(getattr(settings, "skip_bad", False))
    total = sum(map(stored_bytes, (*paths, *masks)))
    while True:
        with LateArray(settings.memory_share) as x, LateArray(settings.memory_share) as y:

            def work(x: LateArray = x, y: LateArray = y) -> Reply:
                return _stack(name, reader, skip_bad, problems, (x, y))

            try:
                facts, (decoded,) = read_in_child(work, reader, total)
            except CrashError as crash:
                if not skip_bad or len(reader.crashes) == MOST_CRASHES:
                    raise
                reader.crashes[int(reader.index[0])] = str(crash)
                continue
            shape, dtype = facts["x"]
            return Stack(
                x.received(shape, dtype)[: len(decoded)],
                decoded,
                tuple(facts["notes"]),
                tuple((a, b, c) for a, b, c in facts["spacings"]),
                facts["orientation"],
                {trait: tuple(texts) for trait, texts in facts["traits"].items()},
                tuple(facts["patients"]),
                y.received(facts["masks"], np.uint8)[: len(decoded)] if masks else None,
            )


def _stack(
    name: str,
    reader: _Reader,
    skip_bad: bool,
    problems: Sequence[str],
    memory: tuple[LateArray, LateArray],
) -> Reply:
    """Read all headers, then decode the files into place; in the reader process."""
    count = len(reader.paths)
    files, bad, imageless = _opened(reader)
    read = list(files.values())
    faults = [*problems, *([] if skip_bad else bad)]
    faults += [*_several_sizes(read, reader.side), *_several_depths(read, reader.window)]
    if not files and not faults:
        first_fault = next(iter([*bad, *imageless]), "there are none")
        faults = [f"none of {count} files can be read as an image: {first_fault}"]
    if faults:  # all are reported together
        for _ in _results(files, lambda k: reader.decoded(k, files[k], files[k].shape[-1]), faults):
            pass
        refuse(name, faults)
    shape = _shape(read, reader.side)
    x = memory[0].allocate(shape, sample_type(file.dtype_in(reader.window) for file in read))
    y = memory[1].allocate(shape[:-1], np.uint8) if reader.masks else None
    decoded, remarks = list[int](), list[tuple[str, Sequence[str]]]()
    palettes, mask_names = dict[str, Mapping[int, str]](), file_notes.short_names(reader.masks)
    for k, (values, labels) in _results(
        files, lambda k: reader.decoded(k, files[k], shape[-1]), bad
    ):
        x[len(decoded)] = values
        if y is not None and labels is not None:
            y[len(decoded)] = labels.classes
            remarks.append((mask_names[k], labels.notes))
            palettes[mask_names[k]] = labels.colours
        decoded.append(k)
    if not skip_bad or not decoded:
        refuse(name, bad)
    facts = {
        "x": (shape, x.dtype.str),
        "masks": shape[:-1],
        "notes": (
            *_skipped(name, bad, count),
            *_remarks(read, count, imageless, reader.window),
            *_conversions(read),
            *file_notes.notes(read),
            *file_notes.by_note(remarks, "masks"),
            *file_notes.palettes(palettes),
        ),
        "spacings": file_notes.spacings(read),
        "orientation": file_notes.orientation(read),
        "traits": {
            name: [text for text, _ in Counter(values.values()).most_common(file_notes.MOST_VALUES)]
            for name, values in file_notes.traits(read).items()
        },
        "patients": [files[k].patient or files[k].reference for k in decoded],
    }
    return Reply(facts, [np.array(decoded, np.int64)])


def _shape(files: Sequence[ImageFile], side: int | None) -> tuple[int, ...]:
    """Return the shape of all files' values as one array; images have this side, if any."""
    first = files[0].shape
    spatial = (side, side) if side and len(first) == 3 else first[:-1]
    return (len(files), *spatial, max(file.shape[-1] for file in files))


def _opened(reader: _Reader) -> tuple[dict[int, ImageFile], list[str], list[str]]:
    """Return the files by number, the errors of those that cannot be read, and those of files that
    hold no image, as reports among DICOM slices.
    """
    files, bad, imageless = dict[int, ImageFile](), list[str](), list[str]()
    for number in range(len(reader.paths)):
        try:
            files[number] = reader.opened(number)
        except NoPixelsError as fault:
            imageless.append(str(fault))
        except DataError as fault:
            bad.append(str(fault))
    return files, bad, imageless


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


def _results(
    numbers: Iterable[int], function: Callable[[int], T], faults: list[str]
) -> Iterator[tuple[int, T]]:
    """Yield files with the function's result; errors of others are collected in ``faults``."""
    for number in numbers:
        try:
            yield number, function(number)
        except DataError as fault:
            faults.append(str(fault))


def _skipped(name: str, bad: Sequence[str], count: int) -> tuple[str, ...]:
    """Report skipped files: how many, and why."""
    if not bad:
        return ()
    folder = Path(name).parent if Path(name).suffix else name
    lines = [line.replace(f"{folder}/", "") for line in bad]
    remainder = [f"and {len(bad) - MOST_PROBLEMS} more"] if len(bad) > MOST_PROBLEMS else []
    return (
        f"{name}: {len(bad)} of {count} files are skipped (data.skip_bad)",
        *lines[:MOST_PROBLEMS],
        *remainder,
    )


def _remarks(
    files: Sequence[ImageFile], count: int, imageless: Sequence[str], window: Window | None
) -> list[str]:
    """Report files without an image, and images of 8 bits to which a window does not apply."""
    remarks = []
    if imageless:
        remarks.append(f"{len(imageless)} of {count} files are left out: {imageless[0]}")
    names = file_notes.short_names([file.path for file in files])
    pairs = zip(names, files, strict=True)
    stored = [name for name, x in pairs if x.dtype == np.uint8 and not x.is_measured]
    if window and 0 < len(stored) < len(files):
        remarks.append(
            f"{len(stored)} 8-bit images ({listed(stored, 1)}) are kept as stored; data.window "
            "applies to the others"
        )
    return remarks


def _conversions(files: Sequence[ImageFile]) -> Iterator[str]:
    """Report gray images that are read in colour."""
    colours = {f.path: "colour" if f.shape[-1] > 1 else "gray" for f in files if f.picture}
    if len({*colours.values()}) > 1:
        yield f"gray and colour images are mixed: {file_notes.shares(colours)}; all are read in RGB"


def _several_sizes(files: Sequence[ImageFile], side: int | None) -> Iterator[str]:
    """Report different sizes of images; those of pictures are resized to this side, if any."""
    # width first, as usual for pictures
    sizes = {file.path: file_notes.times(file.shape[-2::-1]) for file in files}
    flat = all(len(file.shape) == 3 for file in files)
    if len({*sizes.values()}) > 1 and not (side and flat):
        remedy = "set data.resize" if flat else "bring all volumes to one size"
        yield f"images of several sizes: {file_notes.shares(sizes)}; {remedy}"


def _several_depths(files: Sequence[ImageFile], window: Window | None) -> Iterator[str]:
    """Report 8 bits next to others, whose values differ in scale unless a window brings all to 8
    bits and no units differ.
    """
    bits = {file.path: f"{8 * file.dtype.itemsize} bits ({file.dtype})" for file in files}
    units = {file.unit for file in files if file.unit}
    mixed = 0 < sum(file.dtype == np.uint8 for file in files) < len(files)
    if mixed and (window is None or len(units) > 1):
        yield (
            f"8-bit images do not mix with others ({file_notes.shares(bits)}); convert all to "
            "one, or set data.window if their units are the same"
        )

"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): the official binary version, or a compact archive of
residuals.

The binary version is a folder or the original .tar.gz, which is read without unpacking it to disk.
The compact archive has ``x_train_res``, ``y_train``, ``x_test_res``, ``y_test``; residuals are (3,
N, H, W) uint8, see ``restore``.
"""

import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from pomona.core import files
from pomona.core.errors import DataError
from pomona.data import npz, targets
from pomona.data.array_file import StoredArray, file, opened, reading
from pomona.data.axes import PublicImages
from pomona.data.catalogue import locate
from pomona.data.dataset import Dataset
from pomona.data.images import image_arrays
from pomona.data.validation import blocks
from pomona.storage.mapped_array import allocate

SIDE, TRAINING = 32, 50_000
_TEN = "airplane automobile bird cat deer dog frog horse ship truck"
_FINE = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""
CLASSES = {
    "cifar10": tuple(_TEN.split()),
    "cifar100": tuple(_FINE.split()),
}
# Files, training first, and the label bytes before each image; the last byte is the class (the fine
# one).
_BINARY = {
    "cifar10": ((*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"), 1),
    "cifar100": (("train.bin", "test.bin"), 2),
}


def read(settings: PublicImages) -> Dataset:
    """Read CIFAR-10, or CIFAR-100 with fine labels; the name is marked if the file is not the full
    official data.
    """
    found = locate(settings)
    if found.suffix == ".npz":
        return _compact(found, settings)
    return _binary(found, settings)


def _binary(found: Path, settings: PublicImages) -> Dataset:
    files, n_labels = _BINARY[settings.name]
    record = np.dtype([("labels", "u1", (n_labels,)), ("planes", "u1", (3, SIDE, SIDE))])
    packed = found.name.endswith(".tar.gz")
    parts = (
        _in_archive(found, files, record)
        if packed
        else [_in_folder(found.parent / f, record) for f in files]
    )
    total = sum(map(len, parts))
    x = allocate((total, SIDE, SIDE, 3), np.uint8, settings.memory_share)
    numbers, row = [], 0
    for part in parts:
        y = np.empty(len(part), np.uint8)
        for start, records in part.chunks():
            x[row + start : row + start + len(records)] = records["planes"].transpose(0, 2, 3, 1)
            y[start : start + len(records)] = records["labels"][:, -1]
        numbers.append((part.where, y))
        row += len(part)
    return _dataset(settings.name, x, numbers, total - len(parts[-1]))


def _in_folder(path: Path, record: np.dtype[Any]) -> StoredArray:
    with reading(path):
        return _records(str(path), file(path).stat().st_size, record, partial(opened, path))


def _in_archive(path: Path, names: Sequence[str], record: np.dtype[Any]) -> list[StoredArray]:
    with reading(path), files.opened(file(path)) as raw, tarfile.open(fileobj=raw) as archive:
        members = {
            Path(member.name).name: member for member in archive.getmembers() if member.isfile()
        }
    missing = [name for name in names if name not in members]
    if missing:
        raise DataError(f"{path} has no {', '.join(missing)}; fetch the binary version again")
    return [
        _records(
            f"{path}, {name}", members[name].size, record, partial(_member, path, members[name])
        )
        for name in names
    ]


@contextmanager
def _member(path: Path, member: tarfile.TarInfo) -> Iterator[IO[bytes]]:
    with reading(path), files.opened(path) as raw, tarfile.open(fileobj=raw) as archive:
        stream = archive.extractfile(member)
        assert stream is not None  # only regular files are requested
        with stream:
            yield stream


def _records(where: str, size: int, record: np.dtype[Any], source: Any) -> StoredArray:
    rows, rest = divmod(size, record.itemsize)
    if rest or not rows:
        raise DataError(
            f"{where} has {size} bytes, not a multiple of {record.itemsize}; fetch it again"
        )
    return StoredArray(where, (rows,), record, source)


def _compact(path: Path, settings: PublicImages) -> Dataset:
    known = npz.index(path)
    residuals = [npz.stored(path, f"x_{part}_res", known) for part in ("train", "test")]
    labels = [npz.stored(path, f"y_{part}", known) for part in ("train", "test")]
    for part, y in zip(residuals, labels, strict=True):
        if part.dtype != np.uint8 or part.shape != (3, len(y), SIDE, SIDE):
            raise DataError(
                f"{part.where} is {part.dtype} {part.shape}, not uint8 (3, {len(y)}, {SIDE}, "
                f"{SIDE})"
            )
    total = sum(map(len, labels))
    x = allocate((total, SIDE, SIDE, 3), np.uint8, settings.memory_share)
    for part, images in zip(residuals, np.split(x, [len(labels[0])]), strict=True):
        part.into(images.transpose(3, 0, 1, 2))  # residuals are read into the memory of the images
        restore(images)
    dataset = _dataset(settings.name, x, [(y.where, y.load()) for y in labels], len(labels[0]))
    return replace(dataset, name=dataset.name + _inexact(path, known))


def _inexact(path: Path, known: npz.Index) -> str:
    """Return a suffix for the name if some images of a compact archive come from JPEG (members
    ``lossy_*``).
    """
    count = sum(len(npz.stored(path, name, known)) for name in known if name.startswith("lossy_"))
    return f" ({count} images from JPEG copies)" if count else ""


def _dataset(
    name: str, x: NDArray[np.generic], labels: Sequence[tuple[str, NDArray[Any]]], n_train: int
) -> Dataset:
    y, classes = targets.from_arrays(labels, "classes", CLASSES[name])
    title = (
        name if n_train == TRAINING else f"{name} (subset: {n_train} of {TRAINING} training rows)"
    )
    return Dataset(title, "image", x, y, classes, n_train, image_arrays.SHIFT, image_arrays.SCALE)


def restore(images: NDArray[np.uint8]) -> None:
    """Restore the images from residuals (N, H, W, 3) uint8, in place.

    The planes of a residual are (R - G, G, B - G) mod 256, and each of its pixels is the
    difference, mod 256 and plus 128, from the median of left, upper and left + upper - upper left
    (the LOCO-I predictor, Weinberger et al. 2000). The first row is predicted from the left only,
    the first column from above only, and the first pixel as 0.
    """
    height, width = images.shape[1:3]
    for _, block in blocks(images, 64):  # a block that fits the cache
        planes = np.ascontiguousarray(block.transpose(1, 2, 3, 0), np.int16) - np.int16(128)
        planes[:, 0] = np.cumsum(planes[:, 0], axis=0, dtype=np.int16) & 255
        planes[0] = np.cumsum(planes[0], axis=0, dtype=np.int16) & 255
        flat = planes.reshape(height * width, -1)
        # Pixels of an anti-diagonal depend only on earlier ones: it is a strided slice of the flat
        # image.
        for diagonal in range(2, height + width - 1) if min(height, width) > 1 else ():
            top, bottom = max(1, diagonal - width + 1), min(height - 1, diagonal - 1)
            first, last = top * (width - 1) + diagonal, bottom * (width - 1) + diagonal
            here, left, up, corner = (
                flat[first - back : last - back + 1 : width - 1]
                for back in (0, 1, width, width + 1)
            )
            low, high = np.minimum(left, up), np.maximum(left, up)
            here += np.clip(left + up - corner, low, high)
            here &= 255
        planes[:, :, ::2] += planes[:, :, 1:2]
        block[...] = (planes & 255).transpose(3, 0, 1, 2)

"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): the official binary version, or a compact archive of
residuals.

The binary version is a folder or the original .tar.gz, which is read without unpacking it to disk.
The compact archive has ``x_train_res``, ``y_train``, ``x_test_res``, ``y_test``; residuals are (3,
N, H, W) uint8, see ``restore``.
"""

import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError
from pomona.data import npz, targets
from pomona.data.array_file import NamedArray, concatenated, opened, reading
from pomona.data.axes import PublicImages
from pomona.data.catalogue import CATALOGUE, locate
from pomona.data.dataset import Dataset
from pomona.data.images import image_arrays
from pomona.data.reader_process import Reply, read_in_child
from pomona.data.validation import blocks

SIDE, TRAINING = 32, 50_000
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
    path = locate(settings)
    if path.suffix == ".npz":
        return _compact(path, settings)
    return _binary(path, settings)


def _binary(path: Path, settings: PublicImages) -> Dataset:
    names, labels = _BINARY[settings.name]
    packed = path.name.endswith(".tar.gz")
    sources = [f"{path}, {name}" if packed else str(path.parent / name) for name in names]

    def records() -> Reply:
        contents = _members(path, names) if packed else map(_content, map(Path, sources))
        arrays = []
        for source, content in zip(sources, contents, strict=True):
            rows, remainder = divmod(len(content), labels + 3 * SIDE**2)
            if remainder or not rows:
                raise DataError(
                    f"{source} has {len(content)} bytes, not a multiple of {labels + 3 * SIDE**2}; "
                    "fetch it again"
                )
            values = np.frombuffer(content, np.uint8).reshape(rows, -1)
            planes = values[:, labels:].reshape(rows, 3, SIDE, SIDE)
            arrays += [planes.transpose(0, 2, 3, 1), values[:, labels - 1]]
        return Reply(None, arrays)

    arrays = read_in_child(records, path).arrays
    images, numbers = ([*map(NamedArray, sources, arrays[first::2])] for first in (0, 1))
    x = concatenated(images, (SIDE, SIDE, 3), np.uint8, settings.memory_share)
    y = [(content.source, content.values) for content in numbers]
    return _dataset(settings.name, x, y, len(x) - len(images[-1]))


def _content(path: Path) -> bytes:
    """Return the bytes of a file."""
    with opened(path) as stream:
        return stream.read()


def _members(path: Path, names: Sequence[str]) -> list[bytes]:
    """Return the contents of files of an archive, wherever in it they are."""
    with reading(path), opened(path) as raw, tarfile.open(fileobj=raw) as archive:
        contents = {
            Path(member.name).name: stream.read()
            for member in archive
            if (stream := archive.extractfile(member)) and Path(member.name).name in names
        }
    if missing := [name for name in names if name not in contents]:
        raise DataError(f"{path} has no {', '.join(missing)}; fetch the binary version again")
    return [contents[name] for name in names]


def _compact(path: Path, settings: PublicImages) -> Dataset:
    """Read an archive of residuals; the name says how many images come from JPEG (``lossy_*``)."""
    archive = npz.archive(path)
    residuals = [archive[f"x_{residual}_res"] for residual in ("train", "test")]
    labels = [archive[f"y_{residual}"] for residual in ("train", "test")]
    for residual, y in zip(residuals, labels, strict=True):
        if residual.dtype != np.uint8 or residual.shape != (3, len(y), SIDE, SIDE):
            raise DataError(
                f"{residual.source} is {residual.dtype} {residual.shape}, not uint8 (3, {len(y)}, {SIDE}, "
                f"{SIDE})"
            )
    planes = [NamedArray(r.source, r.values.transpose(1, 2, 3, 0)) for r in residuals]
    x: NDArray[Any] = concatenated(planes, (SIDE, SIDE, 3), np.uint8, settings.memory_share)
    restore(x)
    dataset = _dataset(settings.name, x, [(y.source, y.values) for y in labels], len(labels[0]))
    lossy = sum(len(x) for name, x in archive.arrays.items() if name.startswith("lossy_"))
    suffix = f" ({lossy} images from JPEG copies)" if lossy else ""
    return replace(dataset, name=dataset.name + suffix)


def _dataset(
    name: str, x: NDArray[np.generic], labels: Sequence[tuple[str, NDArray[Any]]], n_train: int
) -> Dataset:
    y, classes = targets.from_arrays(labels, "classes", CATALOGUE[name].classes)
    if n_train != TRAINING:
        name = f"{name} (subset: {n_train} of {TRAINING} training rows)"
    return Dataset(name, "image", x, y, classes, n_train, image_arrays.SHIFT, image_arrays.SCALE)


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
            steps = (0, 1, width, width + 1)
            pixels, left, above, corner = (
                flat[first - back : last - back + 1 : width - 1] for back in steps
            )
            low, high = np.minimum(left, above), np.maximum(left, above)
            pixels += np.clip(left + above - corner, low, high)
            pixels &= 255
        planes[:, :, ::2] += planes[:, :, 1:2]
        block[...] = (planes & 255).transpose(3, 0, 1, 2)

"""The IDX format of MNIST, plain or gzip: MNIST, Fashion-MNIST, EMNIST, and own files with the same
names.
"""

import re
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError
from pomona.data.array_file import NamedArray, file, opened, paired
from pomona.data.axes import Pictures, PublicImages
from pomona.data.catalogue import CATALOGUE, locate, own_path
from pomona.data.dataset import Dataset
from pomona.data.images import image_arrays
from pomona.data.reader_process import Reply, read_in_child
from pomona.data.validation import blocks

TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def stored(paths: list[Path]) -> list[NamedArray]:
    """Read IDX files, in a child process. Raises DataError for other and for damaged files."""
    size = sum(file(path).stat().st_size for path in paths)
    reply = read_in_child(lambda: Reply(None, [_values(path) for path in paths]), paths[0], size)
    return [NamedArray(str(path), values) for path, values in zip(paths, reply.arrays, strict=True)]


def _values(path: Path) -> NDArray[Any]:
    """Return the array of a file: two zero bytes, a type, the number of axes, the axes, the values;
    big-endian.
    """
    with opened(path) as stream:
        start = stream.read(4)
        if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in TYPES or not start[3]:
            raise DataError(f"{path} is not an IDX file; fetch it again")
        axes, content = stream.read(4 * start[3]), stream.read()
    if len(axes) < 4 * start[3]:
        raise DataError(f"{path} ends within its header; fetch it again")
    shape, dtype = tuple(map(int, np.frombuffer(axes, ">u4"))), np.dtype(TYPES[start[2]])
    if (size := prod(shape) * dtype.itemsize) != len(content):
        raise DataError(f"{path} promises {size} bytes but has {len(content)}; fetch it again")
    return np.frombuffer(content, dtype).reshape(shape)


def read(settings: PublicImages) -> Dataset:
    """Read MNIST, Fashion-MNIST or an EMNIST split from the official files.

    EMNIST's images are stored transposed and are rotated upright; its letter labels start at 1
    there and at 0 here.
    """
    name, images = settings.name, locate(settings)
    first = 1 if name == "emnist-letters" else 0
    pairs, classes = _pairs([images, _test(images)]), CATALOGUE[name].classes
    dataset = image_arrays.dataset(
        name, pairs, 1, settings.memory_share, classes=classes, first=first
    )
    if name.startswith("emnist-"):
        for _, rows in blocks(dataset.x, 4096):
            rows[...] = rows.swapaxes(1, 2).copy()
    return dataset


def read_own(settings: Pictures) -> Dataset:
    """Read own IDX files from a folder: train-images-idx3-ubyte, train-labels-idx1-ubyte, optional
    test set (t10k-).
    """
    path = images = own_path(settings)
    if path.is_dir():
        images = min(path.glob("*train-images-idx[34]-ubyte*"), default=path)
    if "train-images" not in images.name:
        raise DataError(
            f"{path} has no train-images-idx3-ubyte or train-images-idx3-ubyte.gz; add it"
        )
    test, share = _test(images), settings.memory_share
    pairs = _pairs([images, test] if test.exists() else [images])
    return image_arrays.dataset(str(path), pairs, 1, share, classes=settings.classes)


def _test(images: Path) -> Path:
    """Return the path of the test images: EMNIST says test, the others say t10k."""
    names = [images.name.replace("train-images", f"{part}-images") for part in ("t10k", "test")]
    paths = [_existing(images.with_name(name)) for name in names]
    return next((path for path in paths if path.exists()), paths[0])


def _existing(path: Path) -> Path:
    """Return the file, or its compressed or uncompressed variant if only that exists."""
    twin = path.with_suffix("") if path.suffix == ".gz" else path.with_name(f"{path.name}.gz")
    return twin if twin.exists() and not path.exists() else path


def _pairs(images: list[Path]) -> list[tuple[NamedArray, NamedArray]]:
    names = [re.sub(r"-images-idx\d", "-labels-idx1", path.name) for path in images]
    labels = [_existing(images[0].with_name(name)) for name in names]
    arrays = stored([*images, *labels])
    return list(map(paired, arrays[: len(images)], arrays[len(images) :]))

"""The IDX format of MNIST, plain or gzip: MNIST, Fashion-MNIST, EMNIST, and own files with the same
names.
"""

import re
import string
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from pomona.core import files
from pomona.core.errors import DataError
from pomona.data.array_file import (
    MOST_PACKED,
    StoredArray,
    file,
    is_gzip,
    opened,
    paired,
    promised,
    reading,
)
from pomona.data.axes import Pictures, PublicImages
from pomona.data.catalogue import locate, own_path
from pomona.data.dataset import Dataset
from pomona.data.images import image_arrays
from pomona.data.validation import blocks

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_DIGITS, _UPPER = tuple(string.digits), tuple(string.ascii_uppercase)
_MERGED = (*_DIGITS, *_UPPER, *"abdefghnqrt")
CLASSES = {
    "mnist": _DIGITS,
    "fashion-mnist": (
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    "emnist-byclass": (*_DIGITS, *_UPPER, *string.ascii_lowercase),
    "emnist-bymerge": _MERGED,
    "emnist-balanced": _MERGED,
    "emnist-letters": _UPPER,
    "emnist-digits": _DIGITS,
    "emnist-mnist": _DIGITS,
}


def stored(path: Path) -> StoredArray:
    """Open an IDX file by its header: two zero bytes, a type, the number of axes, the axes
    (big-endian).

    Raises:
        DataError: not an IDX header, or one that promises more than the file can contain.
    """
    with reading(path):
        with files.opened(file(path)) as raw:
            packed, size = is_gzip(raw), path.stat().st_size
        with opened(path) as stream:
            magic = stream.read(4)
            if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES or not magic[3]:
                raise DataError(
                    f"{path} is not an IDX file (it starts with {magic.hex() or 'nothing'}); "
                    "fetch it again"
                )
            axes = stream.read(4 * magic[3])
    if len(axes) < 4 * magic[3]:
        raise DataError(f"{path} ends within its header; fetch it again")
    start = 4 + len(axes)
    shape = struct.unpack(f">{magic[3]}I", axes)
    room = MOST_PACKED * size if packed else size - start
    return promised(
        StoredArray(str(path), shape, np.dtype(_TYPES[magic[2]]), partial(_body, path, start)), room
    )


@contextmanager
def _body(path: Path, start: int) -> Iterator[IO[bytes]]:
    with opened(path) as stream:
        stream.read(start)
        yield stream


def read(settings: PublicImages) -> Dataset:
    """Read MNIST, Fashion-MNIST or an EMNIST split from the official files.

    EMNIST's images are stored transposed and are rotated upright; its letter labels start at 1
    there and at 0 here.
    """
    name, images = settings.name, locate(settings)
    parts = [_pair(images), _pair(_test(images))]
    first = 1 if name == "emnist-letters" else 0
    dataset = image_arrays.dataset(
        name, parts, 1, settings.memory_share, classes=CLASSES[name], first=first
    )
    if name.startswith("emnist-"):
        for _, rows in blocks(dataset.x, 4096):
            rows[...] = rows.swapaxes(1, 2).copy()
    return dataset


def own(settings: Pictures) -> Dataset:
    """Read own IDX files from a folder: train-images-idx3-ubyte, train-labels-idx1-ubyte, optional
    test set (t10k-).
    """
    path = own_path(settings)
    images = path if path.is_file() else _first(path, "*train-images-idx[34]-ubyte*")
    if images is None or "train-images" not in images.name:
        raise DataError(
            f"{path} has no train-images-idx3-ubyte or train-images-idx3-ubyte.gz; add it"
        )
    test = _test(images)
    parts = [_pair(images), *([_pair(test)] if test.exists() else [])]
    return image_arrays.dataset(
        str(path), parts, 1, settings.memory_share, classes=settings.classes
    )


def _first(folder: Path, pattern: str) -> Path | None:
    return min(folder.glob(pattern), default=None)


def _test(images: Path) -> Path:
    """Return the path of the test images: EMNIST says test, the others say t10k."""
    named = [
        images.with_name(images.name.replace("train-images", f"{part}-images"))
        for part in ("t10k", "test")
    ]
    both = [_either(path) for path in named]
    return next((path for path in both if path.exists()), both[0])


def _either(path: Path) -> Path:
    """Return the file, or its compressed or uncompressed variant if only that exists."""
    twin = path.with_suffix("") if path.suffix == ".gz" else path.with_name(f"{path.name}.gz")
    return twin if twin.exists() and not path.exists() else path


def _pair(images: Path) -> tuple[StoredArray, StoredArray]:
    labels = images.with_name(re.sub(r"-images-idx\d", "-labels-idx1", images.name))
    return paired(stored(images), stored(_either(labels)))

"""Arrays in files: headers are validated before memory is allocated; rows are streamed into
place.
"""

import gzip
import math
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pomona.core import files
from pomona.core.errors import DataError, enough
from pomona.storage.mapped_array import allocate

CHUNK = 1 << 20
# Deflate compresses by at most 1032 to 1 (as zlib states); a header that promises more is false.
MOST_PACKED = 1032
FAULTS = (
    OSError,
    EOFError,
    RuntimeError,
    zlib.error,
    zipfile.BadZipFile,
    tarfile.TarError,
    struct.error,
)


@contextmanager
def reading(where: object) -> Iterator[None]:
    """Turn errors from a damaged or missing file into one DataError with its name."""
    try:
        yield
    except FAULTS as fault:
        raise DataError(
            f"cannot read {where} ({fault}); check the file, or fetch it again"
        ) from fault


def file(path: Path) -> Path:
    """Return the path after checking that it is a regular file.

    Raises DataError; see ``files.regular``.
    """
    return files.regular(
        path, lambda what: DataError(f"{what}; correct the path, or put the file there")
    )


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, decompressing gzip (recognised by its first bytes, not by its name)."""
    with reading(path), files.opened(file(path)) as raw:
        packed = is_gzip(raw)
        with gzip.GzipFile(fileobj=raw) if packed else raw as stream:
            yield cast("IO[bytes]", stream)


def is_gzip(raw: IO[bytes]) -> bool:
    """Return whether an open file starts like gzip; restores its position."""
    start = raw.read(2)
    raw.seek(0)
    return start == b"\x1f\x8b"


@dataclass(frozen=True)
class StoredArray:
    """An array in a file that has not been read yet.

    Attributes:
        where: file (and member), for messages.
        shape: as in the header; axis 0 is the rows.
        dtype: as stored, including byte order.
        open: opens the stream at the array's first byte.
        fortran: whether the first axis varies fastest in the file.
    """

    where: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    open: Callable[[], AbstractContextManager[IO[bytes]]]
    fortran: bool = False

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def size(self) -> int:
        """The number of bytes promised by the header."""
        return math.prod(self.shape) * self.dtype.itemsize

    def unpacking(self) -> AbstractContextManager[None]:
        """Add the array's name and header to memory errors. Raises OutOfMemoryError."""
        return enough(
            f"{self.where} unpacks to {self.size / 1e9:.1f} GB (shape {self.shape}, {self.dtype})",
            "store fewer rows or a smaller dtype, or take a machine with more memory",
        )

    def chunks(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield (first row, rows), read-only and about a megabyte each, for an array stored row by
        row.
        """
        with self.open() as stream:
            yield from _chunks(stream, self.shape, self.dtype, self.where)
            _end(stream, self.where)

    def into(self, out: NDArray[Any]) -> None:
        """Read the array into ``out``, of the same shape and any numeric dtype."""
        with self.open() as stream:
            _fill(stream, out.T if self.fortran else out, self.dtype, self.where)
            _end(stream, self.where)

    def load(self) -> NDArray[Any]:
        """Read the array unchanged (for small arrays)."""
        with self.unpacking():
            out = np.empty(self.shape, self.dtype)
        self.into(out)
        return out


def _chunks(
    stream: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any], where: str
) -> Iterator[tuple[int, NDArray[Any]]]:
    row_bytes = math.prod(shape[1:]) * dtype.itemsize
    step = max(1, CHUNK // max(1, row_bytes))
    for start in range(0, shape[0], step):
        rows = min(step, shape[0] - start)
        raw = stream.read(rows * row_bytes)
        if len(raw) < rows * row_bytes:
            raise DataError(
                f"{where} ends early, in row {start + len(raw) // row_bytes} of {shape[0]}; fetch "
                "it again"
            )
        yield start, np.ndarray((rows, *shape[1:]), dtype, raw)


def _fill(stream: IO[bytes], out: NDArray[Any], dtype: np.dtype[Any], where: str) -> None:
    if out.ndim > 1 and len(out) and out[0].size * dtype.itemsize > CHUNK:
        for part in out:
            _fill(stream, part, dtype, where)
        return
    # Values out of the dtype's range become infinite; the check that follows reports their row.
    with np.errstate(over="ignore", invalid="ignore"):
        for start, rows in _chunks(stream, out.shape, dtype, where):
            out[start : start + len(rows)] = rows


def _end(stream: IO[bytes], where: str) -> None:
    """Read past the last byte, which also makes the stream verify its checksum."""
    if stream.read(1):
        raise DataError(f"{where} holds more bytes than its header says; fetch it again")


def promised(stored: StoredArray, room: int) -> StoredArray:
    """Return the array after checking that its header promises no more bytes than the file can
    contain.
    """
    if stored.size > room:
        raise DataError(
            f"{stored.where} promises {stored.size} bytes but has room for {room}; fetch it again"
        )
    return stored


def paired(x: StoredArray, y: StoredArray) -> tuple[StoredArray, StoredArray]:
    """Return inputs and labels after checking that they have the same number of rows."""
    if len(x) != len(y):
        raise DataError(
            f"{x.where} has {len(x)} rows but {y.where} has {len(y)}; give each row one label"
        )
    return x, y


def joined(
    parts: Sequence[StoredArray], row: tuple[int, ...], dtype: DTypeLike, memory_share: float
) -> NDArray[np.generic]:
    """Join the parts into one new array, with each row in the shape ``row``.

    Raises:
        DataError: rows of different shapes, or a damaged file.
    """
    for part in parts:
        if part.shape[1:] != parts[0].shape[1:]:
            raise DataError(
                f"rows of {part.where} have shape {part.shape[1:]}, those of {parts[0].where} "
                f"{parts[0].shape[1:]}; give all parts the same shape"
            )
    with max(parts, key=lambda part: part.size).unpacking():
        out = allocate((sum(map(len, parts)), *row), dtype, memory_share)
    start = 0
    for part in parts:
        part.into(out[start : start + len(part)].reshape(part.shape, copy=False))
        start += len(part)
    return out

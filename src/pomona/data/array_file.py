"""Files and arrays with their names, for messages; arrays joined to one."""

import gzip
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pomona.core import files
from pomona.core.errors import DataError
from pomona.storage.mapped_array import allocate

_OF_PACKING = (struct.error, zlib.error, zipfile.BadZipFile, tarfile.TarError)
FAULTS = (OSError, EOFError, RuntimeError, *_OF_PACKING)
_SHEET = re.compile(r"(.+\.(?:ods|xls|xlsb|xlsm|xlsx))#(.+)", re.IGNORECASE)


@contextmanager
def reading(source: object) -> Iterator[None]:
    """Turn errors from a damaged or missing file into one DataError with its name."""
    try:
        yield
    except FAULTS as fault:
        raise DataError(f"cannot read {source} ({fault}); check or fetch it again") from fault


def file(path: Path) -> Path:
    """Return the path after checking that it is a regular file.

    Raises DataError; see ``files.regular``.
    """
    return files.regular(
        path, lambda reason: DataError(f"{reason}; correct the path, or put the file there")
    )


def workbook(path: Path) -> tuple[Path, str]:
    """Return the file and the sheet of ``book.xlsx#sheet``; of other paths the path, no sheet."""
    sheet = _SHEET.fullmatch(path.name)
    return (path.with_name(sheet[1]), sheet[2]) if sheet and not path.exists() else (path, "")


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, decompressing gzip (recognised by its first bytes, not by its name)."""
    with reading(path), files.opened(file(path)) as raw:
        packed = raw.peek(2)[:2] == b"\x1f\x8b"
        with gzip.GzipFile(fileobj=raw) if packed else raw as stream:
            yield cast("IO[bytes]", stream)


@dataclass(frozen=True)
class NamedArray:
    """An array and where it comes from, for messages; axis 0 is the rows."""

    source: str
    values: NDArray[Any]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values."""
        return self.values.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        return self.values.dtype


def paired(x: NamedArray, y: NamedArray) -> tuple[NamedArray, NamedArray]:
    """Return inputs and labels after checking that they have the same number of rows."""
    if len(x) != len(y):
        raise DataError(
            f"{x.source} has {len(x)} rows but {y.source} has {len(y)}; give each row one label"
        )
    return x, y


def concatenated(
    arrays: Sequence[NamedArray], row: tuple[int, ...], dtype: DTypeLike, memory_share: float
) -> NDArray[np.generic]:
    """Join arrays into one new array, with each row in the shape ``row``.

    Raises DataError for rows of different shapes.
    """
    for array in arrays:
        if array.shape[1:] != arrays[0].shape[1:]:
            raise DataError(
                f"rows of {array.source} have shape {array.shape[1:]}, but those of "
                f"{arrays[0].source} {arrays[0].shape[1:]}; give all parts the same shape"
            )
    rows = allocate((sum(map(len, arrays)), *row), dtype, memory_share)
    values = [array.values.reshape(len(array), *row) for array in arrays]
    with np.errstate(over="ignore", invalid="ignore"):  # the check that follows reports the row
        np.concatenate(values, out=rows, casting="unsafe")
    return rows

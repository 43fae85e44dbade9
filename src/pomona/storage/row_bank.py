"""Banks of rows: each row is stored once, under a number that is never reused.

A memory bank belongs to one process. A file bank is shared with forked processes: only the creator
adds and drops rows, the others read. Its file lies on disk, where the system can evict pages, or in
memory.
"""

import mmap
import os
import tempfile
from collections.abc import Callable, Collection
from itertools import count
from typing import IO, Any, Protocol, Self
from weakref import WeakValueDictionary, finalize

from pomona.core.errors import StorageError
from pomona.core.lazy_torch import Tensor, torch
from pomona.storage.mapped_array import reserve

PIECE = 2**30
"""Bytes of a file that are mapped at once and by which it grows, unless a row is longer."""
_SLOT = 32  # low bits of a number: the row's slot; high bits: which of the slot's rows it is


class RowBank(Protocol):
    """Rows (d,) by number. Rows, and the results of ``bank[index]``, must not be changed."""

    def put(self, row: Tensor) -> int:
        """Copy a row (d,) into the bank. Returns its number."""

    def row(self, number: int) -> Tensor:
        """Return the row (d,) with this number, without copying."""

    def retain(self, numbers: Collection[int]) -> None:
        """Drop all rows except these."""

    def __getitem__(self, index: Tensor) -> Tensor:
        """Return the rows (..., d) of numbers (...) as one matrix, valid until the next call."""

    @property
    def filed(self) -> int:
        """The bytes of its file on disk; 0 in memory."""


class WorkMatrix:
    """Rows by number in one contiguous buffer, which the next call overwrites.

    A row that is already in the right place is not copied again, since clients hold many of each
    other's rows.
    """

    def __init__(self) -> None:
        self._rows, self._index = torch.empty(0), torch.empty(0, dtype=torch.long)

    def gather(self, index: Tensor, row: Callable[[int], Tensor]) -> Tensor:
        """Return the rows (..., d) of numbers (...), not empty, each from ``row(number)``."""
        if self._index.shape != index.shape:
            example, self._rows = row(int(index.reshape(-1)[0])), torch.empty(0)
            self._rows = example.new_empty(*index.shape, len(example))
            self._index = torch.full_like(index, -1)
        for position in map(tuple, (self._index != index).nonzero().tolist()):
            self._rows[position] = row(int(index[position]))
            self._index[position] = index[position]
        return self._rows


class MemoryBank:
    """Rows in one process's memory, on any device."""

    filed = 0

    def __init__(self) -> None:
        self._rows: dict[int, Tensor] = {}
        self._numbers, self._work = count(), WorkMatrix()

    def put(self, row: Tensor) -> int:
        """As ``RowBank``."""
        number = next(self._numbers)
        self._rows[number] = row.clone()
        return number

    def row(self, number: int) -> Tensor:
        """As ``RowBank``."""
        return self._rows[number]

    def retain(self, numbers: Collection[int]) -> None:
        """As ``RowBank``."""
        self._rows = {number: self._rows[number] for number in numbers}

    def __getitem__(self, index: Tensor) -> Tensor:
        """As ``RowBank``."""
        return self._work.gather(index, self.row)


class FileBank:
    """Rows of equal length in an unnamed file, which is deleted with the last process that uses it.

    It grows in pieces and never shrinks; new rows reuse the slots of dropped ones.
    """

    def __init__(self, file: IO[bytes], example: Tensor, rows: int, on_disk: bool) -> None:
        """Create a bank in an empty file for rows like ``example`` (d,); it grows by ``rows``,
        at most a piece.
        """
        self._file, self._on_disk = file, on_disk
        finalize(self, file.close)
        self._width, self._dtype = len(example), example.dtype
        # the alignment of PyTorch's own memory
        self._stride = max(1, -(-example.nbytes // 64)) * 64
        self._rows = max(1, min(rows, PIECE // self._stride))
        self._piece = (
            -(-self._rows * self._stride // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        )
        self._pieces: dict[int, Tensor] = {}
        self._kept, self._free, self._size = set[int](), list[int](), 0
        self._made, self._work = count(), WorkMatrix()
        self._name = next(_names)
        _banks[self._name] = self

    @classmethod
    def on_disk(cls, example: Tensor, rows: int) -> Self:
        """Create a bank in a temporary file."""
        return cls(tempfile.TemporaryFile(), example, rows, on_disk=True)

    @classmethod
    def in_memory(cls, example: Tensor, rows: int) -> Self:
        """Create a bank in shared memory for forked processes; in a file as ``on_disk`` if the
        system has none.
        """
        if not hasattr(os, "memfd_create"):
            return cls.on_disk(example, rows)
        return cls(os.fdopen(os.memfd_create("pomona-rows"), "w+b"), example, rows, on_disk=False)

    @property
    def filed(self) -> int:
        """As ``RowBank``."""
        return os.fstat(self._file.fileno()).st_size if self._on_disk else 0

    def put(self, row: Tensor) -> int:
        """As ``RowBank``. Raises StorageError if there is no space."""
        if not self._free:
            self._grow()
        number = next(self._made) << _SLOT | self._free.pop()
        self.row(number).copy_(row)
        self._kept.add(number)
        return number

    def row(self, number: int) -> Tensor:
        """As ``RowBank``."""
        piece, slot = divmod(number % 2**_SLOT, self._rows)
        offset = slot * self._stride // self._dtype.itemsize
        return self._mapped(piece)[offset : offset + self._width]

    def retain(self, numbers: Collection[int]) -> None:
        """As ``RowBank``."""
        retained = set(numbers)
        self._free += [number % 2**_SLOT for number in sorted(self._kept - retained)]
        self._kept &= retained

    def __getitem__(self, index: Tensor) -> Tensor:
        """As ``RowBank``."""
        return self._work.gather(index, self.row)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a name, for forked processes."""
        return _inherited, (self._name,)

    def _grow(self) -> None:
        size = self._size + self._piece
        try:
            reserve(self._file.fileno(), size)
        except OSError as fault:
            raise StorageError(
                f"no room for {size} bytes of clients' copies in {tempfile.gettempdir()} "
                f"({fault}); free space, point TMPDIR elsewhere, or raise state_memory"
            ) from fault
        first = self._size // self._piece * self._rows
        self._free, self._size = list(range(first, first + self._rows))[::-1], size

    def _mapped(self, piece: int) -> Tensor:
        """Return a piece of the file as numbers, mapped on first use in this process."""
        if piece not in self._pieces:
            region = mmap.mmap(self._file.fileno(), self._piece, offset=piece * self._piece)
            self._pieces[piece] = torch.frombuffer(region, dtype=self._dtype)
        return self._pieces[piece]


_names = count()
_banks: WeakValueDictionary[int, FileBank] = WeakValueDictionary()


def _inherited(name: int) -> FileBank:
    """Return the bank of this name that the process inherited by forking."""
    return _banks[name]

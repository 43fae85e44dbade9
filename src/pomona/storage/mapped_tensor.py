"""Tensors in memory-mapped scratch files, with algebra that loads only the part in use.

They behave like any other tensor. The file is unlinked once it is mapped, so that it disappears
with the tensor or with the process. Results of operations by columns or by rows lie in the same
folder.
"""

import ctypes
import math
import mmap
import operator
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import islice, pairwise
from pathlib import Path

from pomona.core.errors import StorageError
from pomona.core.lazy_torch import Tensor, torch
from pomona.storage.mapped_array import reserve

SLICE = 2**18
"""Numbers of a row processed at once, in files and in memory, so that sums have the same bits in
both.
"""
_PREFIX = "pomona-scratch-"
# for madvise on Linux and macOS: releases the pages of a shared mapping, the file keeps their
# content
_DONTNEED = 4


def mapped(shape: Sequence[int], dtype: "torch.dtype", folder: Path) -> Tensor:
    """Allocate a zero tensor in a file in a folder; an empty tensor has no file.

    Raises StorageError if there is no space, here rather than on a later write.
    """
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return torch.empty(tuple(shape), dtype=dtype)
    try:
        with tempfile.NamedTemporaryFile(prefix=_PREFIX, dir=folder) as file:
            reserve(file.fileno(), size)
            flat = torch.from_file(file.name, shared=True, size=math.prod(shape), dtype=dtype)
    except (OSError, RuntimeError) as fault:  # PyTorch raises the latter for a failed open
        reason = getattr(fault, "strerror", None) or fault
        raise StorageError(
            f"no room for {size / 1e6:.1f} MB of models in {folder} ({reason}); make room, then "
            "resume"
        ) from fault
    return flat.view(tuple(shape))


def in_file(tensor: Tensor) -> bool:
    """Return whether a tensor is in a file."""
    return tensor.untyped_storage().filename is not None


def folder_of(tensor: Tensor) -> Path | None:
    """Return the folder of a tensor's file; None for a tensor in memory."""
    if tensor.device.type != "cpu":
        return None
    name = tensor.untyped_storage().filename
    return Path(name).parent if name and Path(name).name.startswith(_PREFIX) else None


def let_go(tensor: Tensor) -> None:
    """Release the memory of a mapped tensor's pages, which stay in its file; does nothing for
    tensors in memory.
    """
    if folder_of(tensor) is None or not tensor.numel():
        return
    address = tensor.data_ptr()
    stop = (
        address
        + (sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1)
        * tensor.itemsize
    )
    address -= address % mmap.PAGESIZE
    ctypes.CDLL(None).madvise(ctypes.c_void_p(address), ctypes.c_size_t(stop - address), _DONTNEED)


def next_to(tensor: Tensor, reference: Tensor) -> Tensor:
    """Copy a tensor into the folder of the other's file if only the other lies in a file."""
    folder = folder_of(reference)
    return tensor if folder is None or folder_of(tensor) is not None else filed(tensor, folder)


def filed(tensor: Tensor, folder: Path) -> Tensor:
    """Copy a tensor into a file in a folder. Raises StorageError if there is no space."""
    new = mapped(tensor.shape, tensor.dtype, folder).copy_(tensor)
    let_go(new)
    return new


def slices(tensor: Tensor) -> Iterator[Tensor]:
    """Yield a tensor's numbers in slices (k,) of at most ``SLICE``; one empty slice for an empty
    tensor.
    """
    for piece in tensor.reshape(-1).split(SLICE):
        yield piece
        let_go(piece)


class Chunked:
    """Rows (..., d) of any size, and expressions on them, computed at most ``SLICE`` columns at a
    time.

    The words are torch's. ``W[places]``, ``W - V`` and ``apply`` return expressions; ``A @ W``,
    ``mean``, ``index_add``, ``norms``, ``gram`` and ``compute`` return tensors. Rows (m, d) that
    result lie in a file if one of the tensors does; a single row (d,) is in memory.
    """

    def __init__(
        self, *tensors: Tensor, function: Callable[..., Tensor] = lambda rows: rows
    ) -> None:
        """Make an expression: a function of the same columns of tensors (..., d)."""
        self._tensors, self._function = tensors, function

    def apply(self, function: Callable[..., Tensor], *operands: "Tensor | Chunked") -> "Chunked":
        """Return a function of these rows and of others (..., d) that treats each column by
        itself.
        """
        expressions = [self, *map(chunked, operands)]

        def applied(*pieces: Tensor) -> Tensor:
            columns = iter(pieces)
            return function(
                *(
                    expression._function(*islice(columns, len(expression._tensors)))
                    for expression in expressions
                )
            )

        return Chunked(
            *(tensor for expression in expressions for tensor in expression._tensors),
            function=applied,
        )

    def __getitem__(self, index: Tensor) -> "Chunked":
        """Return some rows, by a mask or by their numbers."""
        return self.apply(lambda rows: rows[index])

    def __sub__(self, operand: "Tensor | Chunked") -> "Chunked":
        """Return the difference from other rows (..., d)."""
        return self.apply(operator.sub, operand)

    def __rmatmul__(self, A: Tensor) -> Tensor:
        """Return the product of a matrix (m, n), or of one row of one (n,), with rows (n, d)."""
        return self.apply(lambda rows: A @ rows).compute()

    def mean(self, dim: int) -> Tensor:
        """Return the mean over a dimension but the last."""
        return self.apply(lambda rows: rows.mean(dim)).compute()

    def index_add(
        self, dim: int, index: Tensor, source: "Tensor | Chunked", alpha: float = 1
    ) -> Tensor:
        """Return the rows with ``alpha`` times the rows of a source added in some places."""
        return self.apply(
            lambda rows, added: rows.index_add(dim, index, added, alpha=alpha), source
        ).compute()

    def norms(self) -> Tensor:
        """Return the Euclidean norm (n,) of each row (n, d)."""
        chunk_norms = [torch.linalg.vector_norm(piece, dim=-1) for piece in self._pieces()]
        norms: Tensor = (
            chunk_norms[0]
            if len(chunk_norms) == 1
            else torch.linalg.vector_norm(torch.stack(chunk_norms), dim=0)
        )
        return norms

    def gram(self, scale: float = 1.0) -> Tensor:
        """Return the inner products (n, n), times ``scale``, of all pairs of rows (n, d)."""
        return reduce(operator.add, (scale * piece @ piece.T for piece in self._pieces()))

    def compute(self) -> Tensor:
        """Return the expression as a tensor (..., d)."""
        folder = next(filter(None, map(folder_of, self._tensors)), None)
        chunks, result, offset = [], None, 0
        for chunk in self._pieces():
            if chunk.dim() < 2 or folder is None:
                chunks.append(chunk)
                continue
            if result is None:
                shape = (*chunk.shape[:-1], self._tensors[0].shape[-1])
                result = mapped(shape, chunk.dtype, folder)
            result[..., offset : offset + chunk.shape[-1]] = chunk
            offset += chunk.shape[-1]
            let_go(result)
        if result is not None:
            return result
        return chunks[0] if len(chunks) == 1 else torch.cat(chunks, -1)

    def _pieces(self) -> Iterator[Tensor]:
        """Yield the expression (..., k) on slice after slice of the columns; once if d is 0."""
        slices = (tensor.split(SLICE, -1) for tensor in self._tensors)
        for columns in zip(*slices, strict=True):
            yield self._function(*columns)
            for tensor in self._tensors:
                let_go(tensor)


def chunked(rows: Tensor | Chunked) -> Chunked:
    """Return rows (..., d) as an expression whose operations take some columns at a time."""
    return rows if isinstance(rows, Chunked) else Chunked(rows)


def with_rows(W: Tensor, ids: Sequence[int], rows: Tensor) -> Tensor:
    """Return a copy of W (N, ...) with its rows ``ids`` replaced by ``rows`` (n, ...); in a file if
    either is.

    In memory, returns ``rows`` itself if it replaces all rows in order; it must not be changed
    afterwards.
    """
    index = torch.tensor(ids, dtype=torch.long, device=W.device)
    folder = folder_of(rows) or folder_of(W)
    if folder is None:
        same_form = (rows.shape, rows.dtype) == (W.shape, W.dtype)
        if same_form and rows.is_contiguous() and [*ids] == [*range(len(W))]:
            return rows
        return W.index_copy(0, index, rows)
    new = mapped(W.shape, W.dtype, folder)
    flat, old, source = (t.reshape(len(t), -1) for t in (new, W, rows))
    for column in range(0, flat.shape[1], SLICE):
        columns = slice(column, column + SLICE)
        flat[:, columns] = old[:, columns].index_copy(0, index, source[:, columns])
        for tensor in (new, W, rows):
            let_go(tensor)
    return new


def stacked(rows: Sequence[Tensor]) -> Tensor:
    """Stack tensors of one shape; in a file if they lie in one, without copying if they are
    adjacent there.
    """
    folder, first = folder_of(rows[0]), rows[0]
    if folder is None:
        return torch.stack(list(rows))
    if all(_adjoining(tensor, following) for tensor, following in pairwise(rows)):
        return first.as_strided((len(rows), *first.shape), (first.numel(), *first.stride()))
    new = mapped((len(rows), *first.shape), first.dtype, folder)
    for target, row in zip(new, rows, strict=True):
        target.copy_(row)
        let_go(target)
        let_go(row)
    return new


def _adjoining(tensor: Tensor, following: Tensor) -> bool:
    """Return whether a tensor begins in the file where another ends."""
    same_file = tensor.untyped_storage().data_ptr() == following.untyped_storage().data_ptr()
    return (
        same_file
        and following.storage_offset() == tensor.storage_offset() + tensor.numel()
        and tensor.is_contiguous()
    )

"""Tensors with the same bytes, by content: in a process's memory once, and in a file once.

A client's model is often also the one that it sent, that the server keeps of it, and that is
evaluated.
"""

from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from pomona.core.state import NamedTensors, meta_tensors
from pomona.storage.mapped_tensor import in_file, slices
from pomona.storage.safetensors_stream import memory

MIN_SHARED = 1024
"""Minimum size (in numbers) for which sharing is attempted."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of a number
Address = tuple[int, torch.dtype, int]  # size, dtype, and a sum of its bits: equal for equal bytes


class Span(NamedTuple):
    """Numbers of a tensor, from ``start`` on in row-major order."""

    name: str
    start: int


class SharedRows:
    """Tensors in use in this process, by content, held by weak references."""

    def __init__(self) -> None:
        self._tensors: WeakValueDictionary[Address, Tensor] = WeakValueDictionary()

    def shared(self, tensor: Tensor) -> Tensor:
        """Return a tensor that shares the memory of one with the same bytes, if any.

        Neither may then be changed.

        Tensors in files and small ones are returned unchanged.
        """
        if tensor.numel() < MIN_SHARED or in_file(tensor):
            return tensor
        content = bits(tensor)
        # integers: independent of the order of summation
        address = (tensor.numel(), tensor.dtype, int(content.sum()))
        stored = self._tensors.get(address)
        if (
            stored is not None
            and stored.device == tensor.device
            and torch.equal(content, bits(stored))
        ):
            return stored if stored.shape == tensor.shape else stored.view(tensor.shape)
        if tensor.is_contiguous():
            self._tensors[address] = tensor
        return tensor


def repeated(tensors: NamedTensors) -> dict[str, Span]:
    """Return the tensors whose bytes another has as a whole or in one row, and where.

    No span lies in a tensor that is returned itself. Lazy tensors are loaded one or two at a time.
    """
    shapes = meta_tensors(tensors)
    spans, stored = dict[str, Span](), dict[Address, Span]()
    # large ones first and, of equal size, matrices, whose rows others may be
    for name in sorted(shapes, key=lambda n: (-shapes[n].numel(), shapes[n].shape[-1:], n)):
        if shapes[name].numel() < MIN_SHARED:
            break
        tensor = tensors[name].detach()
        whole, *rows = _addresses(tensor)
        span = stored.get(whole)
        if span and _same_bytes(tensor, tensors[span.name], span.start):
            spans[name] = span
            continue
        for k, address in enumerate(rows):
            stored.setdefault(address, Span(name, k * tensor.shape[-1]))
        stored.setdefault(whole, Span(name, 0))
    return spans


def _addresses(tensor: Tensor) -> list[Address]:
    """Return a tensor's address and, of several long rows, those of each."""
    width = tensor.shape[-1]
    if width < MIN_SHARED or width == tensor.numel():
        return [(tensor.numel(), tensor.dtype, _sum(tensor))]
    sums = [_sum(row) for row in tensor.reshape(-1, width)]
    return [
        (tensor.numel(), tensor.dtype, sum(sums) % 2**64),
        *((width, tensor.dtype, row_sum) for row_sum in sums),
    ]


def _sum(tensor: Tensor) -> int:
    """Return a sum of a tensor's bytes, eight at a time where they fill its slices."""
    total = 0
    for piece in slices(tensor):
        content = memory(piece)
        width = piece.itemsize if content.nbytes % 8 else 8
        total += int(np.frombuffer(content, f"u{width}").sum())
    return total % 2**64  # however the tensor was cut


def _same_bytes(tensor: Tensor, source: Tensor, start: int) -> bool:
    """Return whether a tensor's bytes are those of a source's numbers from ``start`` on."""
    span = source.detach().reshape(-1)[start : start + tensor.numel()]
    pairs = zip(slices(tensor), slices(span), strict=True)
    return all(torch.equal(bits(piece).cpu(), bits(copy).cpu()) for piece, copy in pairs)


def bits(tensor: Tensor) -> Tensor:
    """View a tensor's bytes as integers (k,); equal numbers may differ, such as 0 and -0."""
    return tensor.detach().reshape(-1).view(_INTEGERS[tensor.itemsize])

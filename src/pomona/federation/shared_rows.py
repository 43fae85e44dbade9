"""Deduplication of tensors with identical bytes: a client's kept, sent and evaluated models are often the same.

The model that all clients receive is also stored once. Sharing is by content, so that methods need not support it.
"""

from weakref import WeakValueDictionary

import torch
from torch import Tensor

from pomona.federation.state_store import in_file

LEAST = 1024
"""Minimum size (in numbers) for which sharing is attempted."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of a number


class SharedRows:
    """Tensors in use in this process, by content, held by weak references."""

    def __init__(self) -> None:
        self._held: WeakValueDictionary[tuple[int, torch.dtype, int], Tensor] = WeakValueDictionary()

    def shared(self, tensor: Tensor) -> Tensor:
        """Return a tensor that shares the memory of one with the same bytes, if any. Neither may then be changed.

        Tensors in files and small ones are returned unchanged.
        """
        if tensor.numel() < LEAST or in_file(tensor):
            return tensor
        own = bits(tensor)
        address = (tensor.numel(), tensor.dtype, int(own.sum()))  # integers: independent of the order of summation
        other = self._held.get(address)
        if other is not None and other.device == tensor.device and torch.equal(own, bits(other)):
            return other if other.shape == tensor.shape else other.view(tensor.shape)
        if tensor.is_contiguous():
            self._held[address] = tensor
        return tensor


def bits(tensor: Tensor) -> Tensor:
    """View a tensor's bytes as integers (k,); equal numbers may differ, such as 0 and -0."""
    return tensor.detach().reshape(-1).view(_INTEGERS[tensor.itemsize])

"""Tensors of the same bytes held once: what a client keeps, what it sends and what it is judged by are often one model.

Everybody's received model is one model too. Sharing is by content, so that no method has to know of it.
"""

from weakref import WeakValueDictionary

import torch
from torch import Tensor

from pomona.federation.state_store import in_file

LEAST = 1024
"""Numbers below which a tensor is not worth a look."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of a number


class SharedRows:
    """The tensors that somebody in this process holds, by their content; none is kept alive by it."""

    def __init__(self) -> None:
        self._held: WeakValueDictionary[tuple[int, torch.dtype, int], Tensor] = WeakValueDictionary()

    def shared(self, tensor: Tensor) -> Tensor:
        """A tensor, on the memory of one with the same bytes if there is such a one. Nobody may change either any more.

        Tensors in files and small ones are returned as they are.
        """
        if tensor.numel() < LEAST or in_file(tensor):
            return tensor
        own = bits(tensor)
        address = (tensor.numel(), tensor.dtype, int(own.sum()))  # integers: the same whatever the order of summation
        other = self._held.get(address)
        if other is not None and other.device == tensor.device and torch.equal(own, bits(other)):
            return other if other.shape == tensor.shape else other.view(tensor.shape)
        if tensor.is_contiguous():
            self._held[address] = tensor
        return tensor


def bits(tensor: Tensor) -> Tensor:
    """The bytes of a tensor as integers (k,): numbers that compare equal may differ, as 0 and -0 do."""
    return tensor.detach().reshape(-1).view(_INTEGERS[tensor.itemsize])

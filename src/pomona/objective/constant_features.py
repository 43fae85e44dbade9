"""What layers that stay as they are make of batches that come again: computed once."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from torch import Tensor

LIMIT = 2**28
"""Bytes that are kept; what comes beyond is computed each time."""


@dataclass
class ConstantFeatures:
    """Features of batches, by the batch, for calls between which no layer that makes them changes.

    A batch has the same samples each time: matrix kernels round by the number of rows, so that only then numbers are
    the same to the bit.
    """

    limit: int = LIMIT
    _made: dict[Hashable, Tensor] = field(default_factory=dict)
    _bytes: int = 0

    def of(self, batch: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """The features of a batch, which nobody may change; made now if they are not here."""
        if batch in self._made:
            return self._made[batch]
        features = make()
        if self._bytes + features.nbytes <= self.limit:
            self._made[batch] = features
            self._bytes += features.nbytes
        return features

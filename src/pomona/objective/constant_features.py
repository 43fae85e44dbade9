"""Cache of the outputs of unchanged layers for repeated batches."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from torch import Tensor

LIMIT = 2**28
"""Maximum bytes cached; further features are recomputed each time."""


@dataclass
class ConstantFeatures:
    """Features by batch, for calls between which the layers that compute them do not change.

    A batch has the same samples each time: matrix kernels round differently for other numbers of rows, so only then are
    the results bit-identical.
    """

    limit: int = LIMIT
    _made: dict[Hashable, Tensor] = field(default_factory=dict)
    _bytes: int = 0

    def of(self, batch: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """Return the features of a batch, which must not be changed; computed if not cached."""
        if batch in self._made:
            return self._made[batch]
        features = make()
        if self._bytes + features.nbytes <= self.limit:
            self._made[batch] = features
            self._bytes += features.nbytes
        return features

"""The training view of a batch: its client, and the random address of its samples' draws."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pomona.core.rng import stream


@dataclass(frozen=True)
class View:
    """A client's view of one batch.

    The changes to a sample follow from this and from the sample's position among the client's own, not from the rest of
    the
    batch: two passes over one batch give the same, whatever parts they are split into.
    """

    client: int
    seed: int
    round: int
    purpose: str
    step: int

    def generator(self, place: int) -> np.random.Generator:
        """Return the random generator of the sample at a position among the client's training samples."""
        return stream(self.seed, f"augment {self.purpose}", self.round, self.client, self.step, place)


Views = Sequence[View | None] | None  # one per row of a call; None: samples unchanged

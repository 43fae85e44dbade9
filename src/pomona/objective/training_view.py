"""How training sees a batch: whose it is, and the address of all that is drawn for its samples."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pomona.core.rng import stream


@dataclass(frozen=True)
class View:
    """A client's view of one batch.

    What training makes of a sample follows from this and the sample's place among the client's own, and not from who
    else is in the batch: two passes over one batch see the same, whatever they are cut into.
    """

    client: int
    seed: int
    round: int
    purpose: str
    step: int

    def generator(self, place: int) -> np.random.Generator:
        """The random numbers of the sample at a place among the client's training samples."""
        return stream(self.seed, f"augment {self.purpose}", self.round, self.client, self.step, place)


Views = Sequence[View | None] | None  # one a row of a call; None: samples as they are

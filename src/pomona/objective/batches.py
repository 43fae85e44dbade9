"""Batches of samples, one shuffled pass per epoch from the client's own stream; and their training
views.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from pomona.core.lazy_torch import Tensor, torch
from pomona.core.rng import stream
from pomona.core.training_settings import Passes


@dataclass(frozen=True)
class Pass:
    """A pass over a client's samples: address of its random stream, and its settings.

    Attributes:
        seed, purpose, round, client: the address.
        passes: how many.
        size: samples per step.
        share: part of the samples used, drawn once for the pass.
        min_batch: minimum number of samples in a step.
    """

    seed: int
    purpose: str
    round: int
    client: int
    passes: Passes
    size: int
    share: float = 1.0
    min_batch: int = 1


@dataclass(frozen=True)
class Batch:
    """One step's samples: ``indices[k]`` are the data rows of the k-th active client; ``purpose``
    names the pass.
    """

    indices: list[Tensor]
    purpose: str
    step: int


@dataclass(frozen=True)
class View:
    """A client's view of one batch: the random address of the changes to its samples.

    The changes to a sample follow from this and from the sample's position among the client's own,
    not from the rest of the batch: two passes over one batch give the same, whatever parts they are
    split into.
    """

    client: int
    seed: int
    round: int
    purpose: str
    step: int

    def generator(self, position: int) -> np.random.Generator:
        """Return the random generator of the sample at a position among the client's training
        samples.
        """
        return stream(
            self.seed, f"augment {self.purpose}", self.round, self.client, self.step, position
        )


Views = Sequence[View | None] | None  # one per row of a call; None: samples unchanged


def ordinary(rows: Tensor, pass_: Pass) -> Iterator[Tensor]:
    """Yield the batches of a pass over a client's rows: a share of them, reshuffled each epoch."""
    draw = stream(pass_.seed, pass_.purpose, pass_.round, pass_.client)
    subset = subsample(rows, pass_.share, draw, pass_.min_batch)
    return shuffled(subset, pass_.passes, pass_.size, draw, pass_.min_batch)


def shuffled(
    rows: Tensor, passes: Passes, size: int, generator: np.random.Generator, min_batch: int = 1
) -> Iterator[Tensor]:
    """Yield a client's batches: passes over ``rows``, reshuffled each time; the last batch of each
    may be smaller.

    A last batch of fewer than ``min_batch`` samples is merged into the one before it.
    """
    if passes.steps is not None:
        return islice(_endless(rows, size, generator, min_batch), passes.steps)
    return chain.from_iterable(
        _epoch(rows, size, generator, min_batch) for _ in range(passes.epochs)
    )


def _endless(
    rows: Tensor, size: int, generator: np.random.Generator, min_batch: int
) -> Iterator[Tensor]:
    while True:
        yield from _epoch(rows, size, generator, min_batch)


def _epoch(rows: Tensor, size: int, generator: np.random.Generator, min_batch: int) -> list[Tensor]:
    order = torch.from_numpy(generator.permutation(len(rows))).to(rows.device)
    shuffled = rows.index_select(0, order)
    if len(rows) <= size:
        return [shuffled]
    batches = list(shuffled.split(size))
    if len(batches) > 1 and len(batches[-1]) < min_batch:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def subsample(
    rows: Tensor, share: float, generator: np.random.Generator, min_batch: int = 1
) -> Tensor:
    """Draw a ``share`` of a client's rows, at least ``min_batch`` (or all); all without a draw if
    the share is 1.
    """
    if share == 1:
        return rows
    size = min(max(min_batch, round(share * len(rows))), len(rows))
    return rows[torch.from_numpy(generator.choice(len(rows), size, replace=False)).to(rows.device)]


def in_step(streams: list[Iterator[Tensor]], purpose: str) -> Iterator[Batch]:
    """Advance clients together; they must be sorted by length, longest first, so that active ones
    are a prefix.
    """
    step = 0
    while indices := [batch for batch in (next(s, None) for s in streams) if batch is not None]:
        yield Batch(indices, purpose, step)
        streams = streams[: len(indices)]
        step += 1

"""The interface of partition recipes: their input and the tables they return."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import Field

from pomona.core.rng import stream
from pomona.core.settings import Settings
from pomona.data.dataset import Dataset
from pomona.partition.allocate import Labels, Shares
from pomona.partition.partition import Rows


def class_numbers(dataset: Dataset) -> Labels:
    """Return (N,) the class of every row; a single class if the targets are not classes."""
    return dataset.y.astype(np.int64) if dataset.targets == "classes" else np.zeros(len(dataset), dtype=np.int64)


@dataclass(frozen=True)
class PartitionTask:
    """Two pools of rows to be divided among clients.

    Attributes:
        dataset: the data.
        clients: number of clients, n.
        seed: seed of every draw.
        labels: (N,) the class of every row of the data set.
        train, test: ascending row numbers of the data set.
        validation: training rows that the data set assigns to validation.
        groups: (N,) the group of every row, if rows belong together.
    """

    dataset: Dataset
    clients: int
    seed: int
    labels: Labels
    train: Rows
    test: Rows
    validation: Rows
    groups: Labels | None = None

    @property
    def n_classes(self) -> int:
        """Number of classes; 1 if the targets are not classes."""
        return len(self.dataset.classes) if self.dataset.targets == "classes" else 1

    def counts(self, rows: Rows) -> Labels:
        """Return (n_classes,) the number of the given rows in each class."""
        return np.bincount(self.labels[rows], minlength=self.n_classes)

    def stream(self, purpose: str, *address: int) -> np.random.Generator:
        """Return the random stream for one of the division's draws."""
        return stream(self.seed, f"partition.{purpose}", *address)


@dataclass(frozen=True)
class PartitionPlan:
    """Tables of shares: how many rows of each stratum each client gets.

    Attributes:
        strata: (N,) the stratum of every row, indexing the tables' columns: its class, cluster or owner.
        train, test: (n, n_strata) each client's share of each stratum's training and test rows.
        groups: (n,) hidden group of each client, () for none.
        targets: (n,) the client whose validation and test rows each client gets, () for its own.
    """

    strata: Labels
    train: Shares
    test: Shares
    groups: tuple[int, ...] = ()
    targets: tuple[int, ...] = ()


class Recipe(Settings):
    """Settings that every recipe has."""

    by_class: ClassVar[bool] = True  # whether the recipe needs classes; if False, all rows may be one class
    by_owner: ClassVar[bool] = False  # whether rows are split within each owner
    members: ClassVar[bool] = False  # whether the recipe determines the number of clients
    remedy: ClassVar[str] = (  # remedy if a client has no training rows
        "use fewer clients, a less uneven partition, more data (data.train_limit) or another seed"
    )

    turn_groups: int = Field(
        default=0,
        ge=0,
        le=4,
        description="split the clients into this many consecutive groups whose images stand turned by 0, 1, 2, 3 "
        "quarter turns (a scanner that stands differently); 0 = none",
    )

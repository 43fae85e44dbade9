"""Groups of similar clients: with dominating classes (FedAMP, section 7), or with images rotated by
quarter turns.
"""

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from pomona.core.errors import ConfigError, DataError
from pomona.core.settings import Settings
from pomona.data.dataset import Dataset
from pomona.partition.partition import Labels, Partition, Shares
from pomona.partition.recipe import PartitionPlan, PartitionTask, Recipe
from pomona.storage.mapped_array import allocate


def check_turnable(dataset: Dataset) -> None:
    """Raise ConfigError unless the data are square images, not volumes."""
    if dataset.kind != "image" or dataset.x.ndim != 4 or dataset.x.shape[1] != dataset.x.shape[2]:
        raise ConfigError(
            f"only square images can be rotated, and {dataset.name} has none; set "
            "partition.turn_groups = 0"
        )


def turn_groups(dataset: Dataset, clients: int, groups: int) -> tuple[int, ...]:
    """Return (n,) each client's group, consecutive and of equal size, which is also its number of
    quarter turns.

    Raises:
        ConfigError: the data are not square images, or the clients cannot be split equally.
    """
    if not groups:
        return ()
    check_turnable(dataset)
    if clients % groups:
        raise ConfigError(
            f"{clients} clients cannot form {groups} groups of equal size; change clients or "
            "turn_groups"
        )
    return tuple(i * groups // clients for i in range(clients))


def apply_turns(dataset: Dataset, partition: Partition) -> Dataset:
    """Rotate each client's images: a copy (on disk if the images are), or the data set itself
    without turns.
    """
    if not any(partition.turns):
        return dataset
    x = allocate(
        dataset.x.shape, dataset.x.dtype, memory_share=float(not isinstance(dataset.x, np.memmap))
    )
    x[:] = dataset.x
    masks = dataset.targets == "segmentation"
    y = dataset.y.copy() if masks else dataset.y
    for client, turns in zip(partition.clients, partition.turns, strict=True):
        rows = np.concatenate([client.train, client.validation, client.test])
        x[rows] = np.rot90(x[rows], turns, axes=(1, 2))
        if masks:
            y[rows] = np.rot90(y[rows], turns, axes=(1, 2))
    return replace(dataset, x=x, y=y)


ClassNumber = Annotated[int, Field(ge=-(10**6), le=10**6)]


class Group(Settings):
    """One group of clients.

    Attributes:
        clients: number of clients in the group
        classes: numbers of the dominating classes
        n_train: training rows of each client, those for validation included
    """

    clients: int = Field(ge=1, le=10**4)
    classes: tuple[ClassNumber, ...] = Field(min_length=1)
    n_train: int = Field(ge=1, lt=2**53)


def spread(total: int, bins: Labels, width: int, rng: np.random.Generator) -> Labels:
    """Spread ``total`` evenly over the given bins, (width,) counts; the remainder is placed at
    random.
    """
    counts = np.zeros(width, dtype=np.int64)
    if len(bins):
        counts[bins] = total // len(bins)
        counts[rng.permutation(bins)[: total % len(bins)]] += 1
    return counts


class Groups(Recipe):
    """Clients in groups: most of a client's rows are from its group's dominating classes, the rest
    from all others.

    FedAMP's practical setting. The paper samples uniformly from both sets of classes; here the rows
    are spread evenly, which keeps the sizes exact. For its EMNIST experiment: 10 clients with the
    digits and 1000 training rows, 26 with the capital letters and 700, 26 with the small letters
    and 400, and 100 test rows each. The groups for the paper's other data sets are in an appendix
    that was not available to us.

    Attributes:
        groups: the groups in client order: clients, classes, n_train
        n_test: test rows of each client
        dominating: share of the rows from the dominating classes
    """

    name: Literal["groups"] = "groups"
    groups: tuple[Group, ...] = Field(min_length=1)
    n_test: int = Field(100, ge=0, lt=2**53)
    dominating: float = Field(0.8, ge=0, le=1)

    def plan(self, task: PartitionTask) -> PartitionPlan:
        """Return the requested counts as shares of the available rows.

        Raises:
            ConfigError: the groups do not fit the number of clients or the classes.
            DataError: a class has fewer rows than the clients need together.
        """
        self._fits(task)
        number = [i for i, g in enumerate(self.groups) for _ in range(g.clients)]
        members = [self.groups[i] for i in number]
        rng = task.stream("table")
        train = np.stack([self._counts(g, g.n_train, task.n_classes, rng) for g in members])
        test = np.stack([self._counts(g, self.n_test, task.n_classes, rng) for g in members])
        return PartitionPlan(
            task.labels,
            _shares(train, task.counts(task.train), task.dataset.classes, "training"),
            _shares(test, task.counts(task.test), task.dataset.classes, "test"),
            groups=tuple(number),
        )

    def _fits(self, task: PartitionTask) -> None:
        """Raise ConfigError unless the groups have the run's number of clients, and classes of its
        data.
        """
        clients = sum(group.clients for group in self.groups)
        if clients != task.clients:
            raise ConfigError(
                f"partition.groups have {clients} clients, but the run has clients = "
                f"{task.clients}; make them equal"
            )
        for number, group in enumerate(self.groups):
            valid = set(group.classes) & set(range(task.n_classes))
            if len(valid) < len(group.classes):
                raise ConfigError(
                    f"partition.groups[{number}].classes = {list(group.classes)}; "
                    f"give different class numbers from 0 to {task.n_classes - 1}"
                )

    def _counts(self, group: Group, total: int, n_classes: int, rng: np.random.Generator) -> Labels:
        other_classes = np.setdiff1d(np.arange(n_classes), group.classes)
        major = round(self.dominating * total) if len(other_classes) else total
        return spread(major, np.array(group.classes), n_classes, rng) + spread(
            total - major, other_classes, n_classes, rng
        )


def _shares(requested: Labels, available: Labels, classes: tuple[str, ...], split: str) -> Shares:
    needed = requested.sum(axis=0)
    deficient = np.flatnonzero(needed > available)
    if len(deficient):
        worst = deficient[np.argmax(needed[deficient] - available[deficient])]
        raise DataError(
            f"{len(deficient)} classes have too few {split} rows for partition.groups; the worst "
            f"is class {worst} ({classes[worst]}): {needed[worst]} needed, {available[worst]} "
            f"available; lower {'n_train' if split == 'training' else 'n_test'} or the number of "
            "clients"
        )
    return requested / np.maximum(available, 1)

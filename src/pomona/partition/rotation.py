"""Feature shift: images of each group of clients are rotated by quarter turns."""

from dataclasses import replace

import numpy as np

from pomona.core.errors import ConfigError
from pomona.data.dataset import Dataset
from pomona.partition.partition import Partition
from pomona.storage.mapped_array import allocate


def check_turnable(dataset: Dataset) -> None:
    """Raise ConfigError unless the data are square images, not volumes."""
    if dataset.kind != "image" or dataset.x.ndim != 4 or dataset.x.shape[1] != dataset.x.shape[2]:
        raise ConfigError(f"only square images can be turned, {dataset.name} has none; set partition.turn_groups = 0")


def turn_groups(dataset: Dataset, clients: int, groups: int) -> tuple[int, ...]:
    """Return (n,) each client's group, consecutive and of equal size, which is also its number of quarter turns.

    Raises:
        ConfigError: the data are not square images, or the clients cannot be split equally.
    """
    if not groups:
        return ()
    check_turnable(dataset)
    if clients % groups:
        raise ConfigError(f"{clients} clients make no {groups} groups of equal size; change clients or turn_groups")
    return tuple(i * groups // clients for i in range(clients))


def apply_turns(dataset: Dataset, partition: Partition) -> Dataset:
    """Rotate each client's images: a copy (on disk if the images are), or the data set itself without turns."""
    if not any(partition.turns):
        return dataset
    x = allocate(dataset.x.shape, dataset.x.dtype, memory_share=float(not isinstance(dataset.x, np.memmap)))
    x[:] = dataset.x
    masks = dataset.targets == "segmentation"
    y = dataset.y.copy() if masks else dataset.y
    for client, turns in zip(partition.clients, partition.turns, strict=True):
        rows = np.concatenate([client.train, client.validation, client.test])
        x[rows] = np.rot90(x[rows], turns, axes=(1, 2))
        if masks:
            y[rows] = np.rot90(y[rows], turns, axes=(1, 2))
    return replace(dataset, x=x, y=y)

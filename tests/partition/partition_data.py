"""Small data sets for the partition tests."""

from typing import Any

import numpy as np

from pomona.data import data_settings
from pomona.data.dataset import Dataset
from pomona.partition import PartitionSettings, divide
from pomona.partition.partition import Partition

NO_VALIDATION = data_settings(validation_share=0)


def table(train: list[int], test: list[int], **changes: Any) -> Dataset:
    """A table with ``train[c]`` training and ``test[c]`` test rows of class c, shuffled; x is the
    row number.
    """
    rng = np.random.default_rng(len(train) + sum(train))
    y = np.concatenate(
        [rng.permutation(np.repeat(np.arange(len(counts)), counts)) for counts in (train, test)]
    )
    fields = {
        "name": "rows",
        "kind": "table",
        "x": np.arange(len(y), dtype=np.float32)[:, None],
        "y": y.astype(np.int64),
        "classes": tuple(f"class-{c}" for c in range(len(train))),
        "n_train": sum(train),
    }
    return Dataset(**(fields | changes))


def images(count: int, height: int, width: int, channels: int = 1) -> Dataset:
    """Random images of two classes, three quarters of them for training."""
    rng = np.random.default_rng(count)
    x = rng.integers(0, 256, (count, height, width, channels), dtype=np.uint8)
    return Dataset(
        "pictures",
        "image",
        x,
        np.arange(count, dtype=np.int64) % 2,
        ("even", "odd"),
        count * 3 // 4,
    )


def divided(dataset: Dataset, recipe: PartitionSettings, clients: int, seed: int = 0) -> Partition:
    return divide(dataset, NO_VALIDATION, recipe, clients, seed)


def sizes(partition: Partition, split: str = "train") -> list[int]:
    return [len(getattr(client, split)) for client in partition.clients]

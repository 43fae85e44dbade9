"""Embeddings that place similar rows close together: normalised inputs, or a trained network's hidden layer."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import ConfigError
from pomona.data.dataset import Dataset
from pomona.partition.partition import Rows
from pomona.partition.recipe import PartitionTask

if TYPE_CHECKING:
    import torch

BATCH = 128
WIDTH = 128
Vectors = NDArray[np.float32]


def inputs(dataset: Dataset, rows: Rows) -> Vectors:
    """Return the rows as model inputs, float32, in the data set's shape."""
    shift, scale = (np.asarray(v, dtype=np.float32) for v in (dataset.shift, dataset.scale))
    return (dataset.x[rows].astype(np.float32) - shift) / scale


def network(task: PartitionTask, rows: Rows, epochs: int) -> Vectors:
    """Train a small classifier, and return its last hidden layer, before the activation.

    Two convolutions of stride 2 (16 and 32 channels) for images, none for tables; then a layer of 128 and the classes.
    Adam, rate 0.001, batches of 128. A substitute for the VGG-11 pretrained on ImageNet of FedFomo's published code.

    Args:
        task: images or a table, with the rows to train on.
        rows: the rows to embed.
        epochs: passes over the training rows.

    Returns:
        (len(rows), 128) float32.

    Raises:
        ConfigError: the data are volumes.
    """
    import torch
    from torch.nn.functional import cross_entropy, relu

    dataset, rng = task.dataset, task.stream("embedding")
    hidden, weights = _hidden(dataset, rng)
    head = _weight(rng, WIDTH, len(dataset.classes))
    optimizer = torch.optim.Adam([*weights, head], lr=1e-3)
    for _ in range(epochs):
        order = rng.permutation(task.train)
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            loss = cross_entropy(relu(hidden(inputs(dataset, batch))) @ head, torch.from_numpy(task.labels[batch]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        parts = [hidden(inputs(dataset, rows[s : s + BATCH])).numpy() for s in range(0, len(rows), BATCH)]
    return np.concatenate(parts)


def _weight(rng: np.random.Generator, *shape: int, fan_in: int = 0) -> "torch.Tensor":
    import torch

    values = rng.standard_normal(shape, dtype=np.float32) * np.float32((2 / (fan_in or shape[0])) ** 0.5)
    return torch.from_numpy(values).requires_grad_()


def _hidden(
    dataset: Dataset, rng: np.random.Generator
) -> tuple[Callable[[Vectors], "torch.Tensor"], list["torch.Tensor"]]:
    import torch
    from torch.nn.functional import conv2d, relu

    if dataset.kind == "table":
        weight = _weight(rng, dataset.x.shape[1], WIDTH)
        return lambda x: torch.from_numpy(x) @ weight, [weight]
    if dataset.x.ndim != 4:
        raise ConfigError(
            f"{dataset.name} holds volumes, which partition.embedding = 'network' cannot read; take 'pca'"
        )
    height, width, channels = dataset.x.shape[1:]
    first = _weight(rng, 16, channels, 3, 3, fan_in=9 * channels)
    second = _weight(rng, 32, 16, 3, 3, fan_in=9 * 16)
    dense = _weight(rng, 32 * -(-height // 4) * -(-width // 4), WIDTH)

    def through(x: Vectors) -> torch.Tensor:
        images = torch.from_numpy(x).permute(0, 3, 1, 2)
        maps = relu(conv2d(relu(conv2d(images, first, stride=2, padding=1)), second, stride=2, padding=1))
        return maps.flatten(1) @ dense

    return through, [first, second, dense]

"""Clusters of similar rows as hidden distributions (FedFomo, appendix A.5)."""

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pomona.core.errors import ConfigError, DataError
from pomona.core.rng import number
from pomona.data.dataset import Dataset
from pomona.partition.partition import Labels, Rows
from pomona.partition.recipe import PartitionPlan, PartitionTask, Recipe

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

    Two convolutions of stride 2 (16 and 32 channels) for images, none for tables; then a layer of
    128 and the classes. Adam, rate 0.001, batches of 128. A substitute for the VGG-11 pretrained on
    ImageNet of FedFomo's published code.

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
    with torch.enable_grad():  # in a caller's no_grad, too
        for _ in range(epochs):
            order = rng.permutation(task.train)
            for start in range(0, len(order), BATCH):
                batch = order[start : start + BATCH]
                loss = cross_entropy(
                    relu(hidden(inputs(dataset, batch))) @ head,
                    torch.from_numpy(task.labels[batch]),
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    with torch.no_grad():
        batches = [
            hidden(inputs(dataset, rows[s : s + BATCH])).numpy() for s in range(0, len(rows), BATCH)
        ]
    return np.concatenate(batches)


def _weight(rng: np.random.Generator, *shape: int, fan_in: int = 0) -> "torch.Tensor":
    import torch

    values = rng.standard_normal(shape, dtype=np.float32) * np.float32(
        (2 / (fan_in or shape[0])) ** 0.5
    )
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
            f"{dataset.name} holds volumes, which partition.embedding = 'network' cannot read; "
            "take 'pca'"
        )
    height, width, channels = dataset.x.shape[1:]
    first = _weight(rng, 16, channels, 3, 3, fan_in=9 * channels)
    second = _weight(rng, 32, 16, 3, 3, fan_in=9 * 16)
    dense = _weight(rng, 32 * -(-height // 4) * -(-width // 4), WIDTH)

    def through(x: Vectors) -> torch.Tensor:
        images = torch.from_numpy(x).permute(0, 3, 1, 2)
        maps = relu(
            conv2d(relu(conv2d(images, first, stride=2, padding=1)), second, stride=2, padding=1)
        )
        return maps.flatten(1) @ dense

    return through, [first, second, dense]


def clusters(vectors: Vectors, components: int, distributions: int, seed: int) -> Labels:
    """Cluster the vectors, (N,): PCA to at most ``components`` dimensions, then k-means++ with five
    starts.
    """
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA
    from sklearn.exceptions import ConvergenceWarning

    state = number(seed, "partition.clusters") % 2**32
    reduced = PCA(
        min(components, *vectors.shape), svd_solver="randomized", random_state=state
    ).fit_transform(vectors)
    with warnings.catch_warnings():
        # too few distinct points: the caller checks
        warnings.simplefilter("ignore", ConvergenceWarning)
        kmeans = KMeans(distributions, n_init=5, max_iter=100, random_state=state)
        return np.asarray(kmeans.fit_predict(reduced), dtype=np.int64)


class Latent(Recipe):
    """Rows are clustered by similarity; clients are spread evenly over the clusters and share them
    equally.

    Client i is in cluster floor(i * D / n). Training and test rows are embedded and clustered
    together and keep their split, as in the paper. The paper's embedding is a VGG-11 pretrained on
    ImageNet and tuned on the data; here it is a small network trained on the training rows, or the
    inputs themselves, so the clusters are not the paper's. Rows between clusters may be assigned
    differently on different machines; a saved partition is always the same.

    Attributes:
        distributions: D, the number of clusters
        embedding: what is clustered: PCA of the inputs, or of the hidden layer of a small network
        components: dimensions kept by the PCA, at most
        epochs: passes over the training rows for embedding = network
        shuffle_targets: permute the clients' (validation, test) pairs: they are evaluated on a
            distribution not their own
    """

    name: Literal["latent"] = "latent"
    distributions: int = Field(5, ge=1, le=10**4)
    embedding: Literal["pca", "network"] = "pca"
    components: int = Field(256, ge=1, le=10**6)
    epochs: int = Field(3, ge=1, le=10**6)
    shuffle_targets: bool = False

    def plan(self, task: PartitionTask) -> PartitionPlan:
        """Return equal shares of clusters.

        Raises:
            ConfigError: the data are texts, or there are fewer clients than clusters.
            DataError: the rows do not form that many clusters.
        """
        data, count = task.dataset, self.distributions
        if data.kind == "text":
            raise ConfigError(
                "partition.name = 'latent' needs images or a table, not texts; choose another "
                "partition"
            )
        if count > task.clients:
            raise ConfigError(
                f"partition.distributions = {count} is more than clients = {task.clients}; lower it"
            )
        rows = np.union1d(task.train, task.test)
        if len(rows) < count:
            raise DataError(
                f"{len(rows)} rows cannot form {count} clusters; lower partition.distributions"
            )
        if self.embedding == "network":
            vectors = network(task, rows, self.epochs)
        else:
            vectors = inputs(data, rows).reshape(len(rows), -1)
        # rows outside the pools stay 0; they are not dealt
        strata = np.zeros(len(data), dtype=np.int64)
        strata[rows] = clusters(vectors, self.components, count, task.seed)
        formed = len(np.unique(strata[rows]))
        if formed < count:
            raise DataError(
                f"the rows of {data.name} form {formed} clusters; set partition.distributions to "
                "that"
            )
        member = np.arange(task.clients) * count // task.clients
        table = (member[:, None] == np.arange(count)) / np.bincount(member)
        targets = task.stream("targets").permutation(task.clients) if self.shuffle_targets else ()
        return PartitionPlan(
            strata,
            table,
            table,
            groups=tuple(member.tolist()),
            targets=tuple(int(t) for t in targets),
        )

"""Clusters of similar rows as hidden distributions (FedFomo, appendix A.5)."""

import warnings
from typing import Literal

import numpy as np
from pydantic import Field

from pomona.core.errors import ConfigError, DataError
from pomona.core.rng import number
from pomona.partition.allocate import Labels
from pomona.partition.embedding import Vectors, inputs, network
from pomona.partition.recipe import PartitionPlan, PartitionTask, Recipe


def clusters(vectors: Vectors, components: int, distributions: int, seed: int) -> Labels:
    """Cluster the vectors, (N,): PCA to at most ``components`` dimensions, then k-means++ with five starts."""
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA
    from sklearn.exceptions import ConvergenceWarning

    state = number(seed, "partition.clusters") % 2**32
    reduced = PCA(min(components, *vectors.shape), svd_solver="randomized", random_state=state).fit_transform(vectors)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # too few distinct points: the caller checks
        kmeans = KMeans(distributions, n_init=5, max_iter=100, random_state=state)
        return np.asarray(kmeans.fit_predict(reduced), dtype=np.int64)


class Latent(Recipe):
    """Rows are clustered by similarity; clients are spread evenly over the clusters and share them equally.

    Client i is in cluster floor(i * D / n). Training and test rows are embedded and clustered together and keep their
    split, as in the paper. The paper's embedding is a VGG-11 pretrained on ImageNet and tuned on the data; here it is a
    small network trained on the training rows, or the inputs themselves, so the clusters are not the paper's. Rows
    between clusters may be assigned differently on different machines; a saved partition is always the same.
    """

    name: Literal["latent"] = "latent"
    distributions: int = Field(default=5, ge=1, le=10**4, description="D, the number of clusters")
    embedding: Literal["pca", "network"] = Field(
        default="pca", description="what is clustered: PCA of the inputs, or of the hidden layer of a small network"
    )
    components: int = Field(default=256, ge=1, le=10**6, description="dimensions kept by the PCA, at most")
    epochs: int = Field(default=3, ge=1, le=10**6, description="passes over the training rows for embedding = network")
    shuffle_targets: bool = Field(
        default=False,
        description="permute the clients' (validation, test) pairs: they are evaluated on a distribution not their own",
    )

    def plan(self, task: PartitionTask) -> PartitionPlan:
        """Return equal shares of clusters.

        Raises:
            ConfigError: the data are texts, or there are fewer clients than clusters.
            DataError: the rows do not form that many clusters.
        """
        data, count = task.dataset, self.distributions
        if data.kind == "text":
            raise ConfigError("partition.name = 'latent' needs images or a table, not texts; choose another partition")
        if count > task.clients:
            raise ConfigError(f"partition.distributions = {count} is more than clients = {task.clients}; lower it")
        rows = np.union1d(task.train, task.test)
        if len(rows) < count:
            raise DataError(f"{len(rows)} rows do not make {count} clusters; lower partition.distributions")
        if self.embedding == "network":
            vectors = network(task, rows, self.epochs)
        else:
            vectors = inputs(data, rows).reshape(len(rows), -1)
        strata = np.zeros(len(data), dtype=np.int64)  # rows outside the pools stay 0; they are not dealt
        strata[rows] = clusters(vectors, self.components, count, task.seed)
        found = len(np.unique(strata[rows]))
        if found < count:
            raise DataError(f"the rows of {data.name} form {found} clusters; set partition.distributions to that")
        member = np.arange(task.clients) * count // task.clients
        table = (member[:, None] == np.arange(count)) / np.bincount(member)
        targets = task.stream("targets").permutation(task.clients) if self.shuffle_targets else ()
        return PartitionPlan(
            strata, table, table, groups=tuple(member.tolist()), targets=tuple(int(t) for t in targets)
        )

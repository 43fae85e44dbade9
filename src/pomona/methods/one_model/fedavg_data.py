"""FedAvg+Data: FedAvg with a small shared data set added to every client's own data.

Zhao, Li, Lai, Suda, Civin, Chandra. Federated learning with non-IID data. arXiv 1806.00582, section
4.

    shared set       G, class-balanced (at random if targets are not classes), |G| = beta n
    client           w_i <- SGD(w; E epochs on D_i and G together)
    server           as FedAvg, weights |D_i and G| over their sum

G is sent once, |G| samples per client; the record has the number. All members see it, and must be
allowed to share it.

Differs from the paper: there training starts from a model warmed up on G, and each client gets a
random part alpha of G; here from the run's initial model, and alpha is 1.

Sources differ on the origin of G: Zhao et al. hold it out from the data that clients get
(``held-out``: its samples belong to no client), the code published with FedFomo takes the share out
of every client's own training data and gives the collection to all (``clients``: not
class-balanced, and no sample is new to the federation).
"""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pomona.core.rng import stream
from pomona.methods import base
from pomona.methods.one_model import fedavg
from pomona.partition.partition import Partition, Rows


class FedAvgData(base.MethodSettings):
    """FedAvg with a shared data set.

    Attributes:
        shared_share: size of the shared set as a share of all data (beta)
        shared_from: where the shared samples come from
    """

    name: Literal["fedavg-data"] = "fedavg-data"
    shared_share: float = Field(0.05, ge=0, lt=1)
    shared_from: Literal["held-out", "clients"] = "held-out"

    def method(self) -> base.Method:
        """Return FedAvg with shared data."""
        return base.Method(fedavg.server(), fedavg.client(mu=0.0), CARD, share=self.divide)

    def shared(self, partition: Partition, labels: NDArray[Any], seed: int) -> Rows:
        """Return the rows of G, ascending."""
        draw = stream(seed, "shared")
        training_rows = [c.train for c in partition.clients]
        if self.shared_from == "clients":
            return np.sort(
                np.concatenate(
                    [
                        draw.permutation(r)[: round(self.shared_share * len(r))]
                        for r in training_rows
                    ]
                )
            )
        pool = np.concatenate(training_rows)
        return balanced(pool, labels[pool], round(self.shared_share * len(pool)), draw)

    def divide(self, partition: Partition, labels: NDArray[Any], seed: int) -> Partition:
        """Return the partition with G added to every client; its samples count for each."""
        shared = self.shared(partition, labels, seed)
        clients = tuple(replace(c, train=np.union1d(c.train, shared)) for c in partition.clients)
        return replace(partition, clients=clients)


def balanced(pool: Rows, labels: NDArray[Any], size: int, draw: np.random.Generator) -> Rows:
    """Return ``size`` rows of a pool, ascending, with the classes as balanced as the pool
    allows.
    """
    classes, counts = np.unique(labels, return_counts=True)
    quota = np.zeros(len(classes), dtype=np.int64)
    for _ in range(size):
        open_ = np.flatnonzero(quota < counts)
        quota[open_[np.argmin(quota[open_])]] += 1
    picked = [draw.permutation(pool[labels == c])[:q] for c, q in zip(classes, quota, strict=True)]
    return np.sort(np.concatenate([*picked, pool[:0]]))


CARD = replace(
    fedavg.CARD,
    presentation=base.Presentation("FedAvg+Data"),
    paper="Zhao et al., arXiv 1806.00582, section 4",
    summary="FedAvg with a small set of samples that all clients share",
    privacy=replace(
        fedavg.CARD.privacy,
        releases=(replace(base.RELEASES["shared-samples"], remedy="take fedavg"),),
    ),
    exchange=replace(fedavg.CARD.exchange, private="the data, except the shared samples"),
    joining="not possible: the shared samples are drawn from all clients before round 1",
)

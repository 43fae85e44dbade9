"""A few random classes per client (APPLE, section 4.1)."""

from typing import Literal

import numpy as np
from pydantic import Field

from pomona.core.errors import ConfigError
from pomona.partition.allocate import Shares
from pomona.partition.recipe import PartitionPlan, PartitionTask, Recipe


def check_classes_per_client(wanted: int, available: int) -> None:
    """Raise ConfigError if a client is to have more classes than the data have."""
    if wanted > available:
        raise ConfigError(f"partition.classes_per_client = {wanted}, but the data has {available} classes; lower it")


def pathological_table(
    clients: int, n_classes: int, per_client: int, balanced: bool, rng: np.random.Generator
) -> Shares:
    """Return (n, n_classes) shares: client i takes places ik to ik + k - 1 of concatenated random permutations."""
    rounds = -(-clients * per_client // n_classes)
    drawn = np.concatenate([rng.permutation(n_classes) for _ in range(rounds)])[: clients * per_client]
    weight = np.ones(len(drawn)) if balanced else 1 - rng.random(len(drawn))
    table = np.zeros((clients, n_classes))
    np.add.at(table, (np.arange(len(drawn)) // per_client, drawn), weight)
    totals = table.sum(axis=0)
    return table / np.where(totals > 0, totals, 1)


class Pathological(Recipe):
    """Each client draws a few classes; a class is shared among its owners in random proportions.

    As in APPLE's published code: random permutations of the classes are concatenated and handed out, so that the
    numbers of owners of any two classes differ by at most one; the owners of a class get u / sum(u) of its rows, u ~
    U(0, 1), the same share of training and test rows. A class that no client drew is not used. If the number of classes
    is not a multiple of ``classes_per_client``, a client's places can straddle two permutations and contain the same
    class twice: that client then has one class less, with the weight of both places.

    With ``balanced`` the owners get equal shares: the pathological setting of the FedAMP paper and of McMahan et al.,
    with two classes per client and no groups of similar clients.
    """

    name: Literal["pathological"] = "pathological"
    classes_per_client: int = Field(default=2, ge=1, le=10**6, description="number of classes that a client draws")
    balanced: bool = Field(default=False, description="equal instead of random shares for the owners of a class")

    def plan(self, task: PartitionTask) -> PartitionPlan:
        """Return the table of drawn classes. Raises ConfigError if there are fewer classes than a client needs."""
        check_classes_per_client(self.classes_per_client, task.n_classes)
        rng = task.stream("table")
        table = pathological_table(task.clients, task.n_classes, self.classes_per_client, self.balanced, rng)
        return PartitionPlan(task.labels, table, table)

"""Classes assigned in class order, so that clients form groups with the same classes (FedALA, PFLlib)."""

from typing import Literal

import numpy as np
from pydantic import Field

from pomona.partition.allocate import Shares
from pomona.partition.pathological import check_classes_per_client
from pomona.partition.recipe import PartitionPlan, PartitionTask, Recipe


def classes_table(clients: int, n_classes: int, per_client: int, balanced: bool, rng: np.random.Generator) -> Shares:
    """Return (n, n_classes) shares: each class goes to the first ceil(n k / C) clients that still need classes."""
    owners_wanted = -(-clients * per_client // n_classes)
    needs = np.full(clients, per_client)
    table = np.zeros((clients, n_classes))
    for c in range(n_classes):
        owners = np.flatnonzero(needs > 0)[:owners_wanted]
        if not len(owners):
            break
        needs[owners] -= 1
        equal = 1 / len(owners)
        shares = np.full(len(owners), equal) if balanced else rng.uniform(equal / 10, equal, len(owners))
        shares[-1] = 1 - shares[:-1].sum()
        table[owners, c] = shares
    return table


class Classes(Recipe):
    """A fixed number of classes per client, assigned in class order.

    The pathological setting of the FedALA paper, as in PFLlib: with 20 clients, 10 classes and 2 classes per client,
    clients 0 to 3 share classes 0 and 1, clients 4 to 7 classes 2 and 3, and so on. Of the m owners of a class, all but
    the last get a share uniform in [1/(10 m), 1/m], and the last the rest; with ``balanced`` all get 1/m. PFLlib draws
    the same sizes in rows instead of shares. Unless k divides the number of classes C, and C divides n k, the last
    clients may get fewer classes, or the last classes no client (ceil(n k / C) owners per class).
    """

    name: Literal["classes"] = "classes"
    classes_per_client: int = Field(default=2, ge=1, le=10**6, description="number of classes that a client is given")
    balanced: bool = Field(default=False, description="equal instead of random shares for the owners of a class")

    def plan(self, task: PartitionTask) -> PartitionPlan:
        """Return the table of classes in order. Raises ConfigError if there are fewer classes than a client needs."""
        check_classes_per_client(self.classes_per_client, task.n_classes)
        rng = task.stream("table")
        table = classes_table(task.clients, task.n_classes, self.classes_per_client, self.balanced, rng)
        return PartitionPlan(task.labels, table, table)

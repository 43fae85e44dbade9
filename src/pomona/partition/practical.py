"""All classes on every client, in very uneven shards (APPLE, section 4.1)."""

from typing import Literal

import numpy as np

from pomona.partition.allocate import Shares
from pomona.partition.recipe import PartitionPlan, PartitionTask, Recipe


def shards(clients: int) -> Shares:
    """Return (n,) shard sizes: 80 %, 10 %, and the last 10 % in n - 2 equal shards; 90 % and 10 % for two clients.

    A single client gets all. For APPLE's 12 clients these are the paper's ten shards of 1 %, one of 10 % and one of 80
    %.
    """
    if clients < 3:
        return np.array([1.0] if clients == 1 else [0.9, 0.1])
    return np.array([0.8, 0.1] + [0.1 / (clients - 2)] * (clients - 2))


class Practical(Recipe):
    """Each class is cut into one large, one medium and many small shards, dealt to the clients at random.

    Training and test rows use the same table (APPLE's practical setting, Figure 6). A shard of 1 % is empty for classes
    with too few rows.
    """

    name: Literal["practical"] = "practical"

    def plan(self, task: PartitionTask) -> PartitionPlan:
        """Return the shards, permuted over the clients independently for each class."""
        columns = np.tile(shards(task.clients)[:, None], (1, task.n_classes))
        table = task.stream("table").permuted(columns, axis=0)
        return PartitionPlan(task.labels, table, table)

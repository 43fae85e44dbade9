"""Independent and identically distributed clients."""

from typing import Literal

import numpy as np

from pomona.partition.recipe import PartitionPlan, PartitionTask, Recipe


class Iid(Recipe):
    """Every client gets the same share of every class (McMahan et al. 2017; the IID setting of the FedAMP paper)."""

    by_class = False
    remedy = (
        "every class is dealt out in equal shares, so use at most as many clients as the largest class has training "
        "rows, or more data (data.train_limit)"
    )
    name: Literal["iid"] = "iid"

    def plan(self, task: PartitionTask) -> PartitionPlan:
        """Return a table of equal shares."""
        table = np.full((task.clients, task.n_classes), 1 / task.clients)
        return PartitionPlan(task.labels, table, table)

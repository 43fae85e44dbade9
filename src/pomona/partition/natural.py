"""The natural partition, given by the data."""

from typing import Literal

import numpy as np

from pomona.core.errors import ConfigError
from pomona.partition.recipe import PartitionPlan, PartitionTask, Recipe


class Natural(Recipe):
    """Every row stays with its owner (hospital, writer, site) and in its split, as the data say.

    An owner without test or validation rows has them drawn from its training rows, by the shares of the data settings.
    A single client holds the rows of all owners, as a silo does, or a run on pooled data.
    """

    by_class = False
    by_owner = True
    members = True
    remedy = "give each owner rows for training, or leave it out"
    name: Literal["natural"] = "natural"

    def plan(self, task: PartitionTask) -> PartitionPlan:
        """Return the identity table over owners. Raises ConfigError if their number is not ``clients``, nor that 1."""
        owners = task.dataset.owners
        assert owners is not None, "a task by owner has owners"
        if task.clients not in {1, len(owners.names)}:
            raise ConfigError(
                f"{task.dataset.name} has {len(owners.names)} owners, the run {task.clients} clients; "
                f"set clients = {len(owners.names)}"
            )
        table = np.eye(len(owners.names)) if task.clients > 1 else np.ones((1, len(owners.names)))
        return PartitionPlan(owners.client, table, table)

"""Partitions that are given: by the data, or by a saved file."""

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from pomona.core.bounds import SPLITS
from pomona.core.errors import ConfigError, DataError
from pomona.core.settings import Settings
from pomona.data.dataset import Dataset
from pomona.partition.groups import check_turnable
from pomona.partition.partition import Partition, check
from pomona.partition.recipe import PartitionPlan, PartitionTask, Recipe, require_whole


class FromFile(Settings):
    """A saved partition, used unchanged: its rows, validation rows, groups and turns.

    Its own split, shares, limits and times apply, not those in the run's data settings; groups of
    rows must be whole in it.

    Attributes:
        path: a partition saved by `pomona data show --save`
    """

    members: ClassVar[bool] = True
    name: Literal["file"] = "file"
    path: Path

    def read(self, dataset: Dataset, clients: int) -> Partition:
        """Return the saved partition.

        Raises:
            ConfigError: it is for another number of clients.
            DataError: it is damaged, was made from other data, or splits a group of rows.
        """
        partition = Partition.load(self.path)
        fingerprint = partition.recipe.get("fingerprint")
        if fingerprint != dataset.fingerprint:
            raise DataError(
                f"{self.path} was made from other data (fingerprint {str(fingerprint)[:12]}, "
                f"{dataset.name} has "
                f"{dataset.fingerprint[:12]}); use the same data, or make the partition again"
            )
        if len(partition.clients) != clients:
            raise ConfigError(
                f"{self.path} has {len(partition.clients)} clients, but the run has clients = "
                f"{clients}; set clients = {len(partition.clients)}, or name another file"
            )
        check(partition, dataset, str(self.path))
        role = np.full(len(dataset), 3)
        for client in partition.clients:
            for number, split in enumerate(SPLITS):
                role[getattr(client, split)] = number
        groups = dataset.groups and dataset.groups.within(
            dataset.owners.client if dataset.owners else None
        )
        require_whole(dataset, groups, role, f"make {self.path} again")
        if any(partition.turns):
            check_turnable(dataset)
        return partition


class Natural(Recipe):
    """Every row stays with its owner (hospital, writer, site) and in its split, as the data say.

    An owner without test or validation rows has them drawn from its training rows, by the shares of
    the data settings. A single client holds the rows of all owners, as a silo does, or a run on
    pooled data.
    """

    by_class = False
    by_owner = True
    members = True
    remedy = "give each owner rows for training, or leave it out"
    name: Literal["natural"] = "natural"

    def plan(self, task: PartitionTask) -> PartitionPlan:
        """Return the identity table over owners.

        Raises ConfigError if their number is not ``clients``, nor that 1.
        """
        owners = task.dataset.owners
        assert owners is not None, "a task by owner has owners"
        if task.clients not in {1, len(owners.names)}:
            raise ConfigError(
                f"{task.dataset.name} has {len(owners.names)} owners, but the run has "
                f"{task.clients} clients; set clients = {len(owners.names)}"
            )
        table = np.eye(len(owners.names)) if task.clients > 1 else np.ones((1, len(owners.names)))
        return PartitionPlan(owners.client, table, table)

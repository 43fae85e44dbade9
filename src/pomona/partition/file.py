"""Partitions read from a file."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from pomona.core.errors import ConfigError, DataError
from pomona.core.settings import Settings
from pomona.data.dataset import Dataset
from pomona.partition.partition import Partition
from pomona.partition.rotation import check_turnable
from pomona.partition.validation import check


class FromFile(Settings):
    """A saved partition, used unchanged: its rows, validation rows, groups and turns.

    Its own split, shares and limits apply, not those in the run's data settings.
    """

    members: ClassVar[bool] = True
    name: Literal["file"] = "file"
    path: Path = Field(description="a partition saved by `pomona data show --save`")

    def read(self, dataset: Dataset, clients: int) -> Partition:
        """Return the saved partition.

        Raises:
            ConfigError: it is for another number of clients.
            DataError: it is damaged, or was made from other data.
        """
        partition = Partition.load(self.path)
        made_from = partition.recipe.get("fingerprint")
        if made_from != dataset.fingerprint:
            raise DataError(
                f"{self.path} was made from other data (fingerprint {str(made_from)[:12]}, {dataset.name} has "
                f"{dataset.fingerprint[:12]}); use the same data, or make the partition anew"
            )
        if len(partition.clients) != clients:
            raise ConfigError(
                f"{self.path} has {len(partition.clients)} clients, the run has clients = {clients}; "
                f"set clients = {len(partition.clients)}, or name another file"
            )
        check(partition, dataset, str(self.path))
        if any(partition.turns):
            check_turnable(dataset)
        return partition

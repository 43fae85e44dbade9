"""Checks for every partition, created or read from a file."""

import numpy as np

from pomona.core.errors import DataError
from pomona.core.samples import SPLITS
from pomona.data.dataset import Dataset
from pomona.data.problem_report import listed
from pomona.partition.partition import Partition

ANEW = "make the partition anew"


def check(partition: Partition, dataset: Dataset, source: str, remedy: str = ANEW) -> None:
    """Raise DataError unless the partition fits this data set.

    Row numbers must be within the data and ascending, and occur only once; every client must have training rows; groups
    and turns, if any, must have one number per client, and targets must name each client once.

    Args:
        partition: the partition to check.
        dataset: its data set.
        source: its origin, for the start of the message.
        remedy: for clients without training rows.
    """
    idle = [str(i) for i, client in enumerate(partition.clients) if not len(client.train)]
    if idle:
        who = f"client {idle[0]} has" if len(idle) == 1 else f"clients {listed(idle)} have"
        raise DataError(f"{source}: {who} no training rows; {remedy}")
    taken = np.zeros(len(dataset), dtype=bool)
    for i, client in enumerate(partition.clients):
        for part in SPLITS:
            rows = getattr(client, part)
            where = f"{source}: client {i}, {part}"
            if np.any(np.diff(rows) <= 0):
                raise DataError(f"{where}: row numbers do not ascend; {ANEW}")
            if len(rows) and (rows[0] < 0 or rows[-1] >= len(dataset)):
                outside = rows[0] if rows[0] < 0 else rows[-1]
                raise DataError(
                    f"{where}: row {outside} is not among the {len(dataset)} rows of {dataset.name}; {ANEW}"
                )
            if taken[rows].any():
                raise DataError(f"{where}: row {rows[taken[rows]][0]} is held twice; {ANEW}")
            taken[rows] = True
    for what, values in (("groups", partition.groups), ("turns", partition.turns)):
        if len(values) not in (0, len(partition.clients)):
            raise DataError(f"{source}: {what} has {len(values)} entries for {len(partition.clients)} clients; {ANEW}")
    if partition.targets and sorted(partition.targets) != list(range(len(partition.clients))):
        raise DataError(f"{source}: targets must name each client once; {ANEW}")
    if not set(partition.turns) <= set(range(4)):
        got = sorted(set(partition.turns))
        raise DataError(f"{source}: turns must be 0, 1, 2 or 3 quarter turns, got {got}; {ANEW}")

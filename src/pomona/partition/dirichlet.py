"""Label skew of adjustable strength: Dirichlet shares per class (Lin et al. 2020; FedALA, section 5.1)."""

from typing import Literal

import numpy as np
from pydantic import Field

from pomona.core.errors import DataError
from pomona.partition.allocate import Labels, Shares
from pomona.partition.recipe import PartitionPlan, PartitionTask, Recipe


def dirichlet_table(clients: int, counts: Labels, beta: float, cap: bool, rng: np.random.Generator) -> Shares:
    """Draw (n, n_classes) shares, each column from Dirichlet(beta * 1).

    With ``cap``, clients that already hold 1/n of all rows get none of the next class. PFLlib sets their shares to zero
    and rescales the others; a rescaled part of a Dirichlet vector is Dirichlet distributed, so drawing over the
    remaining clients has the same distribution and never divides 0 by 0.
    """
    table = np.zeros((clients, len(counts)))
    held = np.zeros(clients)
    for c, count in enumerate(counts):
        free = np.flatnonzero(held < counts.sum() / clients) if cap else np.arange(clients)
        free = free if len(free) else np.arange(clients)  # only classes without rows are left
        table[free, c] = rng.dirichlet(np.full(len(free), beta))
        held += table[:, c] * count
    return table


class Dirichlet(Recipe):
    """Each class is divided by a draw from a symmetric Dirichlet distribution; small beta means strong skew.

    As in PFLlib, the whole table is redrawn until every client has enough training rows; here the number of tries is
    limited. Training and test rows use the same table. If targets are not classes, all rows count as one class, and
    only the quantity is skewed.
    """

    by_class = False
    name: Literal["dirichlet"] = "dirichlet"
    beta: float = Field(
        default=0.1, gt=0, le=1e9, description="concentration: 0.1 is strong label skew, 100 nearly none"
    )
    min_size: int | None = Field(
        default=None,
        ge=1,
        description="smallest number of training rows of a client; by default 30, or half the mean if less (PFLlib)",
    )
    tries: int = Field(default=1000, ge=1, le=10**6, description="number of tables drawn before giving up")
    balance_cap: bool = Field(
        default=True, description="clients that hold 1/n of the rows get nothing of the next class (PFLlib)"
    )

    def plan(self, task: PartitionTask) -> PartitionPlan:
        """Return the first table that gives every client enough rows. Raises DataError after the last try."""
        rng = task.stream("table")
        counts = task.counts(task.train)
        needed = self.min_size or max(1, min(30, len(task.train) // (2 * task.clients)))
        best = 0
        for _ in range(self.tries):
            table = dirichlet_table(task.clients, counts, self.beta, self.balance_cap, rng)
            smallest = int(np.floor(table * counts).sum(axis=1).min())  # rounding keeps the floor
            if smallest >= needed:
                return PartitionPlan(task.labels, table, table)
            best = max(best, smallest)
        raise DataError(
            f"in {self.tries} tries no Dirichlet({self.beta:g}) partition of {len(task.train)} training rows gave each "
            f"of {task.clients} clients {needed} rows (best try: smallest client with {best}); "
            f"raise partition.beta, or lower clients or partition.min_size"
        )

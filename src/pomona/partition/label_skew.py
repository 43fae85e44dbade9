"""Partitions by class: independent rows, or clients that have few classes or uneven shares of them.

Sources: ``dirichlet`` of Lin et al. 2020, and FedALA, section 5.1; ``classes`` of FedALA and
PFLlib; ``pathological`` and ``practical`` of APPLE, section 4.1.
"""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from pomona.core.errors import ConfigError, DataError
from pomona.partition.partition import Labels, Shares
from pomona.partition.published import (
    apple_pathological,
    apple_practical,
    niid_classes,
    niid_dirichlet,
    pfllib_classes,
    pfllib_dirichlet,
)
from pomona.partition.recipe import GivenRows, PartitionPlan, PartitionTask, Recipe


def shards(clients: int) -> Shares:
    """Return (n,) shard sizes: 80 %, 10 %, and the last 10 % in n - 2 equal shards; 90 % and 10 %
    for two clients.

    A single client gets all. For APPLE's 12 clients these are the paper's ten shards of 1 %, one of
    10 % and one of 80 %.
    """
    if clients < 3:
        return np.array([1.0] if clients == 1 else [0.9, 0.1])
    return np.array([0.8, 0.1] + [0.1 / (clients - 2)] * (clients - 2))


class Practical(Recipe):
    """Each class is cut into one large, one medium and many small shards, dealt to the clients at
    random.

    Training and test rows use the same table (APPLE's practical setting, Figure 6). A shard of 1 %
    is empty for classes with too few rows.

    Attributes:
        draw: the run's own draw, or the one behind APPLE's table 1, whatever the seed
    """

    name: Literal["practical"] = "practical"
    draw: Literal["own", "published"] = "own"

    def plan(self, task: PartitionTask) -> PartitionPlan | GivenRows:
        """Return the shards, permuted over the clients independently for each class.

        Raises:
            ConfigError: the published draw is of another number of clients.
        """
        if self.draw == "published":
            return apple_practical(task)
        columns = np.tile(shards(task.clients)[:, None], (1, task.n_classes))
        table = task.stream("table").permuted(columns, axis=0)
        return PartitionPlan(task.labels, table, table)


def check_classes_per_client(requested: int, available: int) -> None:
    """Raise ConfigError if a client is to have more classes than the data have."""
    if requested > available:
        raise ConfigError(
            f"partition.classes_per_client = {requested}, but the data has {available} classes; "
            "lower it"
        )


def check_uneven(balanced: bool, draw: str) -> None:
    """Raise ConfigError for equal shares in a draw that has shares of its own."""
    if balanced:
        raise ConfigError(
            f"partition.draw = {draw} defines its own shares; remove partition.balanced"
        )


def pathological_table(
    clients: int, n_classes: int, per_client: int, balanced: bool, rng: np.random.Generator
) -> Shares:
    """Return (n, n_classes) shares: client i takes places ik to ik + k - 1 of concatenated random
    permutations.
    """
    rounds = -(-clients * per_client // n_classes)
    classes = np.concatenate([rng.permutation(n_classes) for _ in range(rounds)])[
        : clients * per_client
    ]
    weight = np.ones(len(classes)) if balanced else 1 - rng.random(len(classes))
    table = np.zeros((clients, n_classes))
    np.add.at(table, (np.arange(len(classes)) // per_client, classes), weight)
    totals = table.sum(axis=0)
    return table / np.where(totals > 0, totals, 1)


class Pathological(Recipe):
    """Each client draws a few classes; a class is shared among its owners in random proportions.

    As in APPLE's published code: random permutations of the classes are concatenated and handed
    out, so that the numbers of owners of any two classes differ by at most one; the owners of a
    class get u / sum(u) of its rows, u ~ U(0, 1), the same share of training and test rows. A class
    that no client drew is not used. If the number of classes is not a multiple of
    ``classes_per_client``, a client's places can straddle two permutations and contain the same
    class twice: that client then has one class less, with the weight of both places.

    With ``balanced`` the owners get equal shares: the pathological setting of the FedAMP paper and
    of McMahan et al., with two classes per client and no groups of similar clients.

    Attributes:
        classes_per_client: number of classes that a client draws
        balanced: equal instead of random shares for the owners of a class
        draw: the run's own draw, or the one behind APPLE's table 1, whatever the seed
    """

    name: Literal["pathological"] = "pathological"
    classes_per_client: int = Field(2, ge=1, le=10**6)
    balanced: bool = False
    draw: Literal["own", "published"] = "own"

    def plan(self, task: PartitionTask) -> PartitionPlan | GivenRows:
        """Return the table of drawn classes.

        Raises ConfigError if there are fewer classes than a client needs.
        """
        check_classes_per_client(self.classes_per_client, task.n_classes)
        if self.draw == "published":
            check_uneven(self.balanced, self.draw)
            return apple_pathological(task, self.classes_per_client)
        rng = task.stream("table")
        table = pathological_table(
            task.clients, task.n_classes, self.classes_per_client, self.balanced, rng
        )
        return PartitionPlan(task.labels, table, table)


def classes_table(
    clients: int, n_classes: int, per_client: int, balanced: bool, rng: np.random.Generator
) -> Shares:
    """Return (n, n_classes) shares: each class goes to the first ceil(n k / C) clients that still
    need classes.
    """
    owners_wanted = -(-clients * per_client // n_classes)
    remaining = np.full(clients, per_client)
    table = np.zeros((clients, n_classes))
    for c in range(n_classes):
        owners = np.flatnonzero(remaining > 0)[:owners_wanted]
        if not len(owners):
            break
        remaining[owners] -= 1
        equal = 1 / len(owners)
        shares = (
            np.full(len(owners), equal) if balanced else rng.uniform(equal / 10, equal, len(owners))
        )
        shares[-1] = 1 - shares[:-1].sum()
        table[owners, c] = shares
    return table


PublishedDraw = Annotated[
    Literal["own", "pfllib", "niid-bench"],
    Field(
        description="the run's own draw, or, whatever the seed, that of PFLlib's tables (rows of "
        "both splits, a quarter of each client's for testing) or of Flower's niid_bench (equal "
        "parts of the test rows)"
    ),
]


class Classes(Recipe):
    """A fixed number of classes per client, assigned in class order.

    The pathological setting of the FedALA paper, as in PFLlib: with 20 clients, 10 classes and 2
    classes per client, clients 0 to 3 share classes 0 and 1, clients 4 to 7 classes 2 and 3, and so
    on. Of the m owners of a class, all but the last get a share uniform in [1/(10 m), 1/m], and the
    last the rest; with ``balanced`` all get 1/m. PFLlib draws the same sizes in rows instead of
    shares. Unless k divides the number of classes C, and C divides n k, the last clients may get
    fewer classes, or the last classes no client (ceil(n k / C) owners per class).

    Attributes:
        classes_per_client: number of classes that a client is given
        balanced: equal instead of random shares for the owners of a class
    """

    name: Literal["classes"] = "classes"
    classes_per_client: int = Field(2, ge=1, le=10**6)
    balanced: bool = False
    draw: PublishedDraw = "own"

    def plan(self, task: PartitionTask) -> PartitionPlan | GivenRows:
        """Return the table of classes in order.

        Raises ConfigError if there are fewer classes than a client needs.
        """
        check_classes_per_client(self.classes_per_client, task.n_classes)
        if self.draw != "own":
            check_uneven(self.balanced, self.draw)
            return (pfllib_classes if self.draw == "pfllib" else niid_classes)(
                task, self.classes_per_client
            )
        rng = task.stream("table")
        table = classes_table(
            task.clients, task.n_classes, self.classes_per_client, self.balanced, rng
        )
        return PartitionPlan(task.labels, table, table)


class Iid(Recipe):
    """Every client gets the same share of every class (McMahan et al. 2017; the IID setting of the
    FedAMP paper).
    """

    by_class = False
    remedy = (
        "every class is dealt out in equal shares, so use at most as many clients as the largest "
        "class has training rows, or more data (data.train_limit)"
    )
    name: Literal["iid"] = "iid"

    def plan(self, task: PartitionTask) -> PartitionPlan:
        """Return a table of equal shares."""
        table = np.full((task.clients, task.n_classes), 1 / task.clients)
        return PartitionPlan(task.labels, table, table)


def dirichlet_table(
    clients: int, counts: Labels, beta: float, cap: bool, rng: np.random.Generator
) -> Shares:
    """Draw (n, n_classes) shares, each column from Dirichlet(beta * 1).

    With ``cap``, clients that already hold 1/n of all rows get none of the next class. PFLlib sets
    their shares to zero and rescales the others; a rescaled part of a Dirichlet vector is Dirichlet
    distributed, so drawing over the remaining clients has the same distribution and never divides 0
    by 0.
    """
    table = np.zeros((clients, len(counts)))
    sizes = np.zeros(clients)
    for c, count in enumerate(counts):
        free = np.flatnonzero(sizes < counts.sum() / clients) if cap else np.arange(clients)
        free = free if len(free) else np.arange(clients)  # only classes without rows are left
        table[free, c] = rng.dirichlet(np.full(len(free), beta))
        sizes += table[:, c] * count
    return table


class Dirichlet(Recipe):
    """Each class is divided by a draw from a symmetric Dirichlet distribution; small beta means
    strong skew.

    As in PFLlib, the whole table is redrawn until every client has enough training rows; here the
    number of tries is limited. Training and test rows use the same table. If targets are not
    classes, all rows count as one class, and only the quantity is skewed.

    Attributes:
        beta: concentration: 0.1 is strong label skew, 100 nearly none
        min_size: smallest number of training rows of a client; by default 30, or half the mean if
            less (PFLlib)
        tries: number of tables drawn before giving up
        balance_cap: clients that hold 1/n of the rows get nothing of the next class (PFLlib)
    """

    by_class = False
    name: Literal["dirichlet"] = "dirichlet"
    beta: float = Field(0.1, gt=0, le=1e9)
    min_size: int | None = Field(None, ge=1)
    tries: int = Field(1000, ge=1, le=10**6)
    balance_cap: bool = True
    draw: PublishedDraw = "own"

    def plan(self, task: PartitionTask) -> PartitionPlan | GivenRows:
        """Return the first table that gives every client enough rows.

        Raises DataError after the last try.
        """
        if self.draw != "own":
            if not self.balance_cap or self.min_size is not None:
                raise ConfigError(
                    f"partition.draw = {self.draw} defines its own cap and smallest size; remove "
                    "partition.balance_cap and partition.min_size"
                )
            return (pfllib_dirichlet if self.draw == "pfllib" else niid_dirichlet)(task, self.beta)
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
            f"in {self.tries} tries no Dirichlet({self.beta:g}) partition of {len(task.train)} "
            f"training rows gave each of {task.clients} clients {needed} rows (best try: smallest "
            f"client with {best}); raise partition.beta, or lower clients or partition.min_size"
        )

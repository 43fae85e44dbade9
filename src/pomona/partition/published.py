"""Draws of clients behind published tables, row by row, from the generators and seeds of their
programs.

``apple_*``: table 1 of APPLE (Luo and Wu, IJCAI 2022). ``pfllib_*``: the tables of PFLlib, FedALA,
FedCP, GPFL and FedDBE. ``niid_*``: the table of Flower's baseline niid_bench. Levels of two draws
cannot be compared, so a table is compared on its own. The order of calls to the generator
determines the rows; tests compare them with those that the programs give. A run's seed changes
nothing here.
"""

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator, RandomState

from pomona.core.errors import ConfigError, DataError
from pomona.partition.partition import Labels, Rows, Shares
from pomona.partition.recipe import GivenRows, PartitionTask

APPLE_SEED, PFLLIB_SEED, NIID_SEED = 42, 1, 42
APPLE_COLUMN = (*[0.01] * 10, 0.1, 0.8)
BATCH, TRAIN_SHARE = 10, 0.75  # of PFLlib's generator: every client has a batch of test rows
NIID_LEAST = 10  # rows of a client
TRIES = 1000

Held = list[list[Rows]]  # blocks of rows by client


def apple_practical(task: PartitionTask) -> GivenRows:
    """Deal each class in shards of 80 %, 10 % and ten of 1 %.

    Raises ConfigError unless there are 12 clients.
    """
    if task.clients != len(APPLE_COLUMN):
        raise ConfigError(
            f"partition.draw = published has {len(APPLE_COLUMN)} clients, the run {task.clients}; "
            f"set clients = {len(APPLE_COLUMN)}"
        )
    rng, column = RandomState(APPLE_SEED), np.array(APPLE_COLUMN)
    table = np.empty((task.clients, task.n_classes))
    for c in range(task.n_classes):
        rng.shuffle(column)  # the order of the class before, shuffled again
        table[:, c] = column
    return _by_shares(task, table, rng)


def apple_pathological(task: PartitionTask, per_client: int) -> GivenRows:
    """Deal random permutations of the classes, ``per_client`` places to a client; owners share a
    class at random.
    """
    rng, places = RandomState(APPLE_SEED), task.clients * per_client
    permutations = [rng.permutation(task.n_classes) for _ in range(-(-places // task.n_classes))]
    drawn = np.concatenate(permutations)[:places]
    table = np.zeros((task.clients, task.n_classes))
    for c in range(task.n_classes):
        owners = np.flatnonzero(drawn == c) // per_client
        weights = rng.uniform(size=len(owners))
        np.add.at(table[:, c], owners, weights / weights.sum())
    return _by_shares(task, table, rng)


def _by_shares(task: PartitionTask, table: Shares, rng: RandomState) -> GivenRows:
    """Deal the training rows, then the test rows, by one table.

    Rows left over by rounding go to nobody.
    """

    def dealt(pool: Rows) -> tuple[Rows, ...]:
        held: Held = [[] for _ in table]
        for c, shares in enumerate(table.T):
            rows = rng.permutation(pool[task.labels[pool] == c])
            _hand_out(rows, (shares * len(rows)).astype(np.int64), held)
        return tuple(np.sort(np.concatenate(blocks)) for blocks in held)

    return GivenRows(dealt(task.train), dealt(task.test))


def pfllib_dirichlet(task: PartitionTask, beta: float) -> GivenRows:
    """Divide class by class by Dirichlet(beta).

    Raises DataError if no draw gives every client enough rows.
    """
    rng, pool = RandomState(PFLLIB_SEED), np.concatenate([task.train, task.test])
    return _split(_capped(task, pool, beta, rng, _least(task, pool)), rng)


def niid_dirichlet(task: PartitionTask, beta: float) -> GivenRows:
    """Divide as PFLlib does, but training rows alone.

    Raises DataError if no draw gives every client enough rows.
    """
    return _beside_test(
        task, _capped(task, task.train, beta, np.random.default_rng(NIID_SEED), NIID_LEAST)
    )


def niid_classes(task: PartitionTask, per_client: int) -> GivenRows:
    """Divide each class equally among its owners: client i has class i, modulo their number, and
    others at random.
    """
    rng = np.random.default_rng(NIID_SEED)
    classes = [[i % task.n_classes] for i in range(task.clients)]
    for own in classes:
        while len(own) < per_client:
            drawn = int(rng.choice(task.n_classes, 1)[0])
            own.extend({drawn}.difference(own))
    held: Held = [[] for _ in classes]
    for c in range(task.n_classes):
        rows = rng.permutation(task.train[task.labels[task.train] == c])
        owners = [blocks for blocks, own in zip(held, classes, strict=True) if c in own]
        for blocks, part in zip(owners, np.array_split(rows, max(len(owners), 1)), strict=False):
            blocks.append(part)
    return _beside_test(task, held)


def _beside_test(task: PartitionTask, held: Held) -> GivenRows:
    """Return training rows beside equal parts of the test rows, which the program tests as one."""
    _require_rows(held, 1)
    train = tuple(np.sort(np.concatenate(blocks)) for blocks in held)
    return GivenRows(train, tuple(np.array_split(task.test, task.clients)))


def _capped(
    task: PartitionTask, pool: Rows, beta: float, rng: RandomState | Generator, least: int
) -> Held:
    """Divide a pool class by class by Dirichlet(beta), where a client with 1/n of all rows gets no
    more.

    Raises:
        DataError: no draw gives every client enough rows.
    """
    for _ in range(TRIES):
        held: Held = [[] for _ in range(task.clients)]
        for c in range(task.n_classes):
            rows = rng.permutation(pool[task.labels[pool] == c])
            shares = rng.dirichlet(np.full(task.clients, beta)) * (
                _sizes(held) < len(pool) / task.clients
            )
            if not shares.sum() > 0:  # all that may get rows have drawn nothing
                break
            ends = (np.cumsum(shares / shares.sum()) * len(rows)).astype(np.int64)
            _hand_out(rows, np.diff(ends[:-1], prepend=0, append=len(rows)), held)
        else:
            if _sizes(held).min() >= least:
                return held
    raise DataError(
        f"none of {TRIES} draws of the published generator gave each of {task.clients} clients "
        f"{least} rows; raise partition.beta, or lower clients"
    )


def pfllib_classes(task: PartitionTask, per_client: int) -> GivenRows:
    """Divide each class in consecutive blocks of random sizes among the first clients that still
    need classes.
    """
    rng, pool = RandomState(PFLLIB_SEED), np.concatenate([task.train, task.test])
    held: Held = [[] for _ in range(task.clients)]
    needs = np.full(task.clients, per_client)
    for c in range(task.n_classes):
        rows = pool[task.labels[pool] == c]
        owners = np.flatnonzero(needs > 0)[
            : int(np.ceil(task.clients / task.n_classes * per_client))
        ]
        if not len(owners):
            break
        needs[owners] -= 1
        mean = len(rows) / len(owners)
        least = int(max(mean / 10, _least(task, pool) / task.n_classes))
        if len(owners) > 1 and least >= int(mean):
            raise DataError(
                f"class {c} has too few rows ({len(rows)}) for its {len(owners)} clients in the "
                "published draw; lower clients or partition.classes_per_client"
            )
        drawn = rng.randint(least, max(int(mean), least + 1), len(owners) - 1)
        _hand_out(rows, [*drawn, len(rows) - drawn.sum()], [held[i] for i in owners])
    return _split(held, rng)


def _hand_out(rows: Rows, sizes: Labels | Sequence[int], held: Held) -> None:
    """Append consecutive blocks of these sizes to the clients' blocks, in order."""
    ends = np.cumsum(sizes)
    for blocks, start, end in zip(held, [0, *ends], ends, strict=False):
        blocks.append(rows[start:end])


def _require_rows(held: Held, least: int) -> None:
    """Raise DataError unless each client has rows enough to be split."""
    short = np.flatnonzero(_sizes(held) < least)
    if len(short):
        raise DataError(
            f"in the published draw client {short[0]} has fewer than {least} rows; lower clients, "
            "or use partition.draw = own"
        )


def _sizes(held: Held) -> Labels:
    return np.array([sum(map(len, blocks)) for blocks in held])


def _least(task: PartitionTask, pool: Rows) -> int:
    """Return PFLlib's smallest number of rows of a client."""
    return int(min(BATCH / (1 - TRAIN_SHARE), len(pool) / task.clients / 2))


def _split(held: Held, rng: RandomState) -> GivenRows:
    """Split each client's rows again, whatever part of the data they are from."""
    # late: it starts a thread, and takes a second
    from sklearn.model_selection import train_test_split

    _require_rows(held, 2)
    parts = [
        train_test_split(np.concatenate(blocks), train_size=TRAIN_SHARE, random_state=rng)
        for blocks in held
    ]
    return GivenRows(
        tuple(np.sort(train) for train, _ in parts), tuple(np.sort(test) for _, test in parts)
    )

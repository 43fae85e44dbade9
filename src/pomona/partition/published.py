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
NIID_MIN_ROWS = 10  # rows of a client
TRIES = 1000

ClientBlocks = list[list[Rows]]  # blocks of rows by client


def apple_practical(task: PartitionTask) -> GivenRows:
    """Deal each class in shards of 80 %, 10 % and ten of 1 %.

    Raises ConfigError unless there are 12 clients.
    """
    if task.clients != len(APPLE_COLUMN):
        raise ConfigError(
            f"partition.draw = published has {len(APPLE_COLUMN)} clients, but the run has "
            f"{task.clients}; set clients = {len(APPLE_COLUMN)}"
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
    rng, slots = RandomState(APPLE_SEED), task.clients * per_client
    permutations = [rng.permutation(task.n_classes) for _ in range(-(-slots // task.n_classes))]
    classes = np.concatenate(permutations)[:slots]
    table = np.zeros((task.clients, task.n_classes))
    for c in range(task.n_classes):
        owners = np.flatnonzero(classes == c) // per_client
        weights = rng.uniform(size=len(owners))
        np.add.at(table[:, c], owners, weights / weights.sum())
    return _by_shares(task, table, rng)


def _by_shares(task: PartitionTask, table: Shares, rng: RandomState) -> GivenRows:
    """Deal the training rows, then the test rows, by one table.

    Rows left over by rounding go to nobody.
    """

    def dealt(pool: Rows) -> tuple[Rows, ...]:
        client_blocks: ClientBlocks = [[] for _ in table]
        for c, shares in enumerate(table.T):
            rows = rng.permutation(pool[task.labels[pool] == c])
            _hand_out(rows, (shares * len(rows)).astype(np.int64), client_blocks)
        return tuple(np.sort(np.concatenate(blocks)) for blocks in client_blocks)

    return GivenRows(dealt(task.train), dealt(task.test))


def pfllib_dirichlet(task: PartitionTask, beta: float) -> GivenRows:
    """Divide class by class by Dirichlet(beta).

    Raises DataError if no draw gives every client enough rows.
    """
    rng, pool = RandomState(PFLLIB_SEED), np.concatenate([task.train, task.test])
    return _split(_capped(task, pool, beta, rng, _min_rows(task, pool)), rng)


def niid_dirichlet(task: PartitionTask, beta: float) -> GivenRows:
    """Divide as PFLlib does, but training rows alone.

    Raises DataError if no draw gives every client enough rows.
    """
    return _with_test_rows(
        task, _capped(task, task.train, beta, np.random.default_rng(NIID_SEED), NIID_MIN_ROWS)
    )


def niid_classes(task: PartitionTask, per_client: int) -> GivenRows:
    """Divide each class equally among its owners: client i has class i, modulo their number, and
    others at random.
    """
    rng = np.random.default_rng(NIID_SEED)
    classes = [[i % task.n_classes] for i in range(task.clients)]
    for client_classes in classes:
        while len(client_classes) < per_client:
            new_class = int(rng.choice(task.n_classes, 1)[0])
            client_classes.extend({new_class}.difference(client_classes))
    client_blocks: ClientBlocks = [[] for _ in classes]
    for c in range(task.n_classes):
        rows = rng.permutation(task.train[task.labels[task.train] == c])
        owners = [
            blocks
            for blocks, client_classes in zip(client_blocks, classes, strict=True)
            if c in client_classes
        ]
        for blocks, chunk in zip(owners, np.array_split(rows, max(len(owners), 1)), strict=False):
            blocks.append(chunk)
    return _with_test_rows(task, client_blocks)


def _with_test_rows(task: PartitionTask, client_blocks: ClientBlocks) -> GivenRows:
    """Return training rows with equal parts of the test rows, which the program tests as one."""
    _require_rows(client_blocks, 1)
    train = tuple(np.sort(np.concatenate(blocks)) for blocks in client_blocks)
    return GivenRows(train, tuple(np.array_split(task.test, task.clients)))


def _capped(
    task: PartitionTask, pool: Rows, beta: float, rng: RandomState | Generator, min_rows: int
) -> ClientBlocks:
    """Divide a pool class by class by Dirichlet(beta), where a client with 1/n of all rows gets no
    more.

    Raises:
        DataError: no draw gives every client enough rows.
    """
    for _ in range(TRIES):
        client_blocks: ClientBlocks = [[] for _ in range(task.clients)]
        for c in range(task.n_classes):
            rows = rng.permutation(pool[task.labels[pool] == c])
            shares = rng.dirichlet(np.full(task.clients, beta)) * (
                _sizes(client_blocks) < len(pool) / task.clients
            )
            if not shares.sum() > 0:  # all that may get rows have drawn nothing
                break
            bounds = (np.cumsum(shares / shares.sum()) * len(rows)).astype(np.int64)
            _hand_out(rows, np.diff(bounds[:-1], prepend=0, append=len(rows)), client_blocks)
        else:
            if _sizes(client_blocks).min() >= min_rows:
                return client_blocks
    raise DataError(
        f"none of {TRIES} draws of the published generator gave each of {task.clients} clients "
        f"{min_rows} rows; raise partition.beta, or lower clients"
    )


def pfllib_classes(task: PartitionTask, per_client: int) -> GivenRows:
    """Divide each class in consecutive blocks of random sizes among the first clients that still
    need classes.
    """
    rng, pool = RandomState(PFLLIB_SEED), np.concatenate([task.train, task.test])
    client_blocks: ClientBlocks = [[] for _ in range(task.clients)]
    remaining = np.full(task.clients, per_client)
    for c in range(task.n_classes):
        rows = pool[task.labels[pool] == c]
        owners = np.flatnonzero(remaining > 0)[
            : int(np.ceil(task.clients / task.n_classes * per_client))
        ]
        if not len(owners):
            break
        remaining[owners] -= 1
        mean = len(rows) / len(owners)
        min_size = int(max(mean / 10, _min_rows(task, pool) / task.n_classes))
        if len(owners) > 1 and min_size >= int(mean):
            raise DataError(
                f"class {c} has too few rows ({len(rows)}) for its {len(owners)} clients in the "
                "published draw; lower clients or partition.classes_per_client"
            )
        sizes = rng.randint(min_size, max(int(mean), min_size + 1), len(owners) - 1)
        _hand_out(rows, [*sizes, len(rows) - sizes.sum()], [client_blocks[i] for i in owners])
    return _split(client_blocks, rng)


def _hand_out(rows: Rows, sizes: Labels | Sequence[int], client_blocks: ClientBlocks) -> None:
    """Append consecutive blocks of these sizes to the clients' blocks, in order."""
    bounds = np.cumsum(sizes)
    for blocks, start, end in zip(client_blocks, [0, *bounds], bounds, strict=False):
        blocks.append(rows[start:end])


def _require_rows(client_blocks: ClientBlocks, min_rows: int) -> None:
    """Raise DataError unless each client has rows enough to be split."""
    deficient = np.flatnonzero(_sizes(client_blocks) < min_rows)
    if len(deficient):
        raise DataError(
            f"in the published draw client {deficient[0]} has fewer than {min_rows} rows; lower "
            "clients, or use partition.draw = own"
        )


def _sizes(client_blocks: ClientBlocks) -> Labels:
    return np.array([sum(map(len, blocks)) for blocks in client_blocks])


def _min_rows(task: PartitionTask, pool: Rows) -> int:
    """Return PFLlib's smallest number of rows of a client."""
    return int(min(BATCH / (1 - TRAIN_SHARE), len(pool) / task.clients / 2))


def _split(client_blocks: ClientBlocks, rng: RandomState) -> GivenRows:
    """Split each client's rows again, whatever part of the data they are from."""
    # late: it starts a thread, and takes a second
    from sklearn.model_selection import train_test_split

    _require_rows(client_blocks, 2)
    splits = [
        train_test_split(np.concatenate(blocks), train_size=TRAIN_SHARE, random_state=rng)
        for blocks in client_blocks
    ]
    return GivenRows(
        tuple(np.sort(train) for train, _ in splits), tuple(np.sort(test) for _, test in splits)
    )

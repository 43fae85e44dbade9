"""Split of all rows into training and test pools before allocation, and validation hold-out."""

import numpy as np

from pomona.core.errors import ConfigError
from pomona.core.rng import stream
from pomona.data.dataset import Dataset
from pomona.data.settings import DataSettings
from pomona.partition.allocate import Labels, sample
from pomona.partition.partition import Rows
from pomona.partition.recipe import PartitionTask, class_numbers

TRAIN, VALIDATION, TEST = 0, 1, 2  # as in Owners.role


def open_task(dataset: Dataset, data: DataSettings, by_owner: bool, clients: int, seed: int) -> PartitionTask:
    """Split the data set into training and test rows, and keep a stratified sample of each within the limits.

    The split is the official one. All rows are split anew where the settings say so or the source has no training rows;
    training rows are split where there are no test rows. With ``by_owner`` each owner's rows are looked at by
    themselves, and rows that the data set aside for validation stay so; else there is one block, the whole data set.

    Raises:
        ConfigError: the data names no owners, and ``by_owner`` asks for them.
    """
    labels = class_numbers(dataset)
    block = np.zeros(len(dataset), dtype=np.int64)
    role = np.where(np.arange(len(dataset)) < dataset.n_train, TRAIN, TEST)
    if by_owner:
        if dataset.owners is None:
            raise ConfigError(f"{dataset.name} names no owners of its rows; choose another partition")
        block, role = dataset.owners.client, dataset.owners.role.astype(np.int64)
    if data.split == "pooled" or not np.any(role == TRAIN):
        role = np.full(len(dataset), TRAIN)
    for b in np.setdiff1d(block, block[role == TEST]):
        free = np.flatnonzero((block == b) & (role == TRAIN))
        role[hold_out(free, labels, data.test_share, stream(seed, "partition.split", b))] = TEST
    strata = block * (int(labels.max(initial=0)) + 1) + labels
    return PartitionTask(
        dataset=dataset,
        clients=clients,
        seed=seed,
        labels=labels,
        train=_limited(np.flatnonzero(role != TEST), strata, data.train_limit, stream(seed, "partition.limit.train")),
        test=_limited(np.flatnonzero(role == TEST), strata, data.test_limit, stream(seed, "partition.limit.test")),
        validation=np.flatnonzero(role == VALIDATION),
    )


def _limited(rows: Rows, strata: Labels, limit: int | None, rng: np.random.Generator) -> Rows:
    return rows if limit is None or limit >= len(rows) else rows[sample(strata[rows], limit, rng)]


def hold_out(rows: Rows, labels: Labels, share: float, rng: np.random.Generator) -> Rows:
    """Choose rows to be set aside, stratified by class.

    Args:
        rows: ascending row numbers to choose from.
        labels: (N,) the class of every row of the data set.
        share: share of the rows, rounded to whole rows. At least one row is left; unless the share is 0 at least one is
            chosen where there are two.
        rng: the stream that chooses.

    Returns:
        The chosen rows, ascending.
    """
    size = min(max(round(share * len(rows)), int(share > 0)), max(len(rows) - 1, 0))
    return rows[sample(labels[rows], size, rng)]

"""The interface of partition recipes, and the split into training, validation and test rows.

Rows of one group are never on both sides; if rows have times, the latest are held out.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pomona.core.errors import ConfigError, DataError
from pomona.core.rng import stream
from pomona.core.settings import Settings
from pomona.data.dataset import Dataset
from pomona.data.settings import DataSettings
from pomona.partition.partition import Labels, Rows, Shares, deal, sample

Times = NDArray[np.float64]


def class_numbers(dataset: Dataset) -> Labels:
    """Return (N,) the class of every row; a single class if the targets are not classes."""
    if dataset.targets == "classes":
        return dataset.y.astype(np.int64)
    return np.zeros(len(dataset), dtype=np.int64)


@dataclass(frozen=True)
class PartitionTask:
    """Two pools of rows to be divided among clients.

    Attributes:
        dataset: the data.
        clients: number of clients, n.
        seed: seed of every draw.
        labels: (N,) the class of every row of the data set.
        train, test: ascending row numbers of the data set.
        validation: training rows that the data set assigns to validation.
        groups: (N,) the group of every row, if rows belong together.
        first_client: id of the first client; a silo divides its rows as the client that it is
            among all members of its federation.
    """

    dataset: Dataset
    clients: int
    seed: int
    labels: Labels
    train: Rows
    test: Rows
    validation: Rows
    groups: Labels | None = None
    first_client: int = 0

    @property
    def n_classes(self) -> int:
        """Number of classes; 1 if the targets are not classes."""
        return len(self.dataset.classes) if self.dataset.targets == "classes" else 1

    def counts(self, rows: Rows) -> Labels:
        """Return (n_classes,) the number of the given rows in each class."""
        return np.bincount(self.labels[rows], minlength=self.n_classes)

    def stream(self, purpose: str, *address: int) -> np.random.Generator:
        """Return the random stream for one of the division's draws."""
        return stream(self.seed, f"partition.{purpose}", *address)


@dataclass(frozen=True)
class PartitionPlan:
    """Tables of shares: how many rows of each stratum each client gets.

    Attributes:
        strata: (N,) the stratum of every row, indexing the tables' columns: its class, cluster or
            owner.
        train, test: (n, n_strata) each client's share of each stratum's training and test rows.
        groups: (n,) hidden group of each client, () for none.
        targets: (n,) the client whose validation and test rows each client gets, () for its own.
    """

    strata: Labels
    train: Shares
    test: Shares
    groups: tuple[int, ...] = ()
    targets: tuple[int, ...] = ()

    def dealt(self, task: PartitionTask) -> tuple[list[Rows], list[Rows]]:
        """Deal the task's training and test rows to the clients."""
        return (
            _dealt(task.train, self.strata, self.train, task.stream("train"), task.groups),
            _dealt(task.test, self.strata, self.test, task.stream("test"), task.groups),
        )


def _dealt(
    pool: Rows, strata: Labels, shares: Shares, rng: np.random.Generator, groups: Labels | None
) -> list[Rows]:
    """Deal a pool's rows to the clients; a group is dealt as one unit, in the stratum of most of
    its rows.
    """
    if groups is None:
        return [pool[positions] for positions in deal(strata[pool], shares, rng)]
    units, unit = np.unique(groups[pool], return_inverse=True)
    majority_classes = majority(unit, strata[pool], len(units), rng)
    return [pool[np.isin(unit, dealt)] for dealt in deal(majority_classes, shares, rng)]


@dataclass(frozen=True)
class GivenRows:
    """Rows that a published program gives: each client's training rows, from which validation is
    drawn, and test rows.

    Attributes:
        train, test: (n,) ascending row numbers by client; a row may be in either, whatever part of
            the data it is from.
    """

    train: tuple[Rows, ...]
    test: tuple[Rows, ...]
    groups: ClassVar[tuple[int, ...]] = ()
    targets: ClassVar[tuple[int, ...]] = ()

    def dealt(self, task: PartitionTask) -> tuple[list[Rows], list[Rows]]:
        """Return the rows.

        Raises ConfigError if rows of the task belong together, which the program did not know.
        """
        if task.groups is not None or task.dataset.times is not None:
            raise ConfigError(
                "a published draw splits rows one by one; set partition.draw = own for rows with "
                "groups or times"
            )
        return list(self.train), list(self.test)


class Recipe(Settings):
    """Settings that every recipe has.

    Attributes:
        turn_groups: rotate the images of this many consecutive groups of clients by 0, 1, 2, 3
            quarter turns; 0: none
    """

    # whether the recipe needs classes; if False, all rows may be one class
    by_class: ClassVar[bool] = True
    by_owner: ClassVar[bool] = False  # whether rows are split within each owner
    members: ClassVar[bool] = False  # whether the recipe determines the number of clients
    remedy: ClassVar[str] = (  # remedy if a client has no training rows
        "use fewer clients, a less uneven partition, more data (data.train_limit) or another seed"
    )

    turn_groups: int = Field(0, ge=0, le=4)


TRAIN, VALIDATION, TEST = 0, 1, 2  # as in Owners.role


def open_task(
    dataset: Dataset,
    data: DataSettings,
    by_owner: bool,
    clients: int,
    seed: int,
    first_client: int = 0,
) -> PartitionTask:
    """Split the data set into training and test rows, and keep a stratified sample of each within
    the limits.

    The default is the official split. All rows are split anew if the settings say so or the source
    has no training rows; training rows are split if there are no test rows. With ``by_owner`` each
    owner's rows are split separately, and rows that the data set assigns to validation stay there;
    otherwise the whole data set is split at once. An owner's draws have its number, counted from
    ``first_client``.

    Raises:
        ConfigError: ``by_owner`` for data without owners.
        DataError: the data set itself has rows of one group on both sides.
    """
    labels, times = class_numbers(dataset), dataset.times
    block = np.zeros(len(dataset), dtype=np.int64)
    role = np.where(np.arange(len(dataset)) < dataset.n_train, TRAIN, TEST)
    if by_owner:
        if dataset.owners is None:
            raise ConfigError(
                f"{dataset.name} does not name the owners of its rows; choose another partition"
            )
        block, role = dataset.owners.client, dataset.owners.role.astype(np.int64)
    if data.split == "pooled" or not np.any(role == TRAIN):
        role = np.full(len(dataset), TRAIN)
    groups = dataset.groups and dataset.groups.within(
        dataset.owners.client if by_owner and dataset.owners else None
    )
    for b in np.setdiff1d(block, block[role == TEST]):
        free = np.flatnonzero((block == b) & (role == TRAIN))
        draw = stream(seed, "partition.split", first_client + b)
        role[hold_out(free, labels, data.test_share, draw, groups, times)] = TEST
    require_whole(dataset, groups, role, "keep each together, or set data.split = pooled")
    strata = block * (int(labels.max(initial=0)) + 1) + labels
    draws = {split: stream(seed, f"partition.limit.{split}") for split in ("train", "test")}
    return PartitionTask(
        dataset=dataset,
        clients=clients,
        seed=seed,
        labels=labels,
        train=_limited(np.flatnonzero(role != TEST), strata, data.train_limit, draws["train"]),
        test=_limited(np.flatnonzero(role == TEST), strata, data.test_limit, draws["test"]),
        validation=np.flatnonzero(role == VALIDATION),
        groups=groups,
        first_client=first_client,
    )


def require_whole(
    dataset: Dataset, groups: NDArray[np.int64] | None, role: NDArray[np.int64], remedy: str
) -> None:
    """Raise DataError if rows of one group are on both sides of a split; rows of role 3 are on
    none.
    """
    if groups is None or not len(groups):
        return
    has_rows = np.zeros((4, int(groups.max()) + 1), bool)
    has_rows[role, groups] = True
    torn = np.flatnonzero(has_rows[:3].sum(axis=0) > 1)
    if len(torn):
        assert dataset.groups
        raise DataError(
            f"{dataset.name}: {len(torn)} of {len(np.unique(groups))} groups of "
            f"{dataset.groups.column} have rows in several of training, validation and test, first "
            f"those of row {int((groups == torn[0]).argmax())}; {remedy}"
        )


def _limited(rows: Rows, strata: Labels, limit: int | None, rng: np.random.Generator) -> Rows:
    return rows if limit is None or limit >= len(rows) else rows[sample(strata[rows], limit, rng)]


def hold_out(
    rows: Rows,
    labels: Labels,
    share: float,
    rng: np.random.Generator,
    groups: NDArray[np.int64] | None,
    times: Times | None,
) -> Rows:
    """Choose rows to hold out, stratified by class; or the latest, if rows have times.

    Ties are drawn, so that the order of the rows in a file decides nothing: among rows of the time
    at which the split lies those held out are a sample, stratified by class.

    Args:
        rows: ascending row numbers to choose from.
        labels: (N,) the class of every row of the data set.
        share: share of the rows, rounded to whole rows. At least one row is left; unless the share
            is 0, at least one is chosen if there are two.
        rng: the random stream.
        groups: (N,) the group of every row of the data set. If given, whole groups are chosen: the
            share is one of groups, and a group's class is that of most of its rows, as in
            scikit-learn's GroupShuffleSplit.
        times: (N,) each row's time of measurement. If given, the latest rows are chosen, or groups
            by their latest row.

    Returns:
        The chosen rows, ascending.
    """
    units, unit = (
        (np.arange(len(rows)),) * 2
        if groups is None
        else np.unique(groups[rows], return_inverse=True)
    )
    size = min(max(round(share * len(units)), int(share > 0)), max(len(units) - 1, 0))
    later, tied = (
        (units[:0], np.arange(len(units)))
        if times is None
        else _latest(latest_of(unit, times[rows], len(units)), size)
    )
    left = size - len(later)
    if 0 < left < len(tied):
        classes = labels[rows] if groups is None else majority(unit, labels[rows], len(units), rng)
        tied = tied[sample(classes[tied], left, rng)]
    return rows[np.isin(unit, np.concatenate([later, tied[:left]]))]


def latest_of(unit: Rows, times: Times, units: int) -> Times:
    """Return (units,) the latest time of each unit's rows (n,)."""
    latest = np.full(units, -np.inf)
    np.maximum.at(latest, unit, times)
    return latest


def _latest(times: Times, size: int) -> tuple[Rows, Rows]:
    """Return the units after the time at which ``size`` latest begin, and those of that time."""
    if not size:
        return (np.empty(0, np.int64),) * 2
    threshold = np.sort(times)[len(times) - size]
    return np.flatnonzero(times > threshold), np.flatnonzero(times == threshold)


def majority(
    unit: NDArray[np.int64], labels: Labels, units: int, rng: np.random.Generator
) -> Labels:
    """Return (units,) the most frequent class of each unit's rows (n,); among several one at
    random.
    """
    counts = np.zeros((units, int(labels.max(initial=0)) + 1), np.int64)
    np.add.at(counts, (unit, labels), 1)
    modal = counts == counts.max(axis=1, keepdims=True)
    classes: Labels = counts.argmax(axis=1)
    tied = np.flatnonzero(modal.sum(axis=1) > 1)
    classes[tied] = (modal[tied] * (1 + rng.random(modal[tied].shape))).argmax(axis=1)
    return classes

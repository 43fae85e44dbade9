"""Data of a run, read and divided among its clients."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pomona.config import Config, fitted
from pomona.core.errors import ConfigError
from pomona.data.dataset import Dataset
from pomona.data.settings import DataSettings
from pomona.data.tables.tabular import moments
from pomona.models.huggingface import resolved
from pomona.models.weights import initial as initial_weights
from pomona.partition import divide, usual
from pomona.partition.divergence import noted
from pomona.partition.groups import apply_turns
from pomona.partition.natural import FromFile, Natural
from pomona.partition.partition import Partition
from pomona.partition.poison import poisoned
from pomona.partition.recipe import class_numbers
from pomona.tasks import task_of

Reader = Callable[[DataSettings], Dataset]


class Division(NamedTuple):
    """Divided data.

    Attributes:
        config: the settings, with the number of clients and the network resolved.
        dataset: as the clients use it.
        partition: the rows of each client.
        assumed: notes on how rows are divided if neither data nor settings say it.
    """

    config: Config
    dataset: Dataset
    partition: Partition
    assumed: tuple[str, ...]


def divided(
    config: Config, reader: Callable[[DataSettings], Dataset], agreed_reader: bool
) -> Division:
    """Read, validate and divide the data.

    ``agreed_reader``: whether the reader's form, including units of targets, was agreed before, so
    that nothing is learned for it.

    Raises DataError or ConfigError.
    """
    dataset, config = reader(config.data), fitted(config)
    assumed, config = _assumed(config, dataset), _completed(config, dataset, agreed_reader)
    partition = divide(dataset, config.data, config.partition, config.clients, config.seed)
    config.membership.check(config.clients, config.rounds)
    dataset, first = noted(dataset, partition), founders(config, partition)
    if dataset.learn:  # the reader did not know which rows the partition would hold out
        rows, all_rows = training_rows(partition, first), training_rows(partition)
        dataset = dataset.learn(dataset, rows, all_rows)
    dataset = apply_turns(dataset, partition)
    if config.attack:
        config.attack.check(config.clients, config.rounds, config.membership)
        train, holdout = [c.train for c in partition.clients], _holdout_rows(partition)
        dataset = poisoned(dataset, train, holdout, config.attack, config.seed)
    if share := config.method.method().share:
        if config.membership.changes:
            raise ConfigError(
                f"{config.method.name} draws its shared samples from all clients; remove membership"
            )
        partition = share(partition, class_numbers(dataset), config.seed)
    if not agreed_reader:
        dataset = _standardised(config, dataset, training_rows(partition, first))
    return Division(config, dataset, partition, assumed)


def founders(config: Config, partition: Partition) -> tuple[int, ...]:
    """Return the clients that are trained with in round 1."""
    return config.membership.members(len(partition.clients), 1)


def training_rows(partition: Partition, clients: Sequence[int] | None = None) -> NDArray[np.int64]:
    """Return (n,) the training rows of some clients, of all by default."""
    chosen = range(len(partition.clients)) if clients is None else clients
    return np.concatenate([np.empty(0, np.int64), *(partition.clients[i].train for i in chosen)])


def _standardised(config: Config, dataset: Dataset, rows: NDArray[np.int64]) -> Dataset:
    """Standardise numeric targets over the founders' training rows, so that lr has the same scale
    everywhere.

    Not with privacy, since moments are a release without noise; and not with a user's own loss,
    which may require positive numbers or integers.
    """
    task = task_of(dataset.targets, dataset.edges)
    if not task.standardised or config.privacy or config.model.loss != "auto":
        return dataset
    shift, scale = moments(dataset.y, rows)
    return replace(dataset, target_shift=shift, target_scale=scale)


def _completed(config: Config, dataset: Dataset, agreed_reader: bool) -> Config:
    """Return the settings with the partition, the clients, the network and the hash of its first
    weights resolved.
    """
    config = config.model_copy(update={"partition": config.partition or usual(dataset)})
    if "clients" not in config.model_fields_set:
        config = config.model_copy(update={"clients": _members(config, dataset)})
    network = config.model if agreed_reader else resolved(config.model)
    if weights := initial_weights(network):
        network = network.model_copy(update={"init_sha256": weights.sha256})
    return config if network is config.model else config.model_copy(update={"model": network})


def _assumed(config: Config, dataset: Dataset) -> tuple[str, ...]:
    """Return how rows are dealt to clients that neither settings nor data name, as a note."""
    if config.partition or dataset.owners or "clients" in config.model_fields_set:
        return ()
    return (
        f"the data do not name clients: their rows are dealt at random to {config.clients} "
        f"(partition = {usual(dataset).name}, clients = {config.clients}); name the clients of "
        "the rows, or set both",
    )


def _holdout_rows(partition: Partition) -> NDArray[np.int64]:
    """Return all rows that any client is validated or tested on."""
    return np.concatenate([r for c in partition.clients for r in (c.validation, c.test)])


def _members(config: Config, dataset: Dataset) -> int:
    """Return the number of clients if not set: that of the partition, else the default."""
    if isinstance(config.partition, Natural) and dataset.owners is not None:
        return len(dataset.owners.names)
    if isinstance(config.partition, FromFile):
        return len(Partition.load(config.partition.path).clients)
    return config.clients

"""Partitions: a recipe gives a table of shares, and one function deals the rows to the clients."""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator

from pomona.core.errors import ConfigError
from pomona.core.settings import Settings, require_name
from pomona.data.dataset import Dataset
from pomona.data.settings import DataSettings
from pomona.partition.groups import Groups, turn_groups
from pomona.partition.label_skew import Classes, Dirichlet, Iid, Pathological, Practical
from pomona.partition.latent import Latent
from pomona.partition.natural import FromFile, Natural
from pomona.partition.partition import ClientRows, Partition, check
from pomona.partition.recipe import GivenRows, PartitionPlan, PartitionTask, hold_out, open_task

RECIPES: dict[str, type[Settings]] = {
    recipe.model_fields["name"].default: recipe
    for recipe in (
        Iid,
        Pathological,
        Classes,
        Practical,
        Groups,
        Dirichlet,
        Latent,
        Natural,
        FromFile,
    )
}


def _chosen(value: Any) -> Any:
    """Validate a section as the recipe that its name selects."""
    if isinstance(value, Mapping):
        return RECIPES[require_name(value, RECIPES)].model_validate(value)
    return value


PartitionSettings = Annotated[
    Iid | Pathological | Classes | Practical | Groups | Dirichlet | Latent | Natural | FromFile,
    BeforeValidator(_chosen),
]

# those that affect it
DATA_KEYS = {"split", "test_share", "validation_share", "train_limit", "test_limit"}


def usual(dataset: Dataset) -> Natural | Iid:
    """Return the default recipe: rows that have owners stay with them."""
    return Iid() if dataset.owners is None else Natural()


def divide(
    dataset: Dataset,
    data: DataSettings,
    partition: PartitionSettings | None,
    clients: int,
    seed: int,
    first_client: int = 0,
) -> Partition:
    """Divide a data set among clients.

    Args:
        dataset: the data.
        data: the split, the shares for test and validation, and the limits.
        partition: the recipe; the default if None.
        clients: number of clients.
        seed: of every draw; the same seed gives the same partition.
        first_client: id of the first client among all of its federation: the one client of a silo
            has the split that it has in a simulation of all.

    Returns:
        The validated partition, with its recipe.

    Raises:
        ConfigError: the recipe does not fit the data or the number of clients.
        DataError: too few rows, or the saved partition belongs to other data.
    """
    if clients < 1:
        raise ConfigError(f"clients = {clients}; set at least 1")
    partition = partition or usual(dataset)
    if isinstance(partition, FromFile):
        return partition.read(dataset, clients)
    if partition.by_class and dataset.targets != "classes":
        fit = ", ".join(
            sorted(
                name for name, recipe in RECIPES.items() if not getattr(recipe, "by_class", False)
            )
        )
        raise ConfigError(
            f"partition {partition.name!r} needs classes, {dataset.name} has none; use one of: "
            f"{fit}"
        )
    turns = turn_groups(dataset, clients, partition.turn_groups)
    task = open_task(dataset, data, partition.by_owner, clients, seed, first_client)
    plan = partition.plan(task)
    divided = Partition(
        clients=_client_rows(plan, task, data.validation_share),
        recipe={
            "name": partition.name,
            "settings": partition.model_dump(mode="json"),
            "clients": clients,
            "seed": seed,
            "data": dataset.name,
            "fingerprint": dataset.fingerprint,
            **data.model_dump(mode="json", include=DATA_KEYS),
            **({"first_client": first_client} if first_client else {}),
        },
        groups=_combine_groups(plan.groups, turns),
        turns=turns,
        targets=plan.targets,
    )
    check(divided, dataset, f"partition {partition.name!r}", partition.remedy)
    return divided


def _client_rows(
    plan: PartitionPlan | GivenRows, task: PartitionTask, share: float
) -> tuple[ClientRows, ...]:
    train, test = plan.dealt(task)
    assigned = [np.intersect1d(rows, task.validation) for rows in train]
    validation = [
        validation_rows
        if len(validation_rows)
        else hold_out(
            rows, task.labels, share, task.stream("validation", i), task.groups, task.dataset.times
        )
        for i, (validation_rows, rows) in enumerate(
            zip(assigned, train, strict=True), task.first_client
        )
    ]
    training = [
        np.setdiff1d(rows, held_out) for rows, held_out in zip(train, validation, strict=True)
    ]
    targets = plan.targets or range(len(train))
    return tuple(ClientRows(training[i], validation[t], test[t]) for i, t in enumerate(targets))


def _combine_groups(groups: tuple[int, ...], turns: tuple[int, ...]) -> tuple[int, ...]:
    """Return each client's hidden group: from the recipe, from the turns, or a number for each pair
    of both.
    """
    if not (groups and turns):
        return groups or turns
    pairs = list(zip(groups, turns, strict=True))
    numbers = {pair: number for number, pair in enumerate(sorted(set(pairs)))}
    return tuple(numbers[pair] for pair in pairs)

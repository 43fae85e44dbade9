"""What is known of a scenario before it is run: its description for the record, and its privacy."""

from collections.abc import Callable
from functools import cache, reduce
from hashlib import sha256
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pomona.core.bounds import SPLITS
from pomona.metrics.metric import ACCURACY
from pomona.objective.dataset import as_learned, groups_of
from pomona.objective.dataset import largest_groups as largest_groups_of
from pomona.partition.divergence import label_counts
from pomona.privacy.accounting import epsilon, of_groups, projected
from pomona.scenario.division import training_rows
from pomona.scenario.scenario import Scenario
from pomona.tasks.criterion import constants, criterion
from pomona.tasks.scores import compute

CONSTANT_BATCH = 2**24  # outputs


def about(scenario: Scenario) -> dict[str, Any]:
    """Return the record's description: sizes, label counts, hidden groups, hashes."""
    dataset, partition = scenario.dataset, scenario.partition
    rows = partition.clients
    has_classes = scenario.targets == "classes"
    shared = reduce(np.intersect1d, [c.train for c in rows]) if len(rows) > 1 else ()
    return {
        "clients": scenario.names,
        "classes": list(dataset.classes),
        "labels": list(dataset.labels),
        "sizes": {split: [len(getattr(c, split)) for c in rows] for split in SPLITS},
        "label_counts": label_counts(partition, dataset).tolist() if has_classes else None,
        "groups": list(partition.groups),
        "target_groups": list(partition.target_groups),
        "data": {"name": dataset.name, "fingerprint": partition.recipe["fingerprint"]},
        "partition_sha256": partition.sha256,
        "test_rows": [sha256(c.test.astype("<i8").tobytes()).hexdigest()[:16] for c in rows],
        "targets": scenario.targets,
        "edges": list(dataset.edges),
        "metric": scenario.choice.metric.name,
        "constant": constant_scores(scenario),
        "subgroups": _subgroups(scenario),
        "input_shape": list(scenario.input_shape),
        "preprocessing": [entry.model_dump(mode="json") for entry in dataset.preprocessing],
        "shared_samples": len(shared),
    }


def constant_scores(scenario: Scenario) -> dict[str, Any]:
    """Return metric, accuracy and loss of constant predictions."""
    dataset, task, y = scenario.dataset, scenario.task, scenario.dataset.y
    loss = criterion(scenario.config.model, task)
    names = {scenario.choice.metric.name, *({ACCURACY.name} & {*task.measures}), "loss"}
    train, test = (
        [y[getattr(c, split)] for c in scenario.partition.clients] for split in ("train", "test")
    )
    shape = scenario.network.output_shape

    def judge(name: str, outputs: NDArray[np.float32], targets: NDArray[Any]) -> float | None:
        if name == "loss":
            outputs = task.learned(outputs, dataset) if task.standardised else outputs
            targets = task.learned(targets, dataset)
        answers = torch.from_numpy(outputs).reshape(len(outputs), -1, *[1] * (len(shape) - 1))
        pair = answers.expand(len(outputs), *shape), torch.from_numpy(np.asarray(targets))
        batch_size = max(1, CONSTANT_BATCH // prod(shape))

        def batches(function: Callable[[Tensor, Tensor], Any]) -> list[Any]:
            parts = (values.split(batch_size) for values in pair)
            return [function(*batch) for batch in zip(*parts, strict=True)]

        if name == "loss":
            losses = torch.cat(batches(lambda o, t: loss(o, as_learned(t))))
            return float(losses.double().mean())
        reduced, truth = (torch.cat(v) for v in zip(*batches(task.reduce), strict=True))
        return compute(name, reduced, truth, task)

    rows = training_rows(scenario.partition, scenario.founders)
    return constants(sorted(names), task, dataset.n_outputs, y[rows], train, test, judge)


def groups_of_test_rows(scenario: Scenario) -> dict[int, NDArray[np.int64]]:
    """Return (n,) int64 the group of each client's test samples; empty without groups."""
    groups = groups_of(scenario.dataset)
    if groups is None:
        return {}
    return {
        i: np.unique(groups[c.test], return_inverse=True)[1]
        for i, c in enumerate(scenario.partition.clients)
    }


def _subgroups(scenario: Scenario) -> dict[str, Any] | None:
    """Return the subgroup of each client's test samples."""
    if scenario.dataset.subgroups is None:
        return None
    column, names, number = scenario.dataset.subgroups
    test = [number[c.test].tolist() for c in scenario.partition.clients]
    return {"column": column, "names": list(names), "test": test}


def unprotected_groups(scenario: Scenario) -> bool:
    """Return whether epsilon is of a row, and some client has several training rows of a group."""
    privacy = scenario.config.privacy
    return privacy is not None and privacy.unit == "row" and max(largest_groups(scenario)) > 1


def largest_groups(scenario: Scenario) -> list[int]:
    """Return the most training samples that one group has, for each client."""
    return largest_groups_of(groups_of(scenario.dataset), scenario.partition)


def epsilons(scenario: Scenario, own_noise_only: bool = False, groups: bool = False) -> list[float]:
    """Return upper bounds of each client's epsilon for the whole run.

    Args:
        scenario: with privacy.
        own_noise_only: by its own noise alone.
        groups: for all training samples of any one of its groups.

    Raises:
        ConfigError: the accountants are not installed.
    """
    c = scenario.config
    assert c.privacy
    settings = c.privacy.alone if own_noise_only else c.privacy
    gradients, unseen = c.method.method().card.privacy.gradients, c.membership.unseen
    clients = scenario.partition.clients
    rows = largest_groups(scenario) if groups else [1] * len(clients)

    @cache
    def cost(n: int, rounds: int, rows: int) -> float:
        history = projected(settings, n, c.batch_size, gradients, c.passes, rounds)
        return epsilon(settings, of_groups(history, rows))

    return [
        cost(len(client.train), c.adapt_rounds if i in unseen else c.rounds, rows[i])
        for i, client in enumerate(clients)
    ]

"""The first message of a client with one record, or with eight, and what its receiver can rebuild
of them.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pomona.audit import inversion
from pomona.audit.shadows import scenario_with
from pomona.audit.views import Recorder, Records
from pomona.config import Config
from pomona.core.rng import number, stream
from pomona.models.parameter_space import ParameterSpace
from pomona.partition.partition import Partition
from pomona.scenario import Scenario
from pomona.simulation import simulate
from pomona.tasks.criterion import criterion

BATCHES = (1, 8)
MAX_CLIENTS = 4  # clients whose single records are rebuilt
MAX_SIZE = 2**20  # parameters and inputs of networks whose gradients are searched


@dataclass(frozen=True)
class Reconstruction:
    """Records rebuilt from one client's first message.

    Attributes:
        client: its number.
        closed: whether in closed form, else by a search.
        truth, estimate: (b, ...) as network inputs, in the same order.
        match: how alike they are.
    """

    client: int
    closed: bool
    truth: Tensor
    estimate: Tensor
    match: inversion.Match


def unfit(scenario: Scenario) -> str | None:
    """Return why a scenario's inputs cannot be rebuilt, None if that can be tried."""
    if scenario.dataset.kind == "text":
        return "samples are texts, and words cannot be searched by gradient"
    if scenario.network.keeps_features or scenario.config.model.patch:
        return "the trained part does not see whole samples"
    if max(len(scenario.initial()), int(np.prod(scenario.input_shape))) > MAX_SIZE:
        return "the network or its input is too large for a search of minutes"
    return None


def reconstruct(
    config: Config, partition: Partition, folder: Path, batch: int
) -> list[Reconstruction]:
    """Run one round in which every client has ``batch`` records in one batch, and rebuild them.

    The attacker knows the network, the settings, the model that was sent, and the records' labels.
    Empty for messages without models.
    """
    original = scenario_with(config, partition, folder)  # whose normalisation stays
    few = tuple(
        replace(c, train=_chosen(c.train, batch, config.seed, i))
        for i, c in enumerate(partition.clients)
    )
    scenario = replace(
        original, config=_single(original.config, batch), partition=replace(partition, clients=few)
    )
    recorder = Recorder(
        scenario.with_settings(engine="torch"), Records.build(scenario), frozenset()
    )
    simulate(scenario, None, recorder)
    limit = MAX_CLIENTS if batch == 1 else 1
    rows = np.unique(np.concatenate([c.train for c in partition.clients]))
    all_inputs = scenario.resident.gather(torch.from_numpy(rows))[0].float()
    return [
        _reconstruct_client(scenario, i, *recorder.changes[i], all_inputs)
        for i in sorted(recorder.changes)[:limit]
    ]


def _single(config: Config, batch: int) -> Config:
    changed: dict[str, Any] = {
        "rounds": 1,
        "batch_size": batch,
        "participation": 1.0,
        "absence": 0.0,
    }
    if config.privacy:  # one round costs what it costs
        acknowledged = (*config.privacy.acknowledge, "unlimited-epsilon")
        free = {"epsilon_budget": None, "acknowledge": acknowledged}
        changed["privacy"] = config.privacy.model_copy(update=free)
    return config.model_copy(update=changed)


def _chosen(rows: NDArray[np.int64], batch: int, seed: int, client: int) -> NDArray[np.int64]:
    draw = stream(seed, "audit inversion", batch, client)
    return np.sort(draw.choice(rows, min(batch, len(rows)), replace=False))


def _reconstruct_client(
    scenario: Scenario, client: int, change: Tensor, positions: Tensor, all_inputs: Tensor
) -> Reconstruction:
    """Rebuild one client's records from the change (k,) of its model at these positions."""
    rows = torch.from_numpy(scenario.partition.clients[client].train)
    truth, targets = scenario.resident.gather(rows)
    module = scenario.module()
    space = ParameterSpace(module)
    first = inversion.first_linear(module, space, truth[0].numel())
    row = torch.full((space.trained,), torch.nan).index_copy(0, positions, change)
    weight, bias = (row[entries] for entries in first or (slice(0), slice(0)))
    if closed := bool(len(rows) == 1 and first and torch.cat([weight, bias]).isfinite().all()):
        estimate = inversion.closed_form(weight.view(len(bias), -1), bias).view(truth.shape)
    else:
        loss = criterion(scenario.config.model, scenario.task)
        start = scenario.initial()
        gradient = inversion.gradient_of(module, space, start, loss, targets, positions)
        limits = all_inputs.amin(0), all_inputs.amax(0)
        draw = torch.Generator().manual_seed(number(scenario.config.seed, "audit start", client))
        estimate = inversion.by_cosine(
            gradient, -inversion.ordered(space, change, positions), truth.shape, limits, draw
        )
    match = inversion.matched(estimate, truth, all_inputs)
    return Reconstruction(client, closed, truth, estimate[torch.from_numpy(match.order)], match)

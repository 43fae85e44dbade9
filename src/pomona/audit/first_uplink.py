"""The first message of a client with one record, or with eight, and what its receiver can rebuild
of them: gradient inversion, inputs from the change of a model that few records made.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.func import functional_call

from pomona.audit.shadows import scenario_with
from pomona.audit.views import Recorder, Records
from pomona.config import Config
from pomona.core.rng import number, stream
from pomona.models.layers import layers
from pomona.models.parameter_space import ParameterSpace
from pomona.partition.partition import Partition
from pomona.scenario import Scenario
from pomona.simulation import simulate
from pomona.tasks.criterion import criterion

STEPS, RATE, RESTARTS = 400, 0.1, 2
SMOOTH = 1e-3  # weight of the total variation of images
TINY = 1e-12


def first_linear(
    module: nn.Module, space: ParameterSpace, width: int
) -> tuple[slice, slice] | None:
    """Return the positions of weight (o, width) and bias (o,) in a row, of a network that starts
    with a linear layer on the whole input; None for others.
    """
    first = space.linear(module, layers(module)[0][0])
    return (first.weight, first.bias) if first and first.features == width else None


def closed_form(weight: Tensor, bias: Tensor) -> Tensor:
    """Return the input (i,) of a linear layer from its change by one record, weight (o, i) and bias
    (o,).

    Row k of the weight's gradient is the input times entry k of the bias' (Phong et al., IEEE TIFS
    2018, section 3); several steps on the record keep that. It is exact but for rounding.
    """
    k = int(bias.abs().argmax())
    scale = bias[k] if abs(float(bias[k])) > TINY else bias.new_tensor(TINY)
    return weight[k] / scale


def by_cosine(
    gradient: Callable[[Tensor], Tensor],
    target: Tensor,
    shape: Sequence[int],
    limits: tuple[Tensor, Tensor],
    generator: torch.Generator,
    steps: int = STEPS,
) -> Tensor:
    """Return inputs (b, ...) whose gradient points in the direction of the target (k,).

    Minimises 1 - cos(gradient(x), target), and the total variation of images, by signed Adam from
    random starts; the best is returned (Geiping et al., "Inverting gradients", NeurIPS 2020,
    equation 4). ``limits`` bound each input from below and above.
    """
    best, lowest = torch.empty(0), float("inf")
    for _ in range(RESTARTS):
        x = torch.randn(tuple(shape), generator=generator).clamp(*limits).requires_grad_()
        optimizer = torch.optim.Adam([x], lr=RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(steps):
            cost = _distance(gradient(x), target) + SMOOTH * total_variation(x)
            (slope,) = torch.autograd.grad(cost, [x])
            x.grad = slope.sign()
            optimizer.step()
            schedule.step()
            x.data.clamp_(*limits)
        if (reached := float(_distance(gradient(x), target).detach())) < lowest:
            best, lowest = x.detach(), reached
    return best


def _distance(a: Tensor, b: Tensor) -> Tensor:
    return 1 - torch.nn.functional.cosine_similarity(a, b, dim=0)


def total_variation(x: Tensor) -> Tensor:
    """Return the mean absolute difference of neighbouring pixels of images (b, C, *S); 0 for tables
    (b, F).
    """
    axes = range(2, x.dim())
    return sum((x.diff(dim=axis).abs().mean() for axis in axes), start=x.new_zeros(()))


def gradient_of(
    module: nn.Module,
    space: ParameterSpace,
    row: Tensor,
    criterion: Callable[[Tensor, Tensor], Tensor],
    targets: Tensor,
    positions: Tensor,
) -> Callable[[Tensor], Tensor]:
    """Return the function from inputs (b, ...) to the loss gradient's entries (k,) at ``positions``
    of a row (d,), which can be differentiated again.
    """
    visible = torch.zeros(space.trained, dtype=torch.bool)
    visible[positions] = True
    tensors = {
        e.name: (e.view(row).detach().clone().requires_grad_(), e.view(visible))
        for e in space.parameters
    }
    used = {name: pair for name, pair in tensors.items() if bool(pair[1].any())}

    def gradient(x: Tensor) -> Tensor:
        leaves = {name: leaf for name, (leaf, _) in tensors.items()}
        loss = criterion(functional_call(module, leaves, (x,)).float(), targets).mean()
        slopes = torch.autograd.grad(
            loss,
            [leaf for leaf, _ in used.values()],
            create_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        return torch.cat([g[mask] for g, (_, mask) in zip(slopes, used.values(), strict=True)])

    return gradient


def ordered(space: ParameterSpace, entries: Tensor, positions: Tensor) -> Tensor:
    """Return entries (k,) of a row at these positions in the order of ``gradient_of``, which is
    that of the module's tensors.
    """
    visible, row = torch.zeros(space.trained, dtype=torch.bool), entries.new_zeros(space.trained)
    visible[positions], row[positions] = True, entries
    return torch.cat([e.view(row)[e.view(visible)] for e in space.parameters])


@dataclass(frozen=True)
class Match:
    """Reconstructions and their originals.

    Attributes:
        order: (b,) the reconstruction of each original.
        likeness: (b,) correlation of each with its original.
        recognised: (b,) whether no other record of all is nearer to it.
    """

    order: NDArray[np.int64]
    likeness: NDArray[np.float64]
    recognised: NDArray[np.bool_]


def matched(estimates: Tensor, truth: Tensor, all_inputs: Tensor) -> Match:
    """Assign reconstructions (b, ...) to originals (b, ...), and search each among all records (R,
    ...), the originals among them.
    """
    rebuilt, originals, records = (t.flatten(1).double() for t in (estimates, truth, all_inputs))
    distances = torch.cdist(originals, rebuilt)
    _, order = linear_sum_assignment(distances.numpy())
    rebuilt = rebuilt[torch.from_numpy(order)]
    nearest = torch.stack([(records - x).norm(dim=1).min() for x in rebuilt])
    recognised = (rebuilt - originals).norm(dim=1) <= nearest
    x, y = (t - t.mean(1, keepdim=True) for t in (rebuilt, originals))
    likeness = torch.nn.functional.cosine_similarity(x, y, dim=1)
    return Match(order, likeness.numpy(), recognised.numpy())


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
    match: Match


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
    first = first_linear(module, space, truth[0].numel())
    row = torch.full((space.trained,), torch.nan).index_copy(0, positions, change)
    weight, bias = (row[entries] for entries in first or (slice(0), slice(0)))
    if closed := bool(len(rows) == 1 and first and torch.cat([weight, bias]).isfinite().all()):
        estimate = closed_form(weight.view(len(bias), -1), bias).view(truth.shape)
    else:
        loss = criterion(scenario.config.model, scenario.task)
        start = scenario.initial()
        gradient = gradient_of(module, space, start, loss, targets, positions)
        limits = all_inputs.amin(0), all_inputs.amax(0)
        draw = torch.Generator().manual_seed(number(scenario.config.seed, "audit start", client))
        estimate = by_cosine(
            gradient, -ordered(space, change, positions), truth.shape, limits, draw
        )
    match = matched(estimate, truth, all_inputs)
    return Reconstruction(client, closed, truth, estimate[torch.from_numpy(match.order)], match)

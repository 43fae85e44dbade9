"""Problems with known answers: quadratics for each client, or points of classes under a linear
network; and a federation of them that runs round by round.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.functional import hvp
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from pomona.core.bounds import Stage
from pomona.core.round import Ids, Roster, Round
from pomona.core.state import flatten
from pomona.core.training_settings import Optimizer
from pomona.federation import client_queries
from pomona.federation.client import ClientRuntime
from pomona.federation.exchange import ClientRequest, Reply, stack
from pomona.federation.scoring import Model
from pomona.methods.base import Downlink, Initial, Method, MethodSettings
from pomona.models.around_last_layer import Valved
from pomona.models.layers import layers
from pomona.models.parameter_space import ParameterSlice, ParameterSpace
from pomona.objective.dataset import BatchFunction, DeviceDataset
from pomona.objective.objective import Objective, RowCriterion

OBSERVED = frozenset({"received", "trained"})
"""Moments at which models are evaluated."""


class Problem(Objective):
    """Samples whose losses are given by a formula.

    Attributes:
        rows: each client's samples, which are all of its splits.
        size: d, the length of a row.
    """

    rows: list[list[int]]
    size: int
    least_batch: int = 1

    @property
    def splits(self) -> dict[str, list[Tensor]]:
        """The rows of each split."""
        rows = [torch.tensor(r) for r in self.rows]
        return {"train": rows, "validation": rows, "test": rows}

    def batchwise(
        self, row: Tensor, client: int, split: str, function: BatchFunction
    ) -> tuple[Tensor, ...]:
        """Apply a function to outputs and targets; () for no samples."""
        outputs, truth = self.outputs(row, client, split)
        return function(outputs, truth) if len(truth) else ()

    def tensors(self, row: Tensor, client: int) -> dict[str, Tensor]:  # noqa: ARG002
        """Return the row as the tensor "w"."""
        return {"w": row}


@dataclass
class Quadratics(Problem):
    """Sample k of the federation has the loss ||w - a_k||^2 / 2, so F_i(w) is minimal at the mean
    of i's samples.

    ``targets`` (N, d) float64 has the a_k; ``rows`` lists each client's samples. The lower layer's
    numbers are named as a change of rank 2 next to a bias, for methods that look for LoRA by name.
    """

    targets: Tensor
    rows: list[list[int]]
    data: DeviceDataset = field(init=False)
    norms: tuple[slice, ...] = ()
    layers: tuple[slice, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.size = d = self.targets.shape[1]
        # the last number is "the head"
        self.layers = (slice(0, d - 1), slice(d - 1, d)) if d > 1 else (slice(0, d),)
        self.parameters = lora_slices(self.layers)
        self.data = DeviceDataset(self.targets, self.targets, None, None, self.splits, "regression")

    def gradient(
        self,
        W: Tensor,
        indices: list[Tensor],
        criterion: object = None,  # noqa: ARG002
        above: int = 0,  # noqa: ARG002
        views: object = None,  # noqa: ARG002
        cache: object = None,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Return losses (n,) and gradients (n, d) at rows W; criteria of the method are not
        supported.
        """
        samples = [self.targets[i] for i in indices]
        pairs = [*zip(W, samples, strict=True)]
        losses = torch.stack([((w - a) ** 2).sum(1).mean() / 2 for w, a in pairs])
        return losses, torch.stack([w - a.mean(0) for w, a in pairs])

    def hessian(self, W: Tensor, indices: list[Tensor], Z: Tensor, views: object = None) -> Tensor:  # noqa: ARG002
        """Return Z (n, d), since the Hessian is the identity."""
        return Z

    def outputs(self, row: Tensor, client: int, split: str) -> tuple[Tensor, Tensor]:
        """Return the row (d,) as the output for every sample, and the samples (b, d)."""
        truth = self.targets[self.data.rows[split][client]]
        return row.expand_as(truth), truth

    def features(self, row: Tensor, client: int, split: str) -> Tensor:
        """Return ``outputs``, since there is no layer below."""
        return self.outputs(row, client, split)[0]

    def criterion(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return half the squared distances (b,)."""
        return ((outputs - targets) ** 2).sum(1) / 2


def lora_slices(layers: tuple[slice, ...]) -> tuple[ParameterSlice, ...]:
    """Return the positions of A (2, k), B (k, 2) and a bias in the lower layer, and of the upper
    one; k is 0 in a layer of less than four numbers.
    """
    lower = layers[-1].start
    k = lower // 4
    shapes = {
        "lower.lora_A.weight": (2, k),
        "lower.lora_B.weight": (k, 2),
        "lower.bias": (lower - 4 * k,),
        "upper.weight": (layers[-1].stop - lower,),
    }
    offsets = [*accumulate(map(prod, shapes.values()), initial=0)]
    tensors = zip(shapes.items(), pairwise(offsets), strict=True)
    return tuple(
        ParameterSlice(*tensor, *offsets) for tensor, offsets in tensors if offsets[0] < offsets[1]
    )


def quadratics(clients: int, samples: int = 2, d: int = 5, seed: int = 0) -> Quadratics:
    """Return random quadratics with ``samples`` per client."""
    a = _normal(clients * samples, d, seed=seed)
    return Quadratics(a, [list(range(i * samples, (i + 1) * samples)) for i in range(clients)])


def _normal(*shape: int, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw, dtype=torch.float64)


CLASSES, FEATURES, INPUTS = 3, 4, 3
"""Of the points: classes, features of the network, numbers of an input."""


def linear_network() -> nn.Module:
    """Return a network without activations: features z = A x + a, outputs U z + u."""
    return nn.Sequential(nn.Linear(INPUTS, FEATURES), nn.Linear(FEATURES, CLASSES))


@dataclass
class Points(Problem):
    """Points of classes under a network, and cross-entropy.

    A row has the network's parameters: of the linear one A, a, U and u, of which the last two are
    the head. ``inputs`` (N, 3) float64; ``y`` (N,) int64; ``rows`` lists each client's samples.
    """

    inputs: Tensor
    y: Tensor
    rows: list[list[int]]
    network: nn.Module = field(default_factory=linear_network)
    data: DeviceDataset = field(init=False)
    norms: tuple[slice, ...] = ()

    def __post_init__(self) -> None:
        space = ParameterSpace(self.network)
        self.size, self.layers, self.head = space.size, space.layers, space.head
        self.parameters = space.parameters
        self.data = DeviceDataset(self.inputs, self.y, None, None, self.splits, "classes")

    def gradient(
        self,
        W: Tensor,
        indices: list[Tensor],
        criterion: Any = None,
        above: int = 0,  # noqa: ARG002
        views: object = None,  # noqa: ARG002
        cache: object = None,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Return mean losses (n,) and gradients (n, d) at rows W, under the method's criterion if
        given.
        """
        results = [
            self._differentiated(row, index, criterion[k] if isinstance(criterion, list) else None)
            for k, (row, index) in enumerate(zip(W, indices, strict=True))
        ]
        losses, G = zip(*results, strict=True)
        return torch.stack(losses), torch.stack(G)

    def hessian(
        self,
        W: Tensor,
        indices: list[Tensor],
        Z: Tensor,
        views: object = None,  # noqa: ARG002
    ) -> Tensor:
        """Return the products (n, d) of the mean losses' Hessians at rows W with Z (n, d)."""

        def loss(row: Tensor, index: Tensor) -> Tensor:
            return self.criterion(self._forward(row, index)[0], self.y[index]).mean()

        products = [
            hvp(partial(loss, index=index), row, z)[1]
            for row, index, z in zip(W, indices, Z, strict=True)
        ]
        return torch.stack(products)

    def outputs(self, row: Tensor, client: int, split: str) -> tuple[Tensor, Tensor]:
        """Return outputs (b, 3) and classes (b,)."""
        index = self.data.rows[split][client]
        return self._forward(row, index)[0], self.y[index]

    def features(self, row: Tensor, client: int, split: str) -> Tensor:
        """Return the inputs (b, f) of the last layer."""
        return self._forward(row, self.data.rows[split][client])[1]

    def criterion(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return cross-entropies (b,)."""
        return cross_entropy(outputs, targets, reduction="none")

    def _forward(self, row: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        features: list[Tensor] = []
        last = self.network.get_submodule(layers(self.network)[-1][0])
        tensors = {e.name: e.view(row) for e in self.parameters}
        with last.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0])):
            outputs = functional_call(self.network, tensors, (self.inputs[index],))
        return outputs, features[0]

    def _differentiated(
        self, row: Tensor, index: Tensor, criterion: RowCriterion | None
    ) -> tuple[Tensor, Tensor]:
        leaf = row.detach().clone().requires_grad_()
        outputs, z = self._forward(leaf, index)
        y = self.y[index]
        loss = criterion(outputs, y, z) if criterion else self.criterion(outputs, y).mean()
        (g,) = torch.autograd.grad(loss, leaf)
        return loss.detach(), g


def class_points(*sizes: int, seed: int = 0, valve: bool = False) -> Points:
    """Return clients with these numbers of points around a corner for each class, of which all have
    the same; ``valve``: under the linear network with a conditional valve.
    """
    offsets = np.cumsum((0, *sizes)).tolist()
    rows = [list(range(start, stop)) for start, stop in pairwise(offsets)]
    y = torch.tensor([k % CLASSES for size in sizes for k in range(size)])
    noise = torch.cat([_normal(size, INPUTS, seed=100 * seed + i) for i, size in enumerate(sizes)])
    inputs = 2 * torch.eye(CLASSES, INPUTS, dtype=torch.float64)[y] + noise / 4
    network = linear_network()
    return Points(inputs, y, rows, Valved(network, "linear") if valve else network)


def suited(settings: MethodSettings, problem: Quadratics) -> Problem:
    """Return a problem that the method is for: the quadratics, or points with clients of the same
    sizes if its card names tasks.
    """
    card = settings.method().card
    if card.tasks:
        return class_points(*map(len, problem.rows), valve="valve" in card.needs.model)
    return problem


def a_round(number: int = 1, **overrides: Any) -> Round:
    """Return a round of one full-batch gradient step; ``overrides``: other fields of Round, ``lr``
    as decayed.
    """
    settings: dict[str, Any] = {"total": 10, "lr": 0.1, "decay": 1.0, "epochs": 1, "seed": 0}
    settings |= {"batch_size": 10**6, "momentum": 0.0, "weight_decay": 0.0}
    settings |= {"optimizer": Optimizer(), **overrides}
    return Round(number=number, **{"base_lr": settings["lr"] / settings["decay"], **settings})


class Federation:
    """A method on a problem, run round by round, with access to its halves' states: ``server`` is
    the server's, ``state(i)`` client i's.
    """

    def __init__(
        self,
        method: Method,
        problem: Problem,
        seed: int = 0,
        members: tuple[int, ...] | None = None,
    ) -> None:
        self.method, self.problem = method, problem
        d, n = problem.size, len(problem.rows)
        self.initial = Initial(
            lambda client: _normal(d, seed=99 if client is None else 100 + client),
            problem.layers,
            problem.norms,
            head=problem.head,
            parameters=problem.parameters,
        )
        self.everybody = Roster(tuple(len(r) for r in problem.rows))
        self.roster = self.everybody.only(tuple(range(n)) if members is None else members)
        self.ids = self.roster.members
        self.clients = ClientRuntime(
            method.client, problem, self.initial, tuple((i,) for i in range(n)), seed
        )
        self.server = method.server.start(self.initial, self.roster, seed)
        self.clients.add_clients(self.ids, self.roster, None)
        self.replies: list[Reply] = []

    def only(self, *ids: int) -> None:
        """Set the members; new ones are welcomed first."""
        roster = self.everybody.only(ids)
        new = tuple(i for i in roster.members if i not in self.roster.members)
        if new:
            self.server, row = self.method.server.add_clients(self.server, new, self.roster)
            self.clients.add_clients(new, roster, row)
        self.roster, self.ids = roster, roster.members

    def downlink(self, round_: Round, ids: Ids | None = None) -> Downlink:
        """Return what the server sends to the clients ``ids``, to all members if None."""
        ids = self.ids if ids is None else ids
        return self.method.server.downlink(self.server, ids, self.roster, round_)

    def round(self, round_: Round, ids: Ids | None = None) -> None:
        """Train and aggregate one round of the clients ``ids``, of all members if None."""
        ids = self.ids if ids is None else ids
        visit = ClientRequest(round_, self.roster, ids, True, OBSERVED, True)
        self.replies = self.clients.visit(visit, self.downlink(round_, ids))
        uplink = stack(self.replies, lambda r: r.uplink)
        self.server = self.method.server.aggregate(self.server, uplink, ids, self.roster, round_)
        self.clients.commit(ids)

    def model(self, client: int, model: str, stage: Stage) -> Tensor:
        """Return the parameters (d,) of a model that was observed in the last round."""
        return self.models(client)[model, stage]["w"]

    def models(self, client: int) -> dict[Model, dict[str, Tensor]]:
        """Return the client's models, by (model, when): rows (d,) named "w"."""
        return client_queries.models(self.clients, client)

    def state(self, client: int) -> object:
        """Return the client half's state."""
        return self.clients.store.state(client)

    def set_state(self, client: int, state: object) -> None:
        """Replace a client's state."""
        self.clients.store._states[client] = state


def passes(settings: MethodSettings, number: int = 1, **overrides: Any) -> Round:
    """Return a round of three shuffled passes in batches of one, with momentum if the method allows
    it.
    """
    momentum = 0.0 if settings.method().card.needs.steps == "plain" else 0.9
    return a_round(
        number, **{"epochs": 3, "batch_size": 1, "momentum": momentum, "lr": 0.02, **overrides}
    )


def trained(
    settings: MethodSettings, problem: Problem, rounds: int, **overrides: Any
) -> Federation:
    """Return a federation after some rounds of training on a problem, which is ``suited`` if it is
    quadratics; ``overrides``: other fields of Round.
    """
    problem = suited(settings, problem) if isinstance(problem, Quadratics) else problem
    run = Federation(settings.method(), problem)
    for number in range(1, rounds + 1):
        run.round(passes(settings, number, **overrides))
    return run


def states(run: Federation) -> dict[str, Tensor]:
    """Return every tensor of the clients and the server, by name."""
    tensors = flatten(run.server, "server")
    for i in run.ids:
        tensors |= flatten(run.state(i), str(i))
        tensors |= {
            f"{i}.copies.{name}": rows
            for name, rows in run.clients.store.copies.models_of(i).items()
        }
    return {k: v.clone() for k, v in tensors.items()}


def equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Return whether two sets of named tensors are equal to the bit."""
    return not differing(a, b)


def differing(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> list[str]:
    """Return the names under which two sets of tensors differ, or of which one set has none."""
    return sorted(
        k for k in a.keys() | b.keys() if k not in a or k not in b or not torch.equal(a[k], b[k])
    )


def uneven(*sizes: int, d: int = 5) -> Quadratics:
    """Return quadratics of clients with these numbers of samples."""
    stops = np.cumsum(sizes)
    rows = [list(range(e - s, e)) for e, s in zip(stops, sizes, strict=True)]
    return Quadratics(_normal(sum(sizes), d, seed=4), rows)

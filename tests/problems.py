"""Problems with known answers: per-client quadratics, and a small scenario that needs no files."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from pomona.config import Config, resolve
from pomona.core.round import Roster, Round
from pomona.federation.client_runtime import ClientRuntime
from pomona.federation.exchange import ClientRequest, stack
from pomona.methods.base import Initial, Method
from pomona.objective.device_dataset import DeviceDataset


@dataclass
class Quadratics:
    """Sample k of the federation has the loss ||w - a_k||^2 / 2, so F_i(w) has its minimum at the mean of its samples.

    ``targets`` (N, d) float64 holds the a_k; ``rows`` lists each client's samples.
    """

    targets: Tensor
    rows: list[list[int]]
    data: DeviceDataset = field(init=False)
    least_batch: int = 1
    layers: tuple[slice, ...] = field(init=False)

    def __post_init__(self) -> None:
        own = [torch.tensor(r) for r in self.rows]
        splits = {"train": own, "validation": own, "test": own}
        d = self.targets.shape[1]
        self.layers = (slice(0, d - 1), slice(d - 1, d)) if d > 1 else (slice(0, d),)  # the last number is "the head"
        self.data = DeviceDataset(self.targets, self.targets, None, None, splits, "regression")

    def gradient(
        self, W: Tensor, indices: list[Tensor], criterion: object = None, above: int = 0
    ) -> tuple[Tensor, Tensor]:
        losses = torch.stack([((w - self.targets[i]) ** 2).sum(1).mean() / 2 for w, i in zip(W, indices, strict=True)])
        return losses, torch.stack([w - self.targets[i].mean(0) for w, i in zip(W, indices, strict=True)])

    def hessian(self, W: Tensor, indices: list[Tensor], Z: Tensor) -> Tensor:
        return Z  # the identity's

    def outputs(self, row: Tensor, client: int, split: str) -> tuple[Tensor, Tensor]:
        truth = self.targets[self.data.rows[split][client]]
        return row.expand_as(truth), truth

    def tensors(self, row: Tensor, client: int) -> dict[str, Tensor]:
        return {"w": row}

    def losses(self, row: Tensor, client: int, split: str) -> Tensor:
        return self.criterion(*self.outputs(row, client, split))

    def criterion(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs - targets) ** 2).sum(1) / 2


def quadratics(clients: int, samples: int = 2, d: int = 5, seed: int = 0) -> Quadratics:
    """Random quadratics: every client has ``samples`` of its own."""
    a = torch.randn(clients * samples, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Quadratics(a, [list(range(i * samples, (i + 1) * samples)) for i in range(clients)])


def a_round(number: int = 1, **over: float) -> Round:
    """A round of full-batch gradient descent, one step."""
    settings = {"total": 10, "lr": 0.1, "decay": 1.0, "epochs": 1, "batch_size": 10**6, "momentum": 0.0}
    return Round(number=number, **{**settings, "weight_decay": 0.0, "seed": 0, **over})  # type: ignore[arg-type]


class Federation:
    """A method on a problem, a round at a time, with its halves' states in reach."""

    def __init__(
        self, method: Method, problem: Quadratics, seed: int = 0, members: tuple[int, ...] | None = None
    ) -> None:
        self.method, self.problem = method, problem
        d, n = problem.targets.shape[1], len(problem.rows)
        generator = torch.Generator().manual_seed(99)
        common = torch.randn(d, generator=generator, dtype=torch.float64)
        own = torch.randn(n, d, generator=generator, dtype=torch.float64)
        self.initial = Initial(lambda client: (common if client is None else own[client]).clone(), problem.layers)
        self.everybody = Roster(tuple(len(r) for r in problem.rows))
        self.roster = self.everybody.only(tuple(range(n)) if members is None else members)
        self.ids = self.roster.members
        self.clients = ClientRuntime(method.client, problem, self.initial, tuple((i,) for i in range(n)), seed)
        self.server = method.server.start(self.initial, self.roster, seed)
        self.clients.begin(self.ids, self.roster, None)
        self.replies = []

    def only(self, *ids: int) -> None:
        """From now on these are the members; whoever is new is let in first."""
        now = self.everybody.only(ids)
        new = tuple(i for i in now.members if i not in self.roster.members)
        if new:
            self.server, row = self.method.server.welcome(self.server, new, self.roster)
            self.clients.begin(new, now, row)
        self.roster, self.ids = now, now.members

    def round(self, round_: Round, ids: tuple[int, ...] | None = None) -> None:
        ids = self.ids if ids is None else ids
        down = self.method.server.down(self.server, ids, self.roster, round_)
        visit = ClientRequest(round_, self.roster, ids, True, frozenset({"received", "trained"}), True)
        self.replies = self.clients.visit(visit, down)
        uplink = stack(self.replies, lambda r: r.uplink)
        self.server = self.method.server.aggregate(self.server, uplink, ids, self.roster, round_)
        self.clients.commit(ids)

    def model(self, client: int, model: str, when: str) -> Tensor:
        return self.clients.models(client)[model, when]["w"]

    def state(self, client: int) -> object:
        return self.clients.state(client)

    def set_state(self, client: int, state: object) -> None:
        self.clients._states[client] = state


def tiny(name: str, settings: dict | None = None, **over: object) -> Config:
    """A few rounds of a method on digits, small enough for any test."""
    base = {
        "method": {"name": name, **(settings or {})},
        "data": {"name": "digits", "train_limit": 240, "test_limit": 120},
        "partition": {"name": "dirichlet", "beta": 1.0, "min_size": 8},
        "model": {"name": "mlp", "hidden": [8]},
        "clients": 4,
        "rounds": 3,
        "batch_size": 16,
        "lr": 0.1,
        "workers": 1,
    }
    return resolve(base, over)

"""A small scenario for methods reimplemented in plain PyTorch: modules, optimizers, loops over
batches, no rows.
"""

from collections.abc import Iterator
from copy import deepcopy

import torch
from torch import Tensor, nn

import pomona
from pomona.config import Config
from pomona.core.rng import stream
from pomona.record.result import Result
from pomona.scenario import Scenario
from problems import tiny


class Plain:
    """The clients of a run of digits with a multi-layer perceptron of one hidden layer.

    ``x`` and ``y`` are all samples, ``own`` the training rows of each client, ``K`` and ``f`` the
    numbers of classes and features.
    """

    K, f = 10, 8

    def __init__(self, name: str, settings: dict, **overrides: object) -> None:
        changed = {
            "rounds": 2,
            "local_epochs": 2,
            "momentum": 0.5,
            "weight_decay": 0.01,
            **overrides,
        }
        partition = {"name": "dirichlet", "beta": 0.3, "min_size": 8}  # some lack classes
        self.config: Config = tiny(name, settings, partition=partition, **changed)
        self.scenario = Scenario.prepare(self.config)
        data = self.scenario.objective().data
        self.x, self.y = data.gather(torch.arange(len(data.y)))
        self.own, self.tests = data.rows["train"], data.rows["test"]
        self.n = [len(rows) for rows in self.own]

    def run(self) -> Result:
        """The same run by the package."""
        return pomona.run(self.config)

    def networks(self) -> list[nn.Sequential]:
        """One network for each client, all with the run's initial values."""
        return [deepcopy(self.scenario.module()) for _ in self.own]

    def batches(
        self, client: int, number: int, epochs: int | None = None, purpose: str = "training"
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """A client's batches in a round: each epoch a permutation from one generator."""
        c = self.config
        draw = stream(c.seed, purpose, number, client)
        for _ in range(c.local_epochs if epochs is None else epochs):
            order = torch.from_numpy(draw.permutation(self.n[client]))
            for index in self.own[client][order].split(c.batch_size):
                yield self.x[index], self.y[index]

    def sgd(self, parameters: object, **overrides: object) -> torch.optim.SGD:
        """The run's optimizer; ``overrides``: other keywords."""
        c = self.config
        rates = {"lr": c.lr, "momentum": c.momentum, "weight_decay": c.weight_decay, **overrides}
        return torch.optim.SGD(parameters, **rates)

    @torch.no_grad()
    def means(self, body: nn.Module, client: int) -> dict[int, Tensor]:
        """The mean features of each class that a client has."""
        rows = self.own[client]
        z, y = body(self.x[rows]), self.y[rows]
        return {int(k): z[y == k].mean(0) for k in y.unique()}

    def counts(self, client: int) -> dict[int, int]:
        """A client's samples of each class that it has."""
        y = self.y[self.own[client]].tolist()
        return {k: y.count(k) for k in set(y)}

    def pooled(self, means_by_client: list[dict[int, Tensor]]) -> dict[int, Tensor]:
        """The mean features of each class over all clients' samples."""
        return {
            k: sum(
                self.counts(i)[k] * means[k]
                for i, means in enumerate(means_by_client)
                if k in means
            )
            / sum(self.counts(i)[k] for i, means in enumerate(means_by_client) if k in means)
            for k in range(self.K)
            if any(k in means for means in means_by_client)
        }


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Take one step of an optimizer on a loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def averaged(modules: list[nn.Module], p: list[float]) -> dict[str, Tensor]:
    """The mean of modules' parameters with weights p."""
    states = [m.state_dict() for m in modules]
    return {k: sum(w * s[k] for w, s in zip(p, states, strict=True)) for k in states[0]}


def pull(z: Tensor, y: Tensor, C: dict[int, Tensor]) -> Tensor:
    """The mean squared difference of features from their class's mean, over samples and numbers."""
    targets = torch.stack(
        [C.get(int(k), features.detach()) for k, features in zip(y, z, strict=True)]
    )
    return ((z - targets) ** 2).mean()


def assert_same(model: dict[str, Tensor], module: nn.Module) -> None:
    """Assert that a model of the package is a module's, within 1e-6."""
    expected = module.state_dict()
    assert model.keys() == expected.keys()
    for name, tensor in model.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6)

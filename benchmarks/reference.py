"""The baseline: federated learning in plain PyTorch, organised like published research code.

A module and an optimizer per client, a ``DataLoader`` over a ``TensorDataset`` of float images,
Python loops over clients and tensors for downlinks and uplinks; convolution, ReLU, pooling in this
order. It is not slowed down: the images are in memory as floats, and only what the comparison needs
is evaluated.

``Processes`` is faster than published code, which runs in one process: the clients are spread over
processes of one thread each, so that both cores are busy all the time.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pomona.federation.transport import spread

Samples = tuple[Tensor, Tensor]  # images (n, 1, 28, 28) float32, classes (n,)
State = dict[str, Tensor]


class Cnn(nn.Module):
    """Two 5x5 convolutions and two linear layers for 28x28 images."""

    def __init__(self, first: int, second: int, hidden: int) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(nn.Conv2d(1, first, 5), nn.ReLU(), nn.MaxPool2d(2))
        self.conv2 = nn.Sequential(nn.Conv2d(first, second, 5), nn.ReLU(), nn.MaxPool2d(2))
        self.fc1 = nn.Sequential(nn.Linear(second * 16, hidden), nn.ReLU())
        self.fc2 = nn.Linear(hidden, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 1, 28, 28) -> (B, 10) logits."""
        return self.fc2(self.fc1(torch.flatten(self.conv2(self.conv1(x)), 1)))


class Client:
    """A client of FedAvg."""

    def __init__(
        self,
        make: Callable[[], nn.Module],
        train: Samples,
        test: Samples,
        batch_size: int,
        lr: float,
    ) -> None:
        self.model = make()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
        self.loss = nn.CrossEntropyLoss()
        self.samples = len(train[1])
        self.train_data, self.test_data, self.batch_size = (
            TensorDataset(*train),
            TensorDataset(*test),
            batch_size,
        )

    def set_parameters(self, model: nn.Module) -> None:
        """Copy the server's model."""
        for new, old in zip(model.parameters(), self.model.parameters(), strict=True):
            old.data = new.data.clone()

    def train(self, epochs: int) -> None:
        """Local SGD."""
        self.model.train()
        for _ in range(epochs):
            for x, y in DataLoader(self.train_data, self.batch_size, shuffle=True):
                self.optimizer.zero_grad()
                loss = self.loss(self.model(x), y)
                loss.backward()
                self.optimizer.step()

    def test(self) -> tuple[int, int]:
        """Numbers of correct answers and of samples in the client's test data."""
        self.model.eval()
        right = samples = 0
        with torch.no_grad():
            for x, y in DataLoader(self.test_data, self.batch_size):
                right += int((self.model(x).argmax(1) == y).sum())
                samples += len(y)
        return right, samples


def visit(clients: Sequence[Client], model: nn.Module) -> list[tuple[int, int]]:
    """The clients' part of a round."""
    answers = []
    for client in clients:
        client.set_parameters(model)
        answers.append(client.test())
        client.train(epochs=1)
    return answers


def aggregate(model: nn.Module, models: Sequence[nn.Module], weights: Sequence[float]) -> None:
    """The weighted mean of the clients' models."""
    for parameter in model.parameters():
        parameter.data.zero_()
    for client, weight in zip(models, weights, strict=True):
        for total, value in zip(model.parameters(), client.parameters(), strict=True):
            total.data += value.data.clone() * weight


class Processes:
    """FedAvg with the clients spread over processes; models travel through shared memory.

    ``accuracy`` is that of the model that the last round sent out, over all test data.
    """

    def __init__(
        self, make: Callable[[], nn.Module], clients: Sequence[Client], processes: int
    ) -> None:
        self.model, self.samples, self.pipes = make(), sum(c.samples for c in clients), []
        self.accuracy = float("nan")
        context = torch.multiprocessing.get_context("fork")
        for ids in spread([c.samples for c in clients], processes):
            parent, child = context.Pipe()
            shard = [clients[i] for i in ids]
            context.Process(target=_serve, args=(child, shard), daemon=True).start()
            self.pipes.append((parent, shard))

    def round(self) -> None:
        """Send the model, evaluate it on all test data, train one epoch, aggregate."""
        for pipe, _ in self.pipes:
            pipe.send(self.model.state_dict())
        models, weights, right, samples = [], [], 0, 0
        for pipe, shard in self.pipes:
            states, answers = pipe.recv()
            for client, state in zip(shard, states, strict=True):
                client.model.load_state_dict(state)
                models.append(client.model)
                weights.append(client.samples / self.samples)
            right, samples = (
                right + sum(r for r, _ in answers),
                samples + sum(n for _, n in answers),
            )
        aggregate(self.model, models, weights)
        self.accuracy = right / max(1, samples)

    def close(self) -> None:
        """End the processes."""
        for pipe, _ in self.pipes:
            pipe.send(None)


def _serve(pipe: Any, clients: Sequence[Client]) -> None:
    torch.set_num_threads(1)
    model = deepcopy(clients[0].model)
    while state := pipe.recv():
        model.load_state_dict(state)
        answers = visit(clients, model)
        pipe.send(([c.model.state_dict() for c in clients], answers))


class Mixture(nn.Module):
    """APPLE's personal model as in its published code: in every layer, the p-weighted sum of all
    cores' outputs.
    """

    def __init__(self, cores: Sequence[Cnn], client: int, p: Tensor) -> None:
        super().__init__()
        self.cores, self.client = nn.ModuleList(cores), client
        self.p = nn.Parameter(p.clone())
        for j, core in enumerate(cores):
            core.requires_grad_(j == client)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 1, 28, 28) -> (B, 10) logits."""
        for name in ("conv1", "conv2"):
            x = self._mixed(name, x)
        return self._mixed("fc2", self._mixed("fc1", torch.flatten(x, 1)))

    def _mixed(self, name: str, x: Tensor) -> Tensor:
        layers = [getattr(core, name) for core in self.cores]
        steps = [list(layer) if isinstance(layer, nn.Sequential) else [layer] for layer in layers]
        mixed = sum(p * step[0](x) for p, step in zip(self.p, steps, strict=True))
        for operation in steps[0][1:]:
            mixed = operation(mixed)
        return mixed


class AppleClient:
    """APPLE's local training: an optimizer for the own core, one for the directed relationships."""

    def __init__(
        self, mixture: Mixture, lr: float, dr_lr: float, momentum: float, mu: float
    ) -> None:
        self.mixture, self.p0, self.mu = mixture, mixture.p.detach().clone(), mu
        self.loss = nn.CrossEntropyLoss()
        self.optimizers = [
            torch.optim.SGD(mixture.cores[mixture.client].parameters(), lr=lr, momentum=momentum),
            torch.optim.SGD([mixture.p], lr=dr_lr, momentum=momentum),
        ]

    def step(self, x: Tensor, y: Tensor) -> float:
        """One step on a batch. Returns its loss."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss = (
            self.loss(self.mixture(x), y) + self.mu / 2 * (self.mixture.p - self.p0).square().sum()
        )
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss.item()

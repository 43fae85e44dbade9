"""The task of all simulators: a folder with samples, their assignment to clients, first weights and
settings.

    images.npy  (N, 28, 28, 1) uint8, or a table (N, F) float32      labels.npy  (N,) int64
    rows.npz    train_0, test_0, train_1, ...: rows of each client; weights_0, ...: parameters in
                PyTorch's order, float32; shift and scale: the network sees (images - shift) / scale
    settings.json

NumPy and PyTorch only: the other environments do not have Pomona. The images are memory-mapped, so
that a process that serves one client reads no other client's.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

CLASSES = 10
AT_ONCE = 512  # images in a batch of evaluation, where the framework lets us choose
# In the papers' symbols, the same for all who have the method. FedAMP's alpha is left to each:
# there it is a step that the method itself bounds.
METHODS: dict[str, dict[str, float]] = {
    "fedavg": {},
    "fedala": {"share": 0.8, "eta": 1.0},  # weights of the last layer
    "ditto": {"lambda": 1.0},
    "apfl": {"alpha": 0.5},
    "fedamp": {"lambda": 1.0, "sigma": 25.0},
    "apple": {"dr_lr": 0.01, "mu": 0.1, "L": 0.2},
    "fedfomo": {"M": 5},  # others' models that a client gets per round
}


class Cnn(nn.Sequential):
    """Two 5x5 convolutions and two linear layers for 28x28 images, 582,026 parameters, as published
    code writes it.
    """

    def __init__(self) -> None:
        super().__init__(
            nn.Sequential(
                *(
                    nn.Conv2d(1, 32, 5),
                    nn.ReLU(),
                    nn.MaxPool2d(2),
                    nn.Conv2d(32, 64, 5),
                    nn.ReLU(),
                    nn.MaxPool2d(2),
                ),
                *(nn.Flatten(), nn.Linear(1024, 512), nn.ReLU()),
            ),
            nn.Linear(512, CLASSES),
        )


class Mlp(nn.Sequential):
    """One hidden layer of 64 for tables."""

    def __init__(self, columns: int, classes: int) -> None:
        super().__init__(nn.Sequential(nn.Linear(columns, 64), nn.ReLU()), nn.Linear(64, classes))


@dataclass(frozen=True)
class Task:
    """A task in a folder, as written by ``write``."""

    folder: Path

    @cached_property
    def settings(self) -> dict[str, Any]:
        """``clients``, ``classes``, ``batch_size``, ``lr``, ``local_epochs``, ``seed``."""
        return dict(json.loads((self.folder / "settings.json").read_text()))

    @cached_property
    def rows(self) -> Mapping[str, np.ndarray]:
        """Arrays by name, as above."""
        with np.load(self.folder / "rows.npz") as file:
            return {name: file[name] for name in file.files}

    @cached_property
    def images(self) -> np.ndarray:
        """All images, mapped."""
        return np.load(self.folder / "images.npy", mmap_mode="r")

    @cached_property
    def labels(self) -> np.ndarray:
        """All labels, mapped."""
        return np.load(self.folder / "labels.npy", mmap_mode="r")

    def normalised(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Images (n, 1, 28, 28) or a table (n, F), float32 as the network takes them, and classes
        (n,) int64, of these rows.
        """
        x = torch.from_numpy(np.asarray(self.images[rows])).float()
        shift, scale = (torch.from_numpy(self.rows[name]) for name in ("shift", "scale"))
        x = ((x - shift) / scale).movedim(-1, 1).contiguous()
        return x, torch.from_numpy(np.asarray(self.labels[rows]))

    def client_samples(self, split: str, client: int) -> tuple[Tensor, Tensor]:
        """One client's ``train`` or ``test`` samples."""
        return self.normalised(self.rows[f"{split}_{client}"])

    def samples_by_client(self, split: str) -> list[tuple[Tensor, Tensor]]:
        """All clients' samples, in id order."""
        return [self.client_samples(split, i) for i in range(self.settings["clients"])]

    def pooled(self, split: str) -> tuple[Tensor, Tensor]:
        """All clients' samples in one, in id order."""
        return self.normalised(
            np.concatenate([self.rows[f"{split}_{i}"] for i in range(self.settings["clients"])])
        )

    def network(self) -> nn.Sequential:
        """The body and the last layer of the task's network, with its first weights."""
        images = self.images.ndim == 4
        network = Cnn() if images else Mlp(self.images.shape[1], self.settings["classes"])
        for k, parameter in enumerate(network.parameters()):
            parameter.data.copy_(torch.from_numpy(self.rows[f"weights_{k}"]))
        return network


def write(
    folder: Path,
    images: np.ndarray,
    labels: np.ndarray,
    rows: Mapping[str, np.ndarray],
    settings: Mapping[str, Any],
) -> Task:
    """Write a task; the arguments are described at the top of this file."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "images.npy", images)
    np.save(folder / "labels.npy", labels)
    np.savez(folder / "rows.npz", **rows)
    (folder / "settings.json").write_text(json.dumps(dict(settings)))
    return Task(folder)


def train(network: nn.Module, x: Tensor, y: Tensor, settings: Mapping[str, Any]) -> None:
    """Local epochs of plain SGD, for frameworks without their own training."""
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), settings["lr"])
    for _ in range(settings["local_epochs"]):
        for rows in torch.randperm(len(y)).split(settings["batch_size"]):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()


@torch.no_grad()
def right(network: nn.Module, x: Tensor, y: Tensor) -> int:
    """Number of samples that a network classifies correctly."""
    network.eval()
    return sum(
        int((network(a).argmax(1) == b).sum())
        for a, b in zip(x.split(AT_ONCE), y.split(AT_ONCE), strict=True)
    )


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Arguments of every script: ``task method rounds [--threads 2] [--processes 1] [--engine
    torch] ...``.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("rounds", type=int)
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch in each process")
    parser.add_argument("--processes", type=int, default=1, help="that train at the same time")
    parser.add_argument("--engine", default="torch", help="of Pomona")
    parser.add_argument("--precision", default="fp32", help="of Pomona")
    parser.add_argument(
        "--test-alone", action="store_true", help="do not evaluate on training data, too"
    )
    return parser.parse_args(argv)

"""A training step of several networks by PyTorch and by the native engine, in turns.

    python benchmarks/native_networks.py [--quick]

One thread, noise, plain SGD in fp32, and the outputs of the same batch. A step gathers the batch,
computes the gradient and changes the row. Times are processor times, which other work on the
machine affects less than wall times.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from native_step import repeated
from pomona.core.round import Round
from pomona.core.training_settings import Optimizer
from pomona.models import ModelSettings, build
from pomona.models.losses import cross_entropy
from pomona.models.parameter_space import ParameterSpace
from pomona.objective.dataset import DeviceDataset
from pomona.objective.engine import Computation, EngineError, load_engine
from pomona.objective.objective import Objective
from pomona.objective.pytorch import TorchObjective
from timing import Table, Times, Work, chosen, native_release, publish

CLASSES = 10
ROUND = Round(1, 1, 0.01, 0.01, 1.0, 1, 10, 0.0, 0.0, 0, Optimizer())
Shape = tuple[int, ...]


def mlp(between: Callable[[], nn.Module]) -> nn.Module:
    """Two hidden layers of 200 units."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs in (784, 200):
        layers += [nn.Linear(inputs, 200), between()]
    return nn.Sequential(*layers, nn.Linear(200, CLASSES))


def dropping() -> nn.Module:
    """ReLU and dropout."""
    return nn.Sequential(nn.ReLU(), nn.Dropout(0.5))


def grouped() -> nn.Module:
    """Three convolutions with GroupNorm, two of them with stride 2."""
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((3, 32, 1), (32, 64, 2), (64, 128, 2)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride, 1), nn.GroupNorm(8, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES))


def registered(name: str, shape: Shape, vocabulary: int = 0) -> nn.Module:
    """A network of the package."""
    return build(ModelSettings(name=name), shape, CLASSES, vocabulary)


TOKENS, VOCABULARY = 200, 98_635
CASES: dict[str, tuple[Callable[[], nn.Module], Shape]] = {
    "MLP with dropout, 28x28": (partial(mlp, dropping), (28, 28, 1)),
    "MLP with GELU, 28x28": (partial(mlp, nn.GELU), (28, 28, 1)),
    "convolutions with GroupNorm, 32x32": (grouped, (32, 32, 3)),
    "vgg11, 32x32": (partial(registered, "vgg11", (3, 32, 32)), (32, 32, 3)),
    "resnet18, 32x32": (partial(registered, "resnet18", (3, 32, 32)), (32, 32, 3)),
    "resnet18, 64x64": (partial(registered, "resnet18", (3, 64, 64)), (64, 64, 3)),
    "resnet18, 128x128": (partial(registered, "resnet18", (3, 128, 128)), (128, 128, 3)),
    "fasttext, 200 of 98,635 words": (
        partial(registered, "fasttext", (TOKENS,), VOCABULARY),
        (TOKENS,),
    ),
}


@dataclass(frozen=True)
class Size:
    """Networks, batches, turns, and the shortest seconds of a turn."""

    cases: tuple[str, ...]
    batches: tuple[int, ...]
    turns: int
    min_seconds: float


FULL = Size(tuple(CASES), (10, 64), 7, 0.1)
QUICK = Size(("MLP with dropout, 28x28",), (10,), 2, 0.01)


def data(shape: Shape, batch: int) -> DeviceDataset:
    """Noise: images of bytes, or texts."""
    draw = torch.Generator().manual_seed(0)
    rows = {split: [torch.arange(batch)] for split in ("train", "test")}
    y = torch.arange(batch) % CLASSES
    if len(shape) == 1:
        tokens = torch.randint(0, VOCABULARY, (batch, *shape), generator=draw, dtype=torch.int32)
        return DeviceDataset(tokens, y, None, None, rows, "classes")
    x = torch.randint(0, 256, (batch, *shape), generator=draw, dtype=torch.uint8)
    shift, scale = torch.full((1,), 127.5), torch.full((1,), 70.0)
    return DeviceDataset(x, y, shift, scale, rows, "classes")


def works(name: str, batch: int) -> dict[str, Work]:
    """Step and outputs by each engine."""
    make, shape = CASES[name]
    module, dataset = make(), data(shape, batch)
    space, candidates = ParameterSpace(module), dict[str, Work]()
    objectives: dict[str, Objective] = {
        "torch": TorchObjective(module, space, dataset, cross_entropy)
    }
    computation = Computation(module, space, dataset, cross_entropy, "fp32", batch)
    with suppress(EngineError):  # not installed, or the network is left to PyTorch
        objectives["native"] = load_engine("native").objective(computation)
    for engine, objective in objectives.items():
        W = space.pack(module).unsqueeze(0)
        indices = dataset.rows["train"]
        candidates[f"step, {engine}"] = partial(
            objective.step, W, indices, torch.zeros(1, 0), ROUND
        )
        candidates[f"outputs, {engine}"] = partial(objective.outputs, W[0].clone(), 0, "test")
    return candidates


def main(size: Size, arguments: list[str]) -> list[Table]:
    """Measure and print."""
    assert not arguments, f"no settings here: {arguments}"
    torch.set_num_threads(1)
    rows: dict[str, Table] = {}
    for name in size.cases:
        for batch in size.batches:
            candidates = works(name, batch)
            timed = {
                operation: partial(repeated, work, size.min_seconds)
                for operation, work in candidates.items()
            }
            times = Times.interleaved(timed, size.turns)
            row: Table = {
                f"{operation}, ms": 1e3 * times.median(operation) for operation in candidates
            }
            for operation in ("step", "outputs"):
                if f"{operation}, native" in candidates:
                    ratio = times.median(f"{operation}, torch") / times.median(
                        f"{operation}, native"
                    )
                    row[f"{operation}, times as fast"] = ratio
            rows[f"{name}, batch {batch}"] = row
    title = "A step of several networks, by PyTorch and by the native engine"
    return [publish(title, rows, size.turns, threads=1, native=native_release() or "not installed")]


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))

"""A training step and evaluation by PyTorch and by the native engine, in turns, in fp32 and in
bf16.

    python benchmarks/native_step.py [--quick] [key=value ...]

One thread, images of noise, ``cnn`` and ``lenet``, batches of 10 and of 256, plain SGD
(``momentum=0.9`` for another), and the outputs of one batch of 512 images. A step gathers the
batch, computes the gradient and changes the row, as ``methods.local_sgd.sgd`` does. Times are
processor times, which other work on the machine affects less than wall times. Without the package
pomona-native only PyTorch's rows are measured.

The matrix rate is that of the fastest product found: PyTorch's of square matrices, and the native
engine's in a network of one 5x5 convolution, whose images and weights stay in the cache. Operations
of a step are counted by PyTorch's flop counter, as if no factor were zero; the native engine skips
those with a gradient that is zero behind pooling and ReLU, so its share may be above 1.
"""

from dataclasses import dataclass
from functools import partial
from time import process_time

import torch
from torch import nn

from pomona.config import read_overrides, resolve
from pomona.core.toml import Tree
from pomona.data.dataset import Dataset
from pomona.federation.round_plan import round_of
from pomona.methods.base import optimizer_state, optimizer_step
from pomona.models.losses import cross_entropy
from pomona.models.parameter_space import ParameterSpace
from pomona.objective.dataset import DeviceDataset
from pomona.objective.engine import Computation, load_engine
from pomona.scenario import Scenario
from rate import PRECISIONS, operations
from rounds import noise, scenario_of
from timing import Table, Times, Work, chosen, engines_here, native_release, publish, seconds

SETTINGS: Tree = {
    "lr": 0.01,
    "clients": 1,
    "data": {"name": "rounds:noise", "validation_share": 0.0},
}
EVALUATED = 512


@dataclass(frozen=True)
class Size:
    """(network, batch) of the steps, turns, and the shortest seconds of a turn, reached by
    repetition.
    """

    steps: tuple[tuple[str, int], ...]
    turns: int
    min_seconds: float


FULL = Size((("cnn", 10), ("cnn", 256), ("lenet", 10), ("lenet", 256)), 9, 0.1)
QUICK = Size((("lenet", 10),), 2, 0.01)


def scenario(
    model: str, batch: int, precision: str, engine: str, data: Dataset, arguments: list[str]
) -> Scenario:
    """A scenario with one client of noise images."""
    layer: Tree = {
        "model": {"name": model},
        "batch_size": batch,
        "precision": precision,
        "engine": engine,
    }
    return scenario_of(resolve(SETTINGS, layer, read_overrides(arguments)), data)


def step(scenario: Scenario) -> Work:
    """A step of local SGD on one batch."""
    objective, round_ = scenario.objective(), round_of(scenario.config, 1)
    W = scenario.initial().unsqueeze(0)
    velocity, indices = (
        optimizer_state(W, round_),
        [objective.data.rows["train"][0][: scenario.config.batch_size]],
    )

    def work() -> None:
        if objective.step(W, indices, velocity, round_) is None:
            _, G = objective.gradient(W, indices)
            optimizer_step(W, G, velocity, round_)

    return work


def evaluation(scenario: Scenario) -> Work:
    """Outputs of one large batch."""
    objective, row = scenario.objective(), scenario.initial()
    objective.data.rows["test"][0] = torch.arange(EVALUATED)
    return partial(objective.outputs, row, 0, "test")


def products(precision: str) -> dict[str, tuple[Work, int]]:
    """Matrix products of a precision, each with its operations."""
    side = 1024
    a, b = torch.rand(2, side, side, generator=torch.Generator().manual_seed(0)).to(
        PRECISIONS[precision]
    )
    candidates: dict[str, tuple[Work, int]] = {
        "PyTorch": (partial(torch.mm, a, b, out=torch.empty_like(a)), 2 * side**3)
    }
    # all that it reads stays in the cache, and little is written
    module = nn.Sequential(nn.Conv2d(32, 64, 5), nn.MaxPool2d(8), nn.Flatten(), nn.Linear(64, 2))
    x, rows = torch.rand(40, 12, 12, 32), {"test": [torch.arange(40)]}
    data = DeviceDataset(x, torch.zeros(40, dtype=torch.int64), None, None, rows, "classes")
    space = ParameterSpace(module)
    if native_release():
        computation = Computation(module, space, data, cross_entropy, precision, 40)
        native = load_engine("native").objective(computation)
        work = partial(native.outputs, space.pack(module), 0, "test")
        candidates["native"] = work, 2 * 40 * 8 * 8 * 25 * 32 * 64
    return candidates


def repeated(work: Work, min_seconds: float) -> float:
    """CPU seconds of one call, averaged over as many as take ``min_seconds`` seconds."""
    times = max(1, round(min_seconds / max(1e-6, seconds(work))))
    start_time = process_time()
    for _ in range(times):
        work()
    return (process_time() - start_time) / times


def main(size: Size, arguments: list[str]) -> list[Table]:
    """Measure and print."""
    torch.set_num_threads(1)
    engines = engines_here()
    data = noise(2 * EVALUATED)
    works: dict[str, Work] = {}
    flops: dict[str, int] = {}
    for model, batch in size.steps:
        for label, make in (
            (f"step {model} batch {batch}", step),
            (f"outputs {model}", evaluation),
        ):
            for precision in PRECISIONS:
                for engine in engines:
                    name = f"{label}, {precision}, {engine}"
                    works[name] = make(scenario(model, batch, precision, engine, data, arguments))
                    flops[name] = operations(works[f"{label}, fp32, torch"])
    measured = {p: products(p) for p in PRECISIONS}
    rated = {
        f"product, {p}, {name}": work
        for p, candidates in measured.items()
        for name, (work, _) in candidates.items()
    }
    times = Times.interleaved(
        {n: partial(repeated, w, size.min_seconds) for n, w in (works | rated).items()}, size.turns
    )
    rates = {
        p: max(
            count / times.median(f"product, {p}, {name}") for name, (_, count) in candidates.items()
        )
        for p, candidates in measured.items()
    }
    rows: dict[str, Table] = {
        name: {
            "median ms": 1e3 * times.median(name),
            "min ms": 1e3 * min(times.seconds[name]),
            "times as fast as torch fp32": times.median(f"{name.split(', ')[0]}, fp32, torch")
            / times.median(name),
            "share of the matrix rate": flops[name]
            / times.median(name)
            / rates[name.split(", ")[1]],
        }
        for name in works
    }
    notes = {f"matrix rate {p}, GFLOP/s": f"{rate / 1e9:.4g}" for p, rate in rates.items()}
    title = "A step and the outputs of a batch, by PyTorch and by the native engine"
    return [
        publish(
            title, rows, times.turns, threads=1, native=native_release() or "not installed", **notes
        )
    ]


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))

"""The machine's rate in matrix products, and the share of it that a training step reaches.

    python benchmarks/rate.py [--quick] [key=value ...]

One thread. Products of square matrices in fp32 and bf16, and steps of local SGD (gather the batch,
gradient, update) of ``lenet`` and ``cnn`` on images of noise, all taking turns. Operations are
counted by PyTorch's flop counter on the step itself: those of products and convolutions, a
multiplication and an addition as two. The share of a step is its rate over the fastest product of
the same precision. Without bf16 arithmetic in the processor, bf16 is emulated.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch.utils.flop_counter import FlopCounterMode

from pomona.config import read_overrides, resolve
from pomona.core.toml import Tree
from pomona.federation.round_plan import round_of
from pomona.methods.base import optimizer_state, optimizer_step
from rounds import noise, scenario_of
from timing import Table, Times, Work, chosen, publish, seconds

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
SETTINGS: Tree = {
    "engine": "torch",
    "lr": 0.01,
    "clients": 1,
    "data": {"name": "rounds:noise", "validation_share": 0.0},
}


@dataclass(frozen=True)
class Size:
    """Sides of the matrices, (network, batch) of the steps, turns, and the least GFLOP of a turn,
    by repeating.
    """

    sides: tuple[int, ...]
    steps: tuple[tuple[str, int], ...]
    turns: int
    min_gflop: float


STEPS = tuple((model, batch) for model in ("lenet", "cnn") for batch in (10, 256))
FULL = Size((512, 1024, 2048), STEPS, 15, 10)
QUICK = Size((64,), (("lenet", 10),), 2, 0.01)


def product(side: int, precision: str) -> Work:
    """C = A B for square matrices."""
    a, b = torch.rand(2, side, side, generator=torch.Generator().manual_seed(0)).to(
        PRECISIONS[precision]
    )
    c = torch.empty_like(a)
    return partial(torch.mm, a, b, out=c)


def step(model: str, batch: int, precision: str, arguments: list[str]) -> Work:
    """A step of local SGD on one batch."""
    layer: Tree = {"model": {"name": model}, "batch_size": batch, "precision": precision}
    scenario = scenario_of(
        config := resolve(SETTINGS, layer, read_overrides(arguments)), noise(2 * batch)
    )
    objective, round_ = scenario.objective(), round_of(config, 1)
    W = scenario.initial().unsqueeze(0)
    velocity, indices = optimizer_state(W, round_), [objective.data.rows["train"][0][:batch]]
    assert len(indices[0]) == batch

    def work() -> None:
        _, G = objective.gradient(W, indices)
        optimizer_step(W, G, velocity, round_)

    return work


def operations(work: Work) -> int:
    """Floating-point operations of one call."""
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def repeated(work: Work, times: int) -> float:
    """Seconds of one call, averaged over several."""
    return seconds(lambda: [work() for _ in range(times)]) / times


def fastest(rates: Iterable[tuple[str, float]], precision: str) -> float:
    """The highest rate of the products in a precision."""
    return max(
        rate for name, rate in rates if name.startswith("product") and name.endswith(precision)
    )


def main(size: Size, arguments: list[str]) -> list[Table]:
    """Measure and print."""
    torch.set_num_threads(1)
    works = {f"product {side}, {p}": product(side, p) for p in PRECISIONS for side in size.sides}
    works |= {
        f"step {m} batch {b}, {p}": step(m, b, p, arguments)
        for p in PRECISIONS
        for m, b in size.steps
    }
    flops = {name: operations(work) for name, work in works.items()}
    candidates = {
        name: partial(repeated, work, max(1, round(size.min_gflop * 1e9 / flops[name])))
        for name, work in works.items()
    }
    times = Times.interleaved(candidates, size.turns)
    rates = {name: flops[name] / times.median(name) for name in works}
    rows = {
        name: {
            "median ms": 1e3 * times.median(name),
            "GFLOP": flops[name] / 1e9,
            "GFLOP/s": rate / 1e9,
            "share of the fastest product": rate / fastest(rates.items(), name.rpartition(" ")[2]),
        }
        for name, rate in rates.items()
    }
    title = "The rate of matrix products, and the share of it in a training step"
    return [publish(title, rows, times.turns, threads=1)]


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))

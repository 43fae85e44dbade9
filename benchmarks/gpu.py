"""Rounds on a GPU: whether they are the processor's, their seconds, the share of the card's rate.

    python benchmarks/gpu.py [--quick] [device=cuda:1]

Made for about ten minutes on one card; without one it runs on the processor. First FedAvg, APPLE
and FedALA on digits, in fp32 on the card and on the processor: the largest difference of a training
loss and of an entry of the clients' models after three rounds, which should be below 1e-4. Then
their rounds on 60,000 images of noise with MNIST's sizes (20 clients, batch 10, ``cnn``, all
clients in a call and one a call, fp32 and bf16), in turns. Last the rate of matrix products, and of
a FedAvg step of all clients at batch 256.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch.utils.flop_counter import FlopCounterMode

import pomona
from pomona.config import read_overrides, resolve
from pomona.core.toml import Tree
from pomona.federation.round_plan import round_of
from pomona.methods.base import optimizer_state, optimizer_step
from pomona.record.result import Result
from rate import PRECISIONS
from rounds import Rounds, noise, scenario_of
from timing import Table, Times, Work, chosen, publish, seconds

METHODS = "fedavg", "apple", "fedala"
EQUAL: Tree = {
    "data": {"name": "digits"},
    "partition": {"name": "dirichlet"},
    "clients": 6,
    "rounds": 3,
    "batch_size": 32,
    "lr": 0.05,
    "model": {"name": "small"},
    "engine": "torch",
}
ROUNDS: Tree = {
    **EQUAL,
    "data": {"name": "rounds:noise", "validation_share": 0.0, "test_share": 0.25},
    "clients": 20,
    "batch_size": 10,
    "lr": 0.005,
    "model": {"name": "cnn"},
}


@dataclass(frozen=True)
class Size:
    """Images of a round, turns, the side of the matrices, and the batch of the step."""

    images: int
    turns: int
    side: int
    batch: int


FULL = Size(60_000, 3, 8192, 256)
QUICK = Size(400, 1, 64, 8)


def main(size: Size, arguments: list[str]) -> list[Table]:
    """Measure and print."""
    default = "cuda" if torch.cuda.is_available() else "cpu"
    device = str(read_overrides(arguments).get("device", default))
    card = torch.cuda.get_device_name() if device.startswith("cuda") else "none"
    return [
        publish(
            "Largest differences from the processor's numbers",
            dict(differences(device)),
            1,
            card=card,
        ),
        rounds(size, device, card),
        rates(size, device, card),
    ]


def differences(device: str) -> Iterator[tuple[str, Table]]:
    """The largest differences between two runs of each method, one on the device."""
    for name in METHODS:
        on_cpu, on_device = (
            pomona.run(resolve(EQUAL, {"method": {"name": name}, "device": target}))
            for target in ("cpu", device)
        )
        losses = [
            abs(a - b)
            for expected, actual in zip(on_cpu.rounds, on_device.rounds, strict=True)
            for a, b in zip(expected.loss, actual.loss, strict=True)
            if a is not None and b is not None
        ]
        yield (
            name,
            {
                "of a loss": max(losses),
                "of a model": _largest_difference(on_cpu, on_device),
                "target": 1e-4,
            },
        )


def _largest_difference(expected: Result, actual: Result) -> float:
    """The largest difference of an entry of the clients' models."""
    return max(
        float((tensor - actual.models[k][name].cpu()).abs().max())
        for k, model in expected.models.items()
        for name, tensor in model.items()
    )


def rounds(size: Size, device: str, card: str) -> Table:
    """Seconds of a round of each method, by precision and by the clients of a call."""
    runs: dict[str, Rounds] = {}
    for name in METHODS:
        for precision in PRECISIONS:
            for rows_per_call in (ROUNDS["clients"], 1):
                layer: Tree = {"method": {"name": name}, "precision": precision}
                layer |= {"rows_per_call": rows_per_call, "device": device}
                config = resolve(ROUNDS, layer)
                label = f"{name}, {precision}, {rows_per_call} clients a call"
                runs[label] = Rounds(scenario_of(config, noise(size.images)))
    times = Times.interleaved(
        {k: partial(_synchronous, r.run) for k, r in runs.items()}, size.turns
    )
    rows_ = {
        k: {"median s": times.median(k), "max s": max(times.seconds[k])} for k in times.seconds
    }
    for run in runs.values():
        run.close()
    return publish("Seconds a round", rows_, times.turns, card=card)


def rates(size: Size, device: str, card: str) -> Table:
    """TFLOP/s of a square product and of a FedAvg step of all clients, and the step's share."""
    works: dict[str, tuple[Work, int]] = {}
    for precision, dtype in PRECISIONS.items():
        a, b = torch.rand(2, size.side, size.side, device=device).to(dtype)
        works[f"product, {precision}"] = partial(torch.mm, a, b), 2 * size.side**3
        layer: Tree = {"method": {"name": "fedavg"}, "precision": precision, "device": device}
        layer |= {"rows_per_call": ROUNDS["clients"], "partition": {"name": "iid"}}
        step = _step(resolve(ROUNDS, layer), size.batch)
        with FlopCounterMode(display=False) as counter:
            step()
        works[f"step, {precision}"] = step, counter.get_total_flops()
    times = Times.interleaved(
        {k: partial(_synchronous, work) for k, (work, _) in works.items()}, 5 * size.turns
    )
    rate = {k: count / times.median(k) / 1e12 for k, (_, count) in works.items()}
    rows = {
        k: {"TFLOP/s": rate[k], "share of the product": rate[k] / rate[f"product, {k.split()[-1]}"]}
        for k in rate
    }
    return publish("Rates", rows, times.turns, card=card)


def _step(config: pomona.Config, batch: int) -> Work:
    scenario = scenario_of(config, noise(2 * batch * config.clients))
    objective, round_ = scenario.objective(), round_of(config, 1)
    W = scenario.initial().repeat(config.clients, 1)
    indices = [rows[:batch] for rows in objective.data.rows["train"]]
    moments = optimizer_state(W, round_)

    def work() -> None:
        _, G = objective.gradient(W, indices)
        optimizer_step(W, G, moments, round_)

    return work


def _synchronous(work: Work) -> float:
    """Seconds of a call, until the card has finished."""

    def synchronised() -> None:
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return seconds(synchronised)


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))

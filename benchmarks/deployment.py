"""A federation of real processes on this machine: start, seconds and bytes per round, memory; and
needs of large ones.

    python benchmarks/deployment.py [--quick] [CASE ...]

Each case is a rehearsal (``pomona deploy rehearse``): a SuperLink and one node per silo, with TLS
and keys, then the simulator on the same files, with its seconds per round. Images of noise, 17
training images per silo, one local epoch: this measures the exchange, not the training. The silos
share this machine's cores, each message starts a process, and every process imports PyTorch:
seconds are upper bounds for silos on separate machines. Bytes are those of messages as sent,
without the overhead of HTTP and Flower, next to the method's formula. The first round is separate:
all silos start from one model, which is sent once. "memory" is the largest resident set of a
process of each kind, sampled five times a second, shared pages included. CASE: names as in the
first column; all cases by default.

The last table is computed from shapes, without a run.
"""

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from statistics import median

import numpy as np
import torch

from pomona.config import Config, resolve
from pomona.core.rng import stream
from pomona.core.round import Roster
from pomona.core.state import flatten
from pomona.core.toml import Tree
from pomona.federation.stale_models import matrix_bytes
from pomona.methods.base import Initial
from pomona.scenario import Scenario
from pomona_federation.rehearsal.run import rehearse
from timing import Table, chosen, publish

MEGABYTE = 1e6
GIGABYTE = 1e9
IMAGES = 30  # a silo: 17 for training, 3 for validation, 10 for testing
ROUNDS = 3
OPTIONS = {"deadline": 280.0, "wait": 280.0, "patience": 280.0}


@dataclass(frozen=True)
class Case:
    """One federation: silos, method, network, and the shape of an image."""

    silos: int
    method: Tree
    model: Tree
    shape: tuple[int, ...]
    rounds: int = ROUNDS
    summed: bool = False  # with secure aggregation


def _apple(budget: int) -> Tree:
    return {"name": "apple", "budget": budget}


FEDAVG: Tree = {"name": "fedavg"}
LENET, MNIST = {"name": "lenet"}, (28, 28, 1)
RESNET, CIFAR = {"name": "resnet18"}, (32, 32, 3)
FULL = {
    "small mlp, 4 silos, apple M=1": Case(
        4, _apple(1), {"name": "mlp", "hidden": [8]}, (8, 8, 1), 8
    ),
    **{
        f"lenet, {silos} silos, {name}": Case(silos, method, LENET, MNIST)
        for silos in (6, 12)
        for name, method in {
            "fedavg": FEDAVG,
            **{f"apple M={budget}": _apple(budget) for budget in sorted({1, 5, silos - 1})},
        }.items()
    },
    **{
        f"lenet, {silos} silos, {name}": Case(silos, FEDAVG, LENET, MNIST, ROUNDS, name != "fedavg")
        for silos in (4, 12)
        for name in ("fedavg", "fedavg in a sum")
    },
    **{
        f"resnet18, {silos} silos, {name}": Case(silos, method, RESNET, CIFAR, 2)
        for silos in (4, 6)
        for name, method in {
            "fedavg": FEDAVG,
            "apple M=1": _apple(1),
            f"apple M={silos - 1}": _apple(silos - 1),
        }.items()
    },
}
QUICK = {"logistic, 2 silos, apple M=1": Case(2, _apple(1), {"name": "logistic"}, (4, 4, 1), 2)}


def config(case: Case, folder: Path) -> Config:
    """The settings of a case; writes its images to a folder."""
    draw, n = stream(0, "noise"), case.silos * IMAGES
    images = draw.integers(0, 256, (n, *case.shape), dtype=np.uint8)
    np.savez(folder / "images.npz", x=images, y=draw.integers(0, 10, n))
    return resolve(
        {
            "engine": "torch",
            "method": case.method,
            "model": case.model,
            "clients": case.silos,
            "rounds": case.rounds,
            "batch_size": 10,
            "lr": 0.01,
            "partition": {"name": "iid"},
            "data": {
                "name": "arrays",
                "path": str(folder / "images.npz"),
                "classes": [str(k) for k in range(10)],
                "test_share": 1 / 3,
            },
            "workers": 1,
            **({"secure_aggregation": {"max_norm": 10.0}} if case.summed else {}),
        }
    )


def measure(case: Case) -> dict[str, object]:
    """One row: a federation, with the formula's bytes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = config(case, folder)
        scenario = Scenario.prepare(run)
        model = len(scenario.initial()) * 4
        rehearsal = rehearse(scenario, folder / "out", _print, **OPTIONS)
    downlink, uplink = (
        median(bytes_[1:]) / MEGABYTE for bytes_ in (rehearsal.bytes_down, rehearsal.bytes_up)
    )
    budget = case.method.get("budget")
    models = budget if isinstance(budget, int) else 1
    return {
        "ready s": rehearsal.started,
        "round 1 s": rehearsal.seconds[0],
        "later rounds s": median(rehearsal.seconds[1:]),
        "simulated s": median(rehearsal.simulated_seconds[1:]),
        "down MB": downlink,
        "down by formula MB": case.silos * models * model / MEGABYTE,
        "up MB": uplink,
        "up by formula MB": case.silos * model / MEGABYTE,
        "round 1 down MB": rehearsal.bytes_down[0] / MEGABYTE,
        **{f"{process} MB": rehearsal.memory.get(process, 0) / MEGABYTE for process in PROCESSES},
        "largest difference": rehearsal.largest,
    }


PROCESSES = ("SuperLink", "ServerApp", "node", "worker", "ClientApp", "supervisor")


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# On paper.

LARGE = {
    f"{silos} silos, {numbers / 1e6:g} M numbers, {name}": (silos, numbers, method)
    for silos, numbers in ((12, 11_200_000), (100, 11_200_000), (100, 100_000_000))
    for name, method in {
        "fedavg": FEDAVG,
        "apple M=5": _apple(5),
        f"apple M={silos - 1}": _apple(silos - 1),
    }.items()
}
SLOW, FAST = 100e6, 1e9  # bits a second
KEPT_BY_SERVER, KEPT_BY_SILO = 2, 3  # checkpoints


def requirements(silos: int, numbers: int, method: Tree) -> dict[str, object]:
    """Needs of a federation in fp32: bytes a round, seconds on lines with no other traffic, states
    and checkpoints.

    The states are the method's own, as shapes without memory. The server's working memory is
    everything in use at the end of a round: its state before and after, the uplinks as bytes and as
    tensors, and their product: the rows as bytes, or for a mean as much again as the uplinks
    (measured with ResNet-18, N = 4 and 6).
    """
    config = resolve({"method": method, "model": {"name": "logistic"}, "clients": silos})
    initial = _without_memory(numbers)
    roster, halves = Roster((100,) * silos), config.method.method()
    server = _bytes(flatten(halves.server.start(initial, roster, 0), "server"))
    silo = _bytes(flatten(halves.client.start(initial, roster, (0,), 0), "silo"))
    silo += matrix_bytes(halves.client.keeps, initial, roster)
    model, budget = 4 * numbers, method.get("budget")
    downlink = model * (budget if isinstance(budget, int) else 1)
    traffic = silos * (downlink + model)
    return {
        "silo down GB": downlink / GIGABYTE,
        "silo up GB": model / GIGABYTE,
        "silo s at 100 Mbit/s": 8 * (downlink + model) / SLOW,
        "server GB": traffic / GIGABYTE,
        "server s at 1 Gbit/s": 8 * traffic / FAST,
        "server state GB": server / GIGABYTE,
        "server memory GB": (2 * server + (3 if "budget" in method else 4) * silos * model)
        / GIGABYTE,
        "server disk GB": (KEPT_BY_SERVER * server + 2 * silos * model) / GIGABYTE,
        "silo state GB": silo / GIGABYTE,
        "silo disk GB": (KEPT_BY_SILO * (silo + model) + downlink) / GIGABYTE,
    }


def _without_memory(numbers: int) -> Initial:
    """An initial model of this many numbers that takes no memory."""
    small = Scenario.prepare(resolve({"model": {"name": "logistic"}, "clients": 2})).initial
    return replace(small, make=lambda _: torch.empty(numbers, device="meta"))


def _bytes(tensors: dict[str, torch.Tensor]) -> int:
    return sum(prod(t.shape) * t.element_size() for t in tensors.values())


def main(cases: dict[str, Case], arguments: list[str]) -> Iterator[Table]:
    """Measure and print, one case at a time."""
    unknown = set(arguments) - set(cases)
    assert not unknown, f"no case {sorted(unknown)}; there are: {'; '.join(cases)}"
    for name, case in cases.items():
        if not arguments or name in arguments:
            title = "A federation of real processes"
            yield publish(title, {name: measure(case)}, 1, rounds=case.rounds, images_a_silo=IMAGES)
    yield publish(
        "On paper", {name: requirements(*large) for name, large in LARGE.items()}, 1, wire="fp32"
    )


if __name__ == "__main__":
    for _ in main(*chosen(QUICK, FULL)):
        pass

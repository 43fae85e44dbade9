"""A round of FedAvg against a plain PyTorch federation with the same two cores.

    python benchmarks/fedavg_round.py [--quick] [key=value ...]

MNIST pooled and split again (a quarter for testing), Dirichlet(0.1), 20 clients, batch 10, one
local epoch, the network ``cnn`` (582,026 parameters), the global model evaluated on all test data
in each round: the set-up in which users of the published simulators report their seconds. Images of
noise stand in for MNIST where POMONA_DATA is not set. The reference runs in two processes of one
thread: the same code in one process with two threads is slower. ``precision=fp32`` or
``engine=torch`` measures only that; by default bf16 and the native engine, if installed, take turns
too.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from pomona.config import read_overrides, resolve
from pomona.core.toml import Tree
from pomona.data import read
from pomona.objective.dataset import DeviceDataset
from pomona.scenario import Scenario
from reference import Client, Cnn, Processes
from rounds import Rounds, noise, scenario_of
from timing import Table, Times, chosen, engines_here, seconds

SETTINGS: Tree = {
    "clients": 20,
    "batch_size": 10,
    "lr": 0.005,
    "model": {"name": "cnn"},
    "data": {"split": "pooled", "test_share": 0.25, "validation_share": 0.0},
    "partition": {"name": "dirichlet"},
}
CORES = 2


@dataclass(frozen=True)
class Size:
    """Total images (all of MNIST's if unset); turns; the partition's concentration, which few
    images limit.
    """

    images: int | None
    turns: int
    beta: float = 0.1


FULL = Size(None, 3)
QUICK = Size(400, 1, 1.0)


def clients(scenario: Scenario, make: Callable[[], Cnn]) -> list[Client]:
    """The reference's clients, each with its data as floats."""
    config, dataset = scenario.config, scenario.dataset
    data = DeviceDataset.build(dataset, scenario.partition, "classes")

    def samples(split: str, client: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = data.gather(data.rows[split][client])
        return x.contiguous(), y

    return [
        Client(make, samples("train", i), samples("test", i), config.batch_size, config.lr)
        for i in range(config.clients)
    ]


def main(size: Size, arguments: list[str]) -> list[Table]:
    """Measure and print."""
    real = "POMONA_DATA" in os.environ
    overrides = read_overrides(arguments)
    precisions = [overrides.pop("precision")] if "precision" in overrides else ["fp32", "bf16"]
    engines = [overrides.pop("engine")] if "engine" in overrides else engines_here()
    data = (
        {"name": "mnist", "train_limit": size.images, "test_limit": size.images}
        if real
        else {"name": "rounds:noise"}
    )
    common: Tree = {"data": data, "partition": {"beta": size.beta}}
    configs = {
        f"{p}, {e}": resolve(SETTINGS, common, {"precision": p, "engine": e}, overrides)
        for p in precisions
        for e in engines
    }
    config = next(iter(configs.values()))
    dataset = read(config.data) if real else noise(size.images or 70_000)
    scenario = scenario_of(config, dataset)
    make = partial(Cnn, 32, 64, 512)
    torch.set_num_threads(1)  # before anything forks
    reference = Processes(make, clients(scenario, make), CORES)
    pomona = {
        p: Rounds(Scenario(c, dataset, scenario.partition), CORES, frozenset({"received"}))
        for p, c in configs.items()
    }
    times = Times.interleaved(
        {
            "reference, 2 processes": partial(seconds, reference.round),
            **{f"pomona {p}, 2 workers": partial(seconds, r.run) for p, r in pomona.items()},
        },
        size.turns,
    )
    for run in (reference, *pomona.values()):
        run.close()
    table = times.report(
        "A round of FedAvg",
        data="MNIST" if real else "noise as large as MNIST (POMONA_DATA is not set)",
        training_images=reference.samples,
        test_images=sum(len(c.test) for c in scenario.partition.clients),
        clients=config.clients,
        batch=config.batch_size,
        accuracy={
            "reference": round(reference.accuracy, 4),
            **{p: round(r.accuracy, 4) for p, r in pomona.items()},
        },
    )
    return [table]


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))

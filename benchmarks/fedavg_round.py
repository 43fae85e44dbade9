"""A round of FedAvg against a plain PyTorch federation that is given the same two cores.

    python benchmarks/fedavg_round.py [TURNS] [key=value ...]

MNIST pooled and split anew (a quarter for testing), Dirichlet(0.1), 20 clients, batch 10, one local epoch, the network
``cnn`` (582,026 parameters), the global model evaluated on all test data in each round: the set-up in which users of
the published simulators report their seconds. Images of noise stand in for MNIST where POMONA_DATA is not set. The
reference runs in two processes of one thread: the same code in one process with two threads is slower.
"""

import os
import sys
from collections.abc import Callable
from functools import partial

import torch

from pomona.config import Config, Tree, read_overrides, resolve
from pomona.data import read
from pomona.objective.resident import Resident
from pomona.scenario import Scenario
from reference import Client, Cnn, Processes
from rounds import Rounds, noise, scenario_of
from timing import Times, seconds

SETTINGS: Tree = {
    "clients": 20,
    "batch_size": 10,
    "lr": 0.005,
    "model": {"name": "cnn"},
    "data": {"split": "pooled", "test_share": 0.25, "validation_share": 0.0},
    "partition": {"name": "dirichlet", "beta": 0.1},
}
CORES = 2


def clients(scenario: Scenario, make: Callable[[], Cnn]) -> list[Client]:
    """The reference's clients, each with its data as floats."""
    config, dataset = scenario.config, scenario.dataset
    data = Resident.of(dataset, scenario.partition, "classes")

    def part(split: str, client: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = data.gather(data.rows[split][client])
        return x.contiguous(), y

    return [
        Client(make, part("train", i), part("test", i), config.batch_size, config.lr) for i in range(config.clients)
    ]


def main(turns: int, words: list[str]) -> None:
    """Measure and print."""
    real = "POMONA_DATA" in os.environ
    over = read_overrides(words)
    configs = {
        p: resolve(SETTINGS, {"data": {"name": "mnist" if real else "noise"}, "precision": p}, over)
        for p in ("fp32", "bf16")
    }
    dataset = read(configs["fp32"].data) if real else noise(configs["fp32"].data.train_limit or 70_000)
    scenario = scenario_of(configs["fp32"], dataset)
    make = partial(Cnn, 32, 64, 512)
    torch.set_num_threads(1)  # before anything forks
    two = Processes(make, clients(scenario, make), CORES)
    pomona = {p: Rounds(_with(scenario, c), CORES, frozenset({"received"})) for p, c in configs.items()}
    times = Times.interleaved(
        {
            "reference, 2 processes": partial(seconds, two.round),
            **{f"pomona {p}, 2 workers": partial(seconds, r.run) for p, r in pomona.items()},
        },
        turns,
    )
    times.report(
        "A round of FedAvg",
        data="MNIST" if real else "noise as large as MNIST (POMONA_DATA is not set)",
        training_images=two.samples,
        test_images=sum(len(c.test) for c in scenario.partition.clients),
        clients=configs["fp32"].clients,
        batch=configs["fp32"].batch_size,
        accuracy={"reference": round(two.accuracy, 4), **{p: round(r.accuracy, 4) for p, r in pomona.items()}},
    )


def _with(scenario: Scenario, config: Config) -> Scenario:
    return Scenario(config, scenario.dataset, scenario.partition)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5, sys.argv[2:])

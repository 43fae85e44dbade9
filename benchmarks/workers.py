"""Gain from a second worker process: the same round by one process and by one per core.

    python benchmarks/workers.py [--quick] [key=value ...]

FedAvg and APPLE, Dirichlet(0.1), 20 clients, batch 10, the network ``cnn``, images of noise; the
received model is evaluated on all test data. Each process computes with one thread. Tests check
that results are bit-identical.
"""

import os
from dataclasses import dataclass
from functools import partial

import torch

from pomona.config import read_overrides, resolve
from pomona.core.toml import Tree
from rounds import Rounds, noise, scenario_of
from timing import Table, Times, chosen, publish, seconds

SETTINGS: Tree = {
    "engine": "torch",
    "lr": 0.01,
    "clients": 20,
    "batch_size": 10,
    "model": {"name": "cnn"},
    "data": {"name": "rounds:noise", "test_share": 0.25, "validation_share": 0.0},
    "partition": {"name": "dirichlet", "beta": 0.1},
}
METHODS = ("fedavg", "apple")
TARGET = 1.8  # two workers against one


@dataclass(frozen=True)
class Size:
    """Total images, numbers of workers, settings for a small run, and turns."""

    images: int
    workers: tuple[int, ...]
    changes: Tree
    turns: int


FULL = Size(8_000, tuple(range(1, len(os.sched_getaffinity(0)) + 1)), {}, 7)
QUICK = Size(200, (1, 2), {"clients": 3, "model": {"name": "mlp"}}, 1)


def main(size: Size, arguments: list[str]) -> list[Table]:
    """Measure and print."""
    torch.set_num_threads(1)
    images, overrides = noise(size.images), read_overrides(arguments)
    configs = {
        m: resolve(SETTINGS, size.changes, {"method": {"name": m}}, overrides) for m in METHODS
    }
    runs = {
        (m, n): Rounds(scenario_of(config, images), n, frozenset({"received"}))
        for m, config in configs.items()
        for n in size.workers
    }
    times = Times.interleaved({run: partial(seconds, runs[run].run) for run in runs}, size.turns)
    for run in runs.values():
        run.close()
    rows = {
        f"{m}, {n} workers": {
            "median s": times.median((m, n)),
            "times as fast as one": times.cost((m, 1), (m, n)),
            "target": TARGET if n == 2 else None,
        }
        for m, n in runs
    }
    c = configs[METHODS[0]]
    notes = {"model": c.model.name, "batch": c.batch_size, "clients": c.clients}
    return [
        publish(
            "Workers: a round by one process and by several",
            rows,
            times.turns,
            images=size.images,
            **notes,
        )
    ]


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))

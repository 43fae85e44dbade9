"""Cost of APPLE's personalization: its round against FedAvg's, interleaved in one process with one
thread.

    python benchmarks/apple_round.py [--quick] [key=value ...]

LeNet 20-50-500, batch 256, 12 clients, noise images. Each turn runs one training round of each
method on the same clients' data. No evaluation.
"""

from dataclasses import dataclass
from functools import partial

import torch

from pomona.config import read_overrides, resolve
from pomona.core.toml import Tree
from rounds import Rounds, noise, scenario_of
from timing import Table, Times, chosen, seconds

SETTINGS: Tree = {
    "engine": "torch",
    "lr": 0.01,
    "clients": 12,
    "batch_size": 256,
    "momentum": 0.9,
    "model": {"name": "lenet"},
    "data": {"name": "rounds:noise"},
}


@dataclass(frozen=True)
class Size:
    """Images per client, of which 68 % are for training, and turns."""

    images: int
    turns: int


FULL = Size(1_880, 9)  # 1,278 for training, 5 batches of 256
QUICK = Size(32, 2)


def main(size: Size, words: list[str]) -> list[Table]:
    """Measure and print."""
    torch.set_num_threads(1)
    configs = [
        resolve(SETTINGS, {"method": {"name": m}}, read_overrides(words))
        for m in ("apple", "fedavg")
    ]
    c = configs[0]
    dataset = noise(size.images * c.clients)
    runs = {c.method.name: Rounds(scenario_of(c, dataset)) for c in configs}
    times = Times.interleaved(
        {name: partial(seconds, r.run) for name, r in runs.items()}, size.turns
    )
    about = {"model": c.model.name, "batch": c.batch_size, "clients": c.clients, "threads": 1}
    return [times.report("APPLE's round against FedAvg's", **about)]


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))

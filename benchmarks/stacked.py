"""The stacked objective against the loop: gradients of many rows, and a training round of many clients in one call.

    python benchmarks/stacked.py [REPEATS] [key=value ...]

Noise images of MNIST's size, batch 10, one thread. The variants of a line take turns in one process; a line gives
medians, and the ratio of the first column to each other one (above 1: faster than the first). ``device=cuda`` measures
on a GPU.
"""

import platform
import statistics
import sys
from collections.abc import Callable
from time import perf_counter

import torch

from apple_round import noise
from pomona.config import Config, Tree, read_overrides, resolve
from pomona.federation.loop import round_of
from pomona.federation.round import Roster
from pomona.objective.cohort import Cohort
from pomona.objective.objective import Objective
from pomona.objective.stacked import StackedObjective
from pomona.partition import divide
from pomona.scenario import Scenario

MODELS = ("mlp", "lenet", "cnn")
SETTINGS: Tree = {"batch_size": 10, "data": {"name": "noise"}, "partition": {"name": "dirichlet", "beta": 1.0}}
CLIENT_IMAGES = 120


class Federation:
    """A scenario with both engines."""

    def __init__(self, *layers: Tree) -> None:
        config = self.config = resolve(SETTINGS, *layers)
        dataset = noise(CLIENT_IMAGES * config.clients)
        partition = divide(dataset, config.data, config.partition, config.clients, config.seed)
        self.scenario = Scenario(config, dataset, partition)
        self.roster = Roster(tuple(len(c.train) for c in partition.clients))
        loop = self.scenario.objective()
        module = self.scenario.module().to(config.device)
        self.loop: Objective = loop
        self.stacked: Objective = StackedObjective(module, loop.space, loop.data, loop.criterion, config.precision)

    def gradient(self, objective: Objective) -> Callable[[], object]:
        """One gradient of every client's row on its first batch."""
        W = torch.stack([self.scenario.initial(i) for i in range(self.config.clients)])
        indices = [rows[: self.config.batch_size] for rows in self.loop.data.rows["train"]]
        return lambda: objective.gradient(W, indices)

    def round(self, objective: Objective, rows: int) -> Callable[[], object]:
        """Local training of every client in round 1, so many rows a call."""
        method, round_ = self.config.method.method(), round_of(self.config, 1)
        server = method.server.start(self.scenario.initial, self.roster, self.config.seed)
        longest_first = sorted(range(self.config.clients), key=lambda i: (-self.roster.sizes[i], i))
        calls = [tuple(longest_first[k : k + rows]) for k in range(0, self.config.clients, rows)]

        def train() -> None:
            for ids in calls:
                state = method.client.start(self.scenario.initial, self.roster, ids, self.config.seed)
                down = method.server.down(server, ids, self.roster, round_)
                received = {k: r if r.index.dim() == 2 else r.bank[r.index] for k, r in down.items()}
                method.client.train(state, received, Cohort(objective, ids, self.roster, round_), round_)

        return train


def medians(variants: list[Callable[[], object]], repeats: int, device: str) -> list[float]:
    """Median seconds of each variant, interleaved, after one turn to warm up."""
    times: list[list[float]] = [[] for _ in variants]
    for _ in range(repeats + 1):
        for variant, seconds in zip(variants, times, strict=True):
            began = perf_counter()
            variant()
            if device == "cuda":
                torch.cuda.synchronize()
            seconds.append(perf_counter() - began)
    return [statistics.median(seconds[1:]) for seconds in times]


def line(name: str, seconds: list[float]) -> str:
    """Milliseconds of each variant, with the first one's ratio to it."""
    first = seconds[0]
    return f"{name:<22}" + "".join(f"{s * 1e3:>10.1f} ms ({first / s:4.2f})" for s in seconds)


def main(repeats: int, words: list[str]) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    over = read_overrides(words)
    config: Config = resolve(SETTINGS, over)
    device = torch.cuda.get_device_name() if config.device == "cuda" else platform.processor() or platform.machine()
    print(f"{device}, {platform.system()}, Python {platform.python_version()}, torch {torch.__version__}")
    print(f"batch {config.batch_size}, {config.precision}, 1 thread, n = {repeats} interleaved repeats\n")
    print(f"{'gradient':<22}{'loop':>20}{'stacked':>20}")
    for model in MODELS:
        for n in (12, 20):
            f = Federation({"model": {"name": model}, "clients": n}, over)
            variants = [f.gradient(f.loop), f.gradient(f.stacked)]
            print(line(f"{model}, {n} rows", medians(variants, repeats, config.device)), flush=True)
    print(f"\n{'round of 20 clients':<22}{'loop, 1 row':>20}{'loop, 20 rows':>20}{'stacked, 20 rows':>20}")
    for method in ("fedavg", "apple"):
        for model in MODELS:
            f = Federation({"method": {"name": method}, "model": {"name": model}, "clients": 20}, over)
            variants = [f.round(f.loop, 1), f.round(f.loop, 20), f.round(f.stacked, 20)]
            print(line(f"{method}, {model}", medians(variants, max(3, repeats // 4), config.device)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, sys.argv[2:])

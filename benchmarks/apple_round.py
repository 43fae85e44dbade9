"""What APPLE's personalization costs: its round against FedAvg's, interleaved in one process with one thread.

    python benchmarks/apple_round.py [ROUNDS] [key=value ...]

LeNet 20-50-500, batch 256, 12 clients, noise images (the values of pixels do not change the work). Each repetition
runs one training round of either method on the same clients' data; the ratio is taken pair by pair. No evaluation.
"""

import platform
import statistics
import sys
from time import perf_counter

import numpy as np
import torch

from pomona.config import Config, read_overrides, resolve
from pomona.data.dataset import Dataset
from pomona.federation.clients import Clients, Visit, stack
from pomona.federation.loop import round_of
from pomona.federation.round import Roster
from pomona.partition import divide
from pomona.rng import stream
from pomona.scenario import Scenario

CLIENT_IMAGES = 1_880  # 20 % go to testing, 15 % of the rest to validation: 1,278 for training, 5 batches of 256

SETTINGS = {"clients": 12, "batch_size": 256, "momentum": 0.9, "model": {"name": "lenet"}, "data": {"name": "noise"}}


def noise(n: int) -> Dataset:
    """Images as large as MNIST's, without its pixels."""
    draw = stream(0, "noise")
    x, y = draw.integers(0, 256, (n, 28, 28, 1), dtype=np.uint8), draw.integers(0, 10, n)
    return Dataset("noise", "image", x, y, tuple("0123456789"), n, (127.5,), (127.5,))


class Rounds:
    """A method, a round at a time, in this process."""

    def __init__(self, config: Config, dataset: Dataset) -> None:
        partition = divide(dataset, config.data, config.partition, config.clients, config.seed)
        scenario = Scenario(config, dataset, partition)
        self.config, self.ids = config, tuple(range(config.clients))
        self.method = config.method.method()
        self.roster = Roster(tuple(len(c.train) for c in partition.clients))
        self.clients = Clients(
            self.method.client, scenario.objective(), self.roster, scenario.initial, self.ids, config.seed
        )
        self.state = self.method.server.start(scenario.initial, self.roster, config.seed)

    def time(self, number: int) -> float:
        """Seconds of one round: downlink, local training of all clients, aggregation."""
        began = perf_counter()
        round_ = round_of(self.config, number)
        replies = self.clients.visit(Visit(round_, self.ids), self.method.server.down(self.state, self.ids, round_))
        uplink = stack(replies, lambda r: r.uplink)
        self.state = self.method.server.aggregate(self.state, uplink, self.ids, self.roster, round_)
        self.clients.commit()
        return perf_counter() - began


def main(rounds: int, words: list[str]) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    configs = [resolve(SETTINGS, {"method": {"name": m}}, read_overrides(words)) for m in ("fedavg", "apple")]
    dataset = noise(CLIENT_IMAGES * configs[0].clients)
    fedavg, apple = (Rounds(c, dataset) for c in configs)
    pairs = [(fedavg.time(n), apple.time(n)) for n in range(1, rounds + 2)][1:]  # the first pair warms up
    ratios = sorted(a / f for f, a in pairs)
    c = configs[0]
    print(f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}, torch {torch.__version__}")
    print(f"{c.model.name}, batch {c.batch_size}, {c.clients} clients, 1 thread, n = {rounds} interleaved pairs")
    for name, times in zip(("FedAvg", "APPLE"), zip(*pairs, strict=True), strict=True):
        print(f"{name:<7} median {statistics.median(times):.3f} s a round (min {min(times):.3f}, max {max(times):.3f})")
    print(f"ratio   median {statistics.median(ratios):.3f} (min {ratios[0]:.3f}, max {ratios[-1]:.3f})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15, sys.argv[2:])

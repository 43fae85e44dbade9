"""What APPLE's personalization costs: its round against FedAvg's, interleaved in one process with one thread.

    python benchmarks/apple_round.py [ROUNDS] [key=value ...]

LeNet 20-50-500, batch 256, 12 clients, noise images. Each turn runs one training round of either method on the same
clients' data. No evaluation.
"""

import sys
from functools import partial

import torch

from pomona.config import Tree, read_overrides, resolve
from rounds import Rounds, noise, scenario_of
from timing import Times, seconds

CLIENT_IMAGES = 1_880  # 20 % go to testing, 15 % of the rest to validation: 1,278 for training, 5 batches of 256

SETTINGS: Tree = {
    "clients": 12,
    "batch_size": 256,
    "momentum": 0.9,
    "model": {"name": "lenet"},
    "data": {"name": "noise"},
}


def main(turns: int, words: list[str]) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    configs = [resolve(SETTINGS, {"method": {"name": m}}, read_overrides(words)) for m in ("apple", "fedavg")]
    c = configs[0]
    dataset = noise(CLIENT_IMAGES * c.clients)
    runs = {c.method.name: Rounds(scenario_of(c, dataset)) for c in configs}
    times = Times.interleaved({name: partial(seconds, r.run) for name, r in runs.items()}, turns)
    times.report("APPLE's round against FedAvg's", model=c.model.name, batch=c.batch_size, clients=c.clients, threads=1)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15, sys.argv[2:])

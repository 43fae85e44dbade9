"""Is bf16 as accurate as fp32? The same runs in both, the same seeds, accuracies beside each other.

    POMONA_DATA=folder python benchmarks/precision.py [SEEDS] [key=value ...]

MNIST and CIFAR-10 cut down to minutes, FedAvg and APPLE, 8 clients with Dirichlet(0.5) labels. Test accuracy of the
model that each method is judged by, mean over clients, in the last round. Where the processor has no bf16 arithmetic it
is emulated: the numbers are those of bf16, the time is not.
"""

import statistics
import sys

import pomona
from pomona.config import Tree, read_overrides, resolve
from timing import machine

BASE: Tree = {
    "clients": 8,
    "rounds": 8,
    "batch_size": 32,
    "lr": 0.05,
    "momentum": 0.5,
    "eval_every": 8,
    "partition": {"name": "dirichlet", "beta": 0.5},
}
DATA: dict[str, Tree] = {
    "mnist": {"data": {"name": "mnist", "train_limit": 3_000, "test_limit": 2_000}, "model": {"name": "lenet"}},
    "cifar10": {"data": {"name": "cifar10", "train_limit": 3_000, "test_limit": 2_000}, "model": {"name": "fomo-cnn"}},
}
METHODS: dict[str, Tree] = {
    "fedavg": {"method": {"name": "fedavg"}},
    "apple": {"method": {"name": "apple", "dr_lr": 0.01, "mu": 0.01}, "lr": 0.1},
}


def accuracy(*layers: Tree) -> float:
    """Of one run, in the last round."""
    summary = pomona.run(resolve(BASE, *layers)).summary
    return float(summary["models"][summary["headline"]]["last"]["value"])


def main(seeds: int, words: list[str]) -> None:
    """Run and print."""
    print(*(f"{k}: {v}" for k, v in machine().items()), sep="\n")
    for data, where in DATA.items():
        for method, how in METHODS.items():
            pairs = [
                [accuracy(where, how, {"seed": seed, "precision": p}, read_overrides(words)) for p in ("fp32", "bf16")]
                for seed in range(seeds)
            ]
            fp32, bf16 = (statistics.mean(column) for column in zip(*pairs, strict=True))
            gaps = ", ".join(f"{100 * (b - a):+.2f}" for a, b in pairs)
            print(
                f"{data:<8} {method:<7} fp32 {100 * fp32:.2f}  bf16 {100 * bf16:.2f}  bf16 - fp32 by seed: {gaps}",
                flush=True,
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3, sys.argv[2:])

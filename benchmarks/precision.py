"""Accuracy of bf16 against fp32: the same runs in both, with the same seeds.

    POMONA_DATA=folder python benchmarks/precision.py [--quick] [key=value ...]

MNIST and CIFAR-10 cut down, FedAvg, APPLE, Ditto and FedALA, 8 clients with Dirichlet(0.5) labels.
Last-round test accuracy of each method's headline model, mean over clients. ``engine=native`` for
the native engine, ``data=mnist`` for one data set alone. Without bf16 arithmetic in the processor
it is emulated: the numbers are those of bf16, the time is not. ``--quick`` needs no data: it uses
scikit-learn's digits.
"""

import statistics
from dataclasses import dataclass

import pomona
from pomona.config import read_overrides, resolve
from pomona.core.toml import Tree
from timing import Table, chosen, publish

BASE: Tree = {
    "engine": "torch",
    "clients": 8,
    "rounds": 8,
    "batch_size": 32,
    "lr": 0.05,
    "momentum": 0.5,
    "eval_every": 8,
    "partition": {"name": "dirichlet", "beta": 0.5},
}
DATA: dict[str, Tree] = {
    "mnist": {
        "data": {"name": "mnist", "train_limit": 3_000, "test_limit": 2_000},
        "model": {"name": "lenet"},
    },
    "cifar10": {
        "data": {"name": "cifar10", "train_limit": 8_000, "test_limit": 2_000},
        "model": {"name": "fomo-cnn"},
        "rounds": 20,
        "eval_every": 20,
    },
}
METHODS: dict[str, Tree] = {
    "fedavg": {"method": {"name": "fedavg"}},
    "apple": {"method": {"name": "apple", "dr_lr": 0.01, "mu": 0.01}, "lr": 0.1},
    "ditto": {"method": {"name": "ditto"}},
    "fedala": {"method": {"name": "fedala"}},
}


@dataclass(frozen=True)
class Size:
    """Number of seeds, and data sets with their networks."""

    seeds: int
    data: dict[str, Tree]


FULL, QUICK = (
    Size(5, DATA),
    Size(1, {"digits": {"data": {"name": "digits"}, "model": {"name": "mlp"}, "rounds": 2}}),
)


def accuracy(*layers: Tree) -> float:
    """Last-round accuracy of one run."""
    summary = pomona.run(resolve(BASE, *layers)).summary
    return float(summary["models"][summary["headline"]]["last"]["test"])


def main(size: Size, arguments: list[str]) -> list[Table]:
    """Run and print."""
    rows: dict[str, Table] = {}
    overrides = read_overrides(arguments)
    selected = overrides.pop("data", {}).get("name")
    for data, data_settings in size.data.items():
        if selected not in {None, data}:
            continue
        for method, method_settings in METHODS.items():
            fp32, bf16 = (
                [
                    accuracy(
                        data_settings, method_settings, {"seed": seed, "precision": p}, overrides
                    )
                    for seed in range(size.seeds)
                ]
                for p in ("fp32", "bf16")
            )
            rows[f"{data}, {method}"] = {
                "fp32 %": 100 * statistics.mean(fp32),
                "bf16 %": 100 * statistics.mean(bf16),
                "bf16 - fp32, by seed": ", ".join(
                    f"{100 * (b - a):+.2f}" for a, b in zip(fp32, bf16, strict=True)
                ),
            }
    return [publish("Accuracy in bf16 and in fp32", rows, size.seeds)]


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))

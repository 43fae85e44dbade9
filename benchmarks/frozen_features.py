"""Savings from training only the head on features computed once: against the whole network, and
without caching.

    python benchmarks/frozen_features.py [--quick] [key=value ...]

ResNet-18 on noise of CIFAR-10's size, FedAvg and APPLE, one process, one thread, no evaluation. The
four variants of each method take turns; "CPU s" is this process's own time, which other load
affects less. The features are computed once, before the first round: "s features". Bytes are those
of all clients in a round.
"""

from dataclasses import dataclass
from time import perf_counter

import torch

from pomona.config import read_overrides, resolve
from pomona.core.toml import Tree
from rounds import Rounds, noise, scenario_of
from timing import Table, chosen, measured, publish

SETTINGS: Tree = {
    "engine": "torch",
    "lr": 0.01,
    "clients": 6,
    "batch_size": 32,
    "model": {"name": "resnet18"},
    "data": {"name": "rounds:noise", "test_share": 0.1, "validation_share": 0.0},
}
METHODS = ("fedavg", "apple")
VARIANTS: dict[str, Tree] = {
    "whole": {},
    "head, features each time": {"train": "head", "cache_features": "off"},
    "head, features once": {"train": "head"},
    "LoRA on the last block, features once": {
        "train": {"lora": {"rank": 4, "on": ["layer4.1.residual.conv?"]}}
    },
}


@dataclass(frozen=True)
class Size:
    """Total images, their side, and turns."""

    images: int
    side: int
    turns: int


FULL = Size(240, 32, 3)
QUICK = Size(30, 8, 1)


def main(size: Size, arguments: list[str]) -> list[Table]:
    """Measure and print."""
    torch.set_num_threads(1)
    images, overrides = noise(size.images, (size.side, size.side, 3)), read_overrides(arguments)
    tables = []
    for method in METHODS:
        runs, feature_seconds, lengths, rows = {}, {}, {}, {}
        for variant, model in VARIANTS.items():
            config = resolve(SETTINGS, {"method": {"name": method}, "model": model}, overrides)
            scenario = scenario_of(config, images)
            start_time = perf_counter()
            _ = scenario.resident
            feature_seconds[variant] = (
                perf_counter() - start_time if scenario.network.keeps_features else None
            )
            runs[variant], lengths[variant] = Rounds(scenario), len(scenario.initial())
        wall, cpu = measured({variant: run.run for variant, run in runs.items()}, size.turns)
        for variant, run in runs.items():
            downlink, uplink = run.traffic
            rows[variant] = {
                "median s": wall.median(variant),
                "CPU s": cpu.median(variant),
                "times as fast": 1 / cpu.cost(variant),
                "row": lengths[variant],
                "MB down": downlink / 1e6,
                "MB up": uplink / 1e6,
                "s features": feature_seconds[variant],
            }
            run.close()
        notes = {"clients": config.clients, "batch": config.batch_size, "images": size.images}
        tables.append(publish(f"Frozen features: {method}", rows, wall.turns, **notes))
    return tables


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))

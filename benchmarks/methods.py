"""Cost of every method's round against FedAvg's, interleaved in one process with one thread.

    python benchmarks/methods.py [--quick] [key=value ...]

Three tables: LeNet with batch 256 and the ``cnn`` with batch 10, twelve clients, for the methods
with a target; then all registered methods at a small size. Images of noise, no evaluation, no
differential privacy. The cost is the ratio of medians, of wall time and of CPU time. FedFomo
downloads five models; ALA's first stage ends before the first counted turn. "one call" has all
clients as rows of one call. ``key=value`` changes settings of all three: ``engine=native`` uses the
native engine where possible.
"""

from dataclasses import dataclass

import torch

from pomona.config import read_overrides, resolve
from pomona.core.toml import Tree
from pomona.methods import METHODS
from rounds import Rounds, noise, scenario_of
from timing import Table, chosen, measured, publish

BASELINE = "fedavg"
ONE_CALL = ", one call"  # all clients train as rows of one call
DATA: Tree = {
    "engine": "torch",
    "lr": 0.01,
    "data": {"name": "rounds:noise", "test_share": 0.2, "validation_share": 0.15},
}
TRAINING_SHARE = 0.8 * 0.85  # of a client's images, for training
FILLED = 0.97  # of the batches, so that no client has a sample over: that would be a step more


@dataclass(frozen=True)
class Comparison:
    """A measurement: settings, whole batches per client, methods with their targets, turns."""

    title: str
    settings: Tree
    batches: int
    targets: dict[str, float | None]
    turns: int


TARGETS = {  # at batch 256 and at batch 10
    "apple": (1.05, 1.5),
    f"apple{ONE_CALL}": (1.05, 1.5),
    "fedamp": (1.03, 1.15),
    "fedala": (1.15, 1.3),
    "fedfomo": (1.3, 1.4),
    "ditto": (2.0, 2.1),
    "apfl": (2.1, 2.1),
}
LARGE: dict[str, float | None] = {name: large for name, (large, _) in TARGETS.items()}
LITTLE: dict[str, float | None] = {name: little for name, (_, little) in TARGETS.items()}
LENET: Tree = {"model": {"name": "lenet"}, "batch_size": 256, "momentum": 0.9, "clients": 12}
CNN: Tree = {"model": {"name": "cnn"}, "batch_size": 10, "clients": 12}
SMALL: Tree = {"model": {"name": "cnn"}, "batch_size": 32, "clients": 6}
ALL_METHODS: dict[str, float | None] = dict.fromkeys(METHODS)

FULL = (
    Comparison("Batch 256", LENET, 3, LARGE, 7),
    Comparison("Batch 10", CNN, 24, LITTLE, 9),
    Comparison("All methods, batch 32", SMALL, 4, ALL_METHODS, 5),
)
QUICK = (
    Comparison("Batch 10", {**CNN, "model": {"name": "mlp"}, "clients": 3}, 1, FULL[1].targets, 1),
    Comparison(
        "All methods, batch 4",
        {"model": {"name": "mlp"}, "batch_size": 4, "clients": 3},
        1,
        ALL_METHODS,
        1,
    ),
)


def settings_of(line: str, clients: int) -> Tree:
    """The measured settings of a line's method."""
    name = line.removesuffix(ONE_CALL)
    fields = METHODS[name].model_fields
    fomo = {"budget": 5} if name.startswith("fedfomo") else {}
    # later rounds are the same whatever the first took
    ala = {"stage_epochs": 1} if "stage_epochs" in fields else {}
    return {
        "method": {"name": name, **fomo, **ala},
        "rows_per_call": 1 if line == name else clients,
    }


def measure(comparison: Comparison, arguments: list[str]) -> Table:
    """One comparison."""
    names = [BASELINE, *(name for name in comparison.targets if name != BASELINE)]
    overrides = read_overrides(arguments)
    clients = resolve(comparison.settings, overrides).clients
    configs = {
        n: resolve(DATA, comparison.settings, settings_of(n, clients), overrides) for n in names
    }
    c = configs[BASELINE]
    images = noise(round(c.clients * comparison.batches * c.batch_size * FILLED / TRAINING_SHARE))
    runs = {name: Rounds(scenario_of(config, images)) for name, config in configs.items()}
    for run in runs.values():
        run.run()  # ALA's first stage is in the second round, which is the turn that warms up
    wall, cpu = measured({name: run.run for name, run in runs.items()}, comparison.turns)
    rows = {
        name: {
            "median s": wall.median(name),
            "cpu median s": cpu.median(name),
            "cost": wall.cost(name),
            "cpu cost": cpu.cost(name),
            "target": comparison.targets.get(name),
        }
        for name in names
    }
    sizes = sorted(set(runs[BASELINE].roster.sizes))
    return publish(
        f"{comparison.title}: a round against FedAvg's",
        rows,
        wall.turns,
        model=c.model.name,
        batch=c.batch_size,
        clients=c.clients,
        training_images_a_client=sizes,
        precision=c.precision,
        engine=c.engine,
        threads=1,
    )


def main(comparisons: tuple[Comparison, ...], arguments: list[str]) -> list[Table]:
    """Measure and print."""
    torch.set_num_threads(1)
    return [measure(comparison, arguments) for comparison in comparisons]


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))

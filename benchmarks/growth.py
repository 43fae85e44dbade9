"""Growth of a round with the number of clients, of parameters, and of downloaded models (M).

    python benchmarks/growth.py [--quick] [key=value ...]

Clients: FedAvg and APPLE (M = 5) at batch 32, the same total number of training images, spread over
more and more clients; again with a network so small that 500 clients' copies of 500 cores fit into
memory. Parameters: the same two with wider and wider hidden layers. M: APPLE under larger and
larger budgets. One process with one thread, images of noise, no evaluation; within a table all take
turns. The growth is the ratio of medians to the method's first line. Cases that would keep more
bytes than a third of the free memory are skipped with a note: "kept" is the largest total that the
clients keep from round to round. For the copies of single clients and their growth see
``kept_copies.py``.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pomona.config import Config, read_overrides, resolve
from pomona.core.round import Roster
from pomona.core.state import flatten
from pomona.core.toml import Tree
from pomona.federation.stale_models import matrix_bytes
from pomona.scenario import Scenario
from rounds import Rounds, noise, scenario_of
from timing import Table, chosen, measured, publish

TEST = 0.2
SETTINGS: Tree = {
    "engine": "torch",
    "lr": 0.01,
    "batch_size": 32,
    "data": {"name": "rounds:noise", "test_share": TEST, "validation_share": 0.0},
    "partition": {"name": "iid"},
}
METHODS: dict[str, Tree] = {"fedavg": {"name": "fedavg"}, "apple": {"name": "apple", "budget": 5}}
TARGET, TARGET_CLIENTS = 1.3, 500  # the target is for this many clients against the fewest
SMALL: Tree = {"name": "mlp", "hidden": [2]}


@dataclass(frozen=True)
class Size:
    """The growing quantities, total training images, the network if it does not grow, a small one
    for copies, turns.
    """

    clients: tuple[int, ...]
    hidden: tuple[int, ...]
    budgets: tuple[int, ...]
    images: int
    model: Tree
    small: Tree
    turns: int


# 15,000: thirty a client of 500, within one batch although clients differ by a few, so that nobody
# takes more steps.
FULL = Size(
    (12, 50, 100, 500), (64, 256, 1024, 4096), (1, 2, 5, 11), 15_000, {"name": "cnn"}, SMALL, 3
)
QUICK = Size(
    (3, 4), (4, 8), (1,), 24, {"name": "mlp", "hidden": [4]}, {"name": "mlp", "hidden": [2]}, 1
)


def kept_bytes(scenario: Scenario, rounds: int) -> int:
    """Largest number of bytes that all clients keep after this many rounds, from shapes alone."""
    config, real = scenario.config, scenario.initial
    shape = real()
    initial = replace(real, make=lambda _: torch.empty_like(shape, device="meta"))
    roster = Roster(tuple(len(c.train) for c in scenario.partition.clients))
    client = config.method.method().client
    state = sum(
        t.nbytes
        for t in flatten(client.start(initial, roster, (0,), config.seed), "state").values()
    )
    copies = matrix_bytes(client.keeps, initial, roster) * min(rounds + 1, config.clients)
    return config.clients * state + copies


def free() -> int:
    """Bytes available without swapping; unbounded if the system does not report them."""
    path = Path("/proc/meminfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    available = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    return available[0] if available else 2**62


def compare(
    title: str, configs: dict[str, Config], images: int, turns: int, target: float | None = None
) -> Table:
    """One table; a line's name begins with the method's, and is compared with that method's first
    line.
    """
    dataset = noise(round(images / (1 - TEST)))
    scenarios = {name: scenario_of(config, dataset) for name, config in configs.items()}
    bytes_ = {name: kept_bytes(scenario, turns + 1) for name, scenario in scenarios.items()}
    limit, runs = free() // 3, dict[str, Rounds]()
    for name, scenario in scenarios.items():
        # Until they are committed, a round's states are in memory next to the previous ones.
        if 2 * (bytes_[name] + sum(bytes_[line] for line in runs)) <= limit:
            runs[name] = Rounds(scenario)
    wall, cpu = measured({name: run.run for name, run in runs.items()}, turns)
    first = {
        name: next(line for line in configs if line.split()[0] == name.split()[0])
        for name in configs
    }
    last = {first[name]: name for name in configs}
    rows = {
        name: {
            "median s": wall.median(name) if name in runs else "not run",
            "growth": wall.cost(name, first[name]) if name in runs else None,
            "cpu growth": cpu.cost(name, first[name]) if name in runs else None,
            "target": target if last[first[name]] == name else None,
            "kept MB": round(bytes_[name] / 1e6, 1),
        }
        for name in configs
    }
    c = next(iter(configs.values()))
    return publish(
        title,
        rows,
        wall.turns,
        model=c.model.name,
        batch=c.batch_size,
        training_images=images,
        threads=1,
    )


def main(size: Size, arguments: list[str]) -> list[Table]:
    """Measure and print."""
    torch.set_num_threads(1)
    overrides = read_overrides(arguments)

    def config(method: Tree, clients: int, model: Tree) -> Config:
        return resolve(SETTINGS, {"method": method, "clients": clients, "model": model}, overrides)

    fixed, target = size.clients[0], TARGET if size.clients[-1] == TARGET_CLIENTS else None

    def clients(model: Tree) -> dict[str, Config]:
        return {
            f"{m}, {n} clients": config(method, n, model)
            for m, method in METHODS.items()
            for n in size.clients
        }

    widths = {
        f"{m}, {h} hidden units": config(method_settings, fixed, {"name": "mlp", "hidden": [h]})
        for m, method_settings in METHODS.items()
        for h in size.hidden
    }
    budgets = {
        f"apple, M = {M}": config({"name": "apple", "budget": M}, fixed, size.model)
        for M in size.budgets
    }
    title = "Clients: a round at the same number of images in all"
    return [
        compare(title, clients(size.model), size.images, size.turns, target),
        compare(f"{title}, a small network", clients(size.small), size.images, size.turns, target),
        compare(f"Parameters: a round of {fixed} clients", widths, size.images, size.turns),
        compare(f"M: APPLE's round of {fixed} clients", budgets, size.images, size.turns),
    ]


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))

"""The stacked objective against the loop: gradients of many rows, and a training round of many
clients in one call.

    python benchmarks/stacked.py [--quick] [key=value ...]

Noise images of MNIST's size, batch 10, one thread. The variants of a network take turns in one
process, and are compared with the loop objective. ``device=cuda`` measures on a GPU.
"""

from dataclasses import dataclass
from functools import partial

import torch

from pomona.config import read_overrides, resolve
from pomona.core.round import Roster
from pomona.core.toml import Tree
from pomona.federation.round_plan import round_of
from pomona.objective.objective import Objective
from pomona.objective.stacked import StackedObjective
from pomona.objective.training import LocalTraining
from rounds import noise, scenario_of
from timing import Table, Times, Work, chosen, publish, seconds

SETTINGS: Tree = {
    "engine": "torch",
    "lr": 0.01,
    "batch_size": 10,
    "data": {"name": "rounds:noise"},
    "partition": {"name": "dirichlet", "beta": 1.0},
}


@dataclass(frozen=True)
class Size:
    """Networks, row counts of a gradient, clients of a round, images per client, turns of gradients
    and rounds.
    """

    models: tuple[str, ...]
    rows: tuple[int, ...]
    clients: int
    images: int
    turns: tuple[int, int]


FULL = Size(("mlp", "lenet", "cnn"), (12, 20), 20, 120, (20, 5))
QUICK = Size(("mlp",), (3,), 3, 12, (1, 1))


class Federation:
    """A scenario with both engines."""

    def __init__(self, images: int, *layers: Tree) -> None:
        config = self.config = resolve(SETTINGS, *layers)
        self.scenario = scenario_of(config, noise(images * config.clients))
        self.roster = Roster(tuple(len(c.train) for c in self.scenario.partition.clients))
        loop = self.scenario.objective()
        module = self.scenario.module().to(config.device)
        self.loop: Objective = loop
        self.stacked: Objective = StackedObjective(
            module, loop.space, loop.data, loop.criterion, config.precision
        )

    def gradient(self, objective: Objective) -> Work:
        """One gradient of every client's row on its first batch."""
        W = torch.stack([self.scenario.initial(i) for i in range(self.config.clients)])
        indices = [rows[: self.config.batch_size] for rows in self.loop.data.rows["train"]]
        return lambda: objective.gradient(W, indices)

    def round(self, objective: Objective, rows: int) -> Work:
        """Local training of every client in round 1, with this many rows per call."""
        method, round_ = self.config.method.method(), round_of(self.config, 1)
        server = method.server.start(self.scenario.initial, self.roster, self.config.seed)
        longest_first = sorted(range(self.config.clients), key=lambda i: (-self.roster.sizes[i], i))
        groups = [tuple(longest_first[k : k + rows]) for k in range(0, self.config.clients, rows)]

        def train() -> None:
            for ids in groups:
                state = method.client.start(
                    self.scenario.initial, self.roster, ids, self.config.seed
                )
                downlink = method.server.downlink(server, ids, self.roster, round_)
                received = {
                    k: r if r.index.dim() == 2 else r.bank[r.index] for k, r in downlink.items()
                }
                method.client.train(
                    state, received, LocalTraining(objective, ids, self.roster, round_), round_
                )

        return train


def timed(work: Work, device: str) -> float:
    """Seconds of one call, until the device has finished."""

    def synchronised() -> None:
        work()
        if device == "cuda":
            torch.cuda.synchronize()

    return seconds(synchronised)


def compare(
    title: str, works: dict[str, dict[str, Work]], device: str, turns: int, **notes: object
) -> Table:
    """One table of several groups of candidates; those of a group take turns."""
    rows = {}
    for group, variants in works.items():
        times = Times.interleaved(
            {name: partial(timed, work, device) for name, work in variants.items()}, turns
        )
        for name in variants:
            rows[f"{group}: {name}"] = {
                "median ms": 1e3 * times.median(name),
                "times as fast": 1 / times.cost(name),
            }
    return publish(title, rows, turns, device=device, **notes)


def main(size: Size, arguments: list[str]) -> list[Table]:
    """Measure and print."""
    torch.set_num_threads(1)
    overrides = read_overrides(arguments)
    config = resolve(SETTINGS, overrides)
    device = torch.cuda.get_device_name() if config.device == "cuda" else "cpu"
    notes = {
        "name": device,
        "batch": config.batch_size,
        "precision": config.precision,
        "threads": 1,
    }
    gradients, rounds = dict[str, dict[str, Work]](), dict[str, dict[str, Work]]()
    for model in size.models:
        for n in size.rows:
            f = Federation(size.images, {"model": {"name": model}, "clients": n}, overrides)
            gradients[f"{model}, {n} rows"] = {
                "loop": f.gradient(f.loop),
                "stacked": f.gradient(f.stacked),
            }
    n = size.clients
    for method in ("fedavg", "apple"):
        for model in size.models:
            f = Federation(
                size.images,
                {"method": {"name": method}, "model": {"name": model}, "clients": n},
                overrides,
            )
            rounds[f"{method}, {model}"] = {
                "loop, 1 row": f.round(f.loop, 1),
                f"loop, {n} rows": f.round(f.loop, n),
                f"stacked, {n} rows": f.round(f.stacked, n),
            }
    return [
        compare("Gradients of many rows", gradients, config.device, size.turns[0], **notes),
        compare(f"Local training of {n} clients", rounds, config.device, size.turns[1], **notes),
    ]


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))

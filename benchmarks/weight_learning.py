"""FedALA's first weight learning: features of the lower layers kept between epochs, against
recomputed in each.

    python benchmarks/weight_learning.py [--quick] [key=value ...]

A round in which all clients learn their weights for ``stage_epochs``, next to the previous round,
which only trains. One process with one thread, images of noise, no evaluation; both give
bit-identical numbers, which is checked. All take turns.
"""

from unittest.mock import patch

import torch

from pomona.config import Config, read_overrides, resolve
from pomona.core.toml import Tree
from pomona.objective.objective import ConstantFeatures
from rounds import Rounds, noise, scenario_of
from timing import Table, chosen, measured, publish

SETTINGS: Tree = {
    "engine": "torch",
    "lr": 0.01,
    "batch_size": 10,
    "data": {"name": "rounds:noise", "test_share": 0.25, "validation_share": 0.0},
    "partition": {"name": "iid"},
}
FULL = ({"clients": 4, "model": "cnn", "method": {"name": "fedala", "stage_epochs": 20}}, 230, 5)
QUICK = ({"clients": 2, "model": "mlp", "method": {"name": "fedala", "stage_epochs": 2}}, 12, 1)


class Stage:
    """The second round of a federation that restarts each time; ``caches``: whether features are
    kept.
    """

    def __init__(self, config: Config, images: int, caches: bool) -> None:
        self.scenario, self.caches = (
            scenario_of(config, noise(images * config.clients * 4 // 3)),
            caches,
        )
        self.model = torch.empty(0)

    def ready(self) -> None:
        """Run the first round."""
        self.rounds = Rounds(self.scenario)
        self.rounds.run()

    def learn(self) -> None:
        """Run the round with the stage."""
        get = ConstantFeatures.get
        cached = get if self.caches else lambda _, __, make: make()
        with patch.object(ConstantFeatures, "get", cached):
            self.rounds.run()
        self.model = self.rounds.state


def main(size: tuple[Tree, int, int], arguments: list[str]) -> list[Table]:
    """Measure and print."""
    torch.set_num_threads(1)
    tree, images, turns = size
    config = resolve(SETTINGS, tree, read_overrides(arguments))
    cached, recomputed = Stage(config, images, True), Stage(config, images, False)

    works = {
        "a round of training": cached.ready,
        "with the stage, features kept": cached.learn,
        "a round of training again": recomputed.ready,
        "with the stage, features computed each time": recomputed.learn,
    }
    wall, cpu = measured(works, turns)
    assert torch.equal(cached.model, recomputed.model), "the two must give the same numbers"
    first = next(iter(works))
    rows = {
        name: {
            "median s": wall.median(name),
            "median cpu s": cpu.median(name),
            "cpu, cost": cpu.cost(name, first),
        }
        for name in works
    }
    notes = {
        "model": config.model.name,
        "batch": config.batch_size,
        "clients": config.clients,
        "images": images,
    }
    return [publish("FedALA's first weight learning", rows, turns, **notes, threads=1)]


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))

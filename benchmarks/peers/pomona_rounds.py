"""Pomona on the task: python pomona_rounds.py TASK METHOD ROUNDS [--processes 2] [--engine native].

The rounds are those of ``pomona run``, without its record and its evaluations of models that no
other peer evaluates.
"""

import sys
from pathlib import Path

import numpy as np
import torch

sys.path.append(str(Path(__file__).parents[1]))
import turns
from task import METHODS, Task, arguments

from pomona.config import Config, resolve
from pomona.core.toml import Tree
from pomona.data.dataset import Dataset
from pomona.partition.partition import ClientRows, Partition
from pomona.scenario import Scenario
from rounds import Rounds


def method(name: str) -> Tree:
    """A method's settings for Pomona."""
    known = METHODS[name]
    match name:
        case "fedala":
            own: Tree = {"sample_share": known["share"], "weight_lr": known["eta"]}
        case "apple":
            own = {"dr_lr": known["dr_lr"], "mu": known["mu"], "schedule_share": known["L"]}
        case _:
            own = dict(known)
    return {"name": name, **own}


def scenario(task: Task, config: Config) -> Scenario:
    """The scenario that a task was written from, with other settings."""
    s, none = task.rows, np.empty(0, np.int64)
    shift, scale = (tuple(s[name].tolist()) for name in ("shift", "scale"))
    images, labels = np.asarray(task.images), np.asarray(task.labels)
    dataset = Dataset(
        "task", "image", images, labels, tuple("0123456789"), len(labels), shift, scale
    )
    clients = tuple(
        ClientRows(s[f"train_{i}"], none, s[f"test_{i}"]) for i in range(config.clients)
    )
    return Scenario(config, dataset, Partition(clients, {}))


def main() -> None:
    """Run."""
    given = arguments()
    torch.set_num_threads(given.threads)
    task = Task(given.folder)
    how: Tree = {"engine": given.engine, "precision": given.precision}
    changes: Tree = {"method": method(given.method), "rounds": given.rounds, **how}
    config = resolve({"model": {"name": "cnn"}}, task.settings, changes)
    headline = config.method.method().card.headline
    run = Rounds(scenario(task, config), given.processes, frozenset({headline[1]}))
    samples = sum(len(task.rows[f"test_{i}"]) for i in range(config.clients))
    for number in range(1, given.rounds + 1):
        turns.begin(number)
        run.run()
        turns.tell(number - (headline[1] == "received"), run.accuracies[headline], samples)
    turns.begin(given.rounds + 1)
    run.close()


if __name__ == "__main__":
    main()

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
    hyperparameters = METHODS[name]
    match name:
        case "fedala":
            settings: Tree = {
                "sample_share": hyperparameters["share"],
                "weight_lr": hyperparameters["eta"],
            }
        case "apple":
            settings = {
                "dr_lr": hyperparameters["dr_lr"],
                "mu": hyperparameters["mu"],
                "schedule_share": hyperparameters["L"],
            }
        case _:
            settings = dict(hyperparameters)
    return {"name": name, **settings}


def scenario(task: Task, config: Config) -> Scenario:
    """The scenario that a task was written from, with other settings."""
    s, empty = task.rows, np.empty(0, np.int64)
    shift, scale = (tuple(s[name].tolist()) for name in ("shift", "scale"))
    images, labels = np.asarray(task.images), np.asarray(task.labels)
    dataset = Dataset(
        "task", "image", images, labels, tuple("0123456789"), len(labels), shift, scale
    )
    clients = tuple(
        ClientRows(s[f"train_{i}"], empty, s[f"test_{i}"]) for i in range(config.clients)
    )
    return Scenario(config, dataset, Partition(clients, {}))


def main() -> None:
    """Run."""
    options = arguments()
    torch.set_num_threads(options.threads)
    task = Task(options.folder)
    backend: Tree = {"engine": options.engine, "precision": options.precision}
    changes: Tree = {"method": method(options.method), "rounds": options.rounds, **backend}
    config = resolve({"model": {"name": "cnn"}}, task.settings, changes)
    headline = config.method.method().card.headline
    run = Rounds(scenario(task, config), options.processes, frozenset({headline[1]}))
    samples = sum(len(task.rows[f"test_{i}"]) for i in range(config.clients))
    for number in range(1, options.rounds + 1):
        turns.wait_for(number)
        run.run()
        turns.report(number - (headline[1] == "received"), run.accuracies[headline], samples)
    turns.wait_for(options.rounds + 1)
    run.close()


if __name__ == "__main__":
    main()

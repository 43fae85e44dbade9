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
        case "fedfomo":
            settings = {"budget": hyperparameters["M"]}
        case _:
            settings = dict(hyperparameters)
    return {"name": name, **settings}


def scenario(task: Task, config: Config) -> Scenario:
    """The scenario that a task was written from, with other settings."""
    s = task.rows
    shift, scale = (tuple(s[name].tolist()) for name in ("shift", "scale"))
    images, labels = np.asarray(task.images), np.asarray(task.labels)
    classes = tuple(map(str, range(task.settings["classes"])))
    kind = "image" if images.ndim == 4 else "table"
    dataset = Dataset("task", kind, images, labels, classes, len(labels), shift, scale)
    # FedFomo chooses models by the last fifth of a client's training data, as in PFLlib
    share = 0.2 if config.method.name == "fedfomo" else 0

    def client(i: int) -> ClientRows:
        rows = s[f"train_{i}"]
        train, validation = np.split(rows, [len(rows) - int(share * len(rows))])
        return ClientRows(train, validation, s[f"test_{i}"])

    clients = tuple(map(client, range(config.clients)))
    return Scenario(config, dataset, Partition(clients, {}))


def main() -> None:
    """Run."""
    options = arguments()
    torch.set_num_threads(options.threads)
    task = Task(options.folder)
    backend: Tree = {"engine": options.engine, "precision": options.precision}
    changes: Tree = {"method": method(options.method), "rounds": options.rounds, **backend}
    model: Tree = {"name": "cnn"} if task.images.ndim == 4 else {"name": "mlp"}
    settings = {k: v for k, v in task.settings.items() if k != "classes"}
    config = resolve({"model": model}, settings, changes)
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

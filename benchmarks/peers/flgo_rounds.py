"""FLGo on the task: python flgo_rounds.py TASK fedavg ROUNDS --threads 2: FedAvg by its own server
and client.

``--processes`` above 1: its pool of processes, which it restarts in each round.
"""

import json
from types import ModuleType
from typing import Any

import flgo
import flgo_task
import torch
import turns
import vision  # noqa: F401
from flgo.algorithm import fedbase
from flgo.experiment.logger.simple_logger import SimpleLogger
from task import AT_ONCE, Task, arguments


class Server(fedbase.BasicServer):
    """FLGo's server, whose rounds wait for their turn."""

    def iterate(self) -> Any:
        """One round."""
        turns.wait_for(self.current_round)
        return super().iterate()


class Client(fedbase.BasicClient):
    """FLGo's client."""


class Logger(SimpleLogger):
    """FLGo's simple logger, which evaluates the global model on all test data."""

    def log_once(self, *args: Any, **kwargs: Any) -> None:
        """Evaluate."""
        super().log_once(*args, **kwargs)
        rounds = len(self.output["test_accuracy"]) - 1  # the first is that of the initial model
        if rounds:
            turns.report(rounds, self.output["test_accuracy"][-1], len(flgo_task.test_data))


def main() -> None:
    """Run."""
    options = arguments()
    torch.set_num_threads(options.threads)
    task = Task(options.folder.absolute())
    s = task.settings
    folder = task.folder / "flgo"
    folder.mkdir(exist_ok=True)
    names = [f"Client{i}" for i in range(s["clients"])]
    boundaries = (
        torch.tensor([len(task.rows[f"train_{i}"]) for i in range(s["clients"])]).cumsum(0).tolist()
    )
    clients = {
        n: {"data": [*range(a, b)]}
        for n, a, b in zip(names, [0, *boundaries[:-1]], boundaries, strict=True)
    }
    (folder / "info").write_text(
        json.dumps({"benchmark": "flgo_task", "scene": "horizontal", "num_clients": len(names)})
    )
    (folder / "data.json").write_text(json.dumps({"client_names": names, **clients}))
    for name in ("log", "record"):
        (folder / name).mkdir(exist_ok=True)
    flgo_task.load(task)
    algorithm = ModuleType("fedavg")
    algorithm.Server, algorithm.Client = Server, Client  # type: ignore[attr-defined]
    option = {
        "num_rounds": options.rounds + 1,  # the last one never gets its turn
        "num_epochs": s["local_epochs"],
        "batch_size": s["batch_size"],
        "learning_rate": s["lr"],
        "proportion": 1.0,
        "sample": "full",
        "aggregate": "weighted_com",
        "train_holdout": 0.0,
        "no_drop_last": True,
        "test_batch_size": AT_ONCE,
        "num_parallels": options.processes,
        "seed": s["seed"],
    }
    flgo.init(str(folder), algorithm, option, model=flgo_task, Logger=Logger).run()


if __name__ == "__main__":
    main()

"""Flower's simulation on the task: python flower_rounds.py TASK fedavg ROUNDS --processes 2
--threads 1: FedAvg.

Ray with as many actors of one processor each; an actor reads the data once. The server evaluates
the mean.
"""

from typing import Any

import torch
import turns
from flower_client import app
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from task import Task, arguments, right

server = ServerApp()
OPTIONS = arguments()
TASK = Task(OPTIONS.folder.absolute())


@server.main()
def main(grid: Any, context: Any) -> None:
    """Run all rounds, and one more, which never gets its turn."""
    n, test = TASK.settings["clients"], TASK.pooled("test")
    torch.set_num_threads(
        OPTIONS.processes * OPTIONS.threads
    )  # the actors are idle while it evaluates

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        if number:
            net = TASK.network()
            net.load_state_dict(arrays.to_torch_state_dict())
            turns.report(number, right(net, *test) / len(test[1]), len(test[1]))
        turns.wait_for(number + 1)
        return MetricRecord({})

    FedAvg(
        fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=n, min_available_nodes=n
    ).start(
        grid=grid,
        initial_arrays=ArrayRecord(TASK.network().state_dict()),
        train_config=ConfigRecord({"task": str(TASK.folder), "threads": OPTIONS.threads}),
        num_rounds=OPTIONS.rounds + 1,
        evaluate_fn=evaluate,
    )


if __name__ == "__main__":
    run_simulation(
        server,
        app,
        TASK.settings["clients"],
        backend_config={
            "init_args": {"num_cpus": OPTIONS.processes, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0},
        },
    )

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
from task import Cnn, Task, arguments, right

server = ServerApp()
GIVEN = arguments()
TASK = Task(GIVEN.folder.absolute())


@server.main()
def main(grid: Any, context: Any) -> None:
    """Run all rounds, and one more, which never gets its turn."""
    n, test = TASK.settings["clients"], TASK.joined("test")
    torch.set_num_threads(GIVEN.processes * GIVEN.threads)  # the actors are idle while it evaluates

    def judge(number: int, arrays: ArrayRecord) -> MetricRecord:
        if number:
            net = Cnn()
            net.load_state_dict(arrays.to_torch_state_dict())
            turns.tell(number, right(net, *test) / len(test[1]), len(test[1]))
        turns.begin(number + 1)
        return MetricRecord({})

    FedAvg(
        fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=n, min_available_nodes=n
    ).start(
        grid=grid,
        initial_arrays=ArrayRecord(TASK.start(Cnn()).state_dict()),
        train_config=ConfigRecord({"task": str(TASK.folder), "threads": GIVEN.threads}),
        num_rounds=GIVEN.rounds + 1,
        evaluate_fn=judge,
    )


if __name__ == "__main__":
    run_simulation(
        server,
        app,
        TASK.settings["clients"],
        backend_config={
            "init_args": {"num_cpus": GIVEN.processes, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0},
        },
    )

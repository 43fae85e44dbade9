"""fluke on the task: python fluke_rounds.py TASK METHOD ROUNDS --threads 2.

One process; models stay in memory; accuracy is the only metric. fluke leaves out a last batch of
one sample.
"""

from typing import Any

import torch
import turns
import vision  # noqa: F401
from fluke import DDict, FlukeENV
from fluke.algorithms.apfl import APFL
from fluke.algorithms.ditto import Ditto
from fluke.algorithms.fedala import FedALA
from fluke.algorithms.fedamp import FedAMP
from fluke.algorithms.fedavg import FedAVG
from fluke.data import FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.nets import EncoderHeadNet
from fluke.utils import ClientObserver, FederationObserver, ServerObserver
from task import AT_ONCE, METHODS, Task, arguments
from torchmetrics import Accuracy

ALGORITHMS = {"fedavg": FedAVG, "fedala": FedALA, "ditto": Ditto, "apfl": APFL, "fedamp": FedAMP}
# Which model a method's clients have evaluated, and after how many rounds of training in round n: n
# - this.
MOMENTS = {
    "fedala": ("pre_fit", 1),
    "fedamp": ("pre_fit", 1),
    "ditto": ("post_fit", 0),
    "apfl": ("post_fit", 0),
}


class Split:
    """A splitter for fluke: the clients' data and the server's."""

    def __init__(self, task: Task, personal: bool) -> None:
        self.task, self.personal, self.num_classes = task, personal, task.settings["classes"]

    def assign(self, n: int, batch_size: int) -> Any:
        """The clients' loaders of training and test data, and the server's of test data."""

        def loaders(datasets: Any, size: int, shuffle: bool) -> list[Any]:
            return [
                FastDataLoader(x, y, num_labels=self.num_classes, batch_size=size, shuffle=shuffle)
                for x, y in datasets
            ]

        test = (
            loaders(self.task.samples_by_client("test"), AT_ONCE, False)
            if self.personal
            else [None] * n
        )
        server_loader = (
            None if self.personal else loaders([self.task.pooled("test")], AT_ONCE, False)[0]
        )
        return (
            loaders(self.task.samples_by_client("train"), batch_size, True),
            test,
        ), server_loader


class Watch(FederationObserver, ServerObserver, ClientObserver):
    """Starts each round and reports its evaluations."""

    def __init__(self, task: Task, offset: int) -> None:
        self.task, self.offset = task, offset

    def start_round(self, round: int, **_: Any) -> None:  # noqa: A002 - fluke's name
        """Called before a round."""
        turns.wait_for(round)

    def server_evaluation(self, round: int, eval_type: str, evals: Any, **_: Any) -> None:  # noqa: A002
        """Called after the global model was evaluated in a round."""
        if eval_type == "global":
            turns.report(
                round,
                evals["accuracy"],
                sum(len(self.task.rows[f"test_{i}"]) for i in range(self.clients)),
            )

    def client_evaluation(self, round: int, client_id: int, evals: Any, **_: Any) -> None:  # noqa: A002
        """Called after a client's model was evaluated."""
        if round > 0:
            turns.report(
                round - self.offset, evals["accuracy"], len(self.task.rows[f"test_{client_id}"])
            )

    @property
    def clients(self) -> int:
        """Their number."""
        return int(self.task.settings["clients"])


def parameters(task: Task, method: str) -> Any:
    """Settings in fluke's format."""
    s, hyperparameters = task.settings, METHODS[method]
    lr, epochs = s["lr"], s["local_epochs"]
    client_settings = {
        "fedala": {
            "ala_sample_size": hyperparameters.get("share"),
            "eta": hyperparameters.get("eta"),
        },
        "ditto": {"lam": hyperparameters.get("lambda"), "tau": epochs},
        "apfl": {"lam": hyperparameters.get("alpha")},
        "fedamp": {"lam": lr * hyperparameters.get("lambda", 0)},  # it divides by the learning rate
    }.get(method, {})
    servers = {"apfl": {"tau": 1}, "fedamp": {"sigma": hyperparameters.get("sigma"), "alpha": 1.0}}
    network = task.network()
    model = EncoderHeadNet(network[0], network[1])
    client = {
        "batch_size": s["batch_size"],
        "local_epochs": epochs,
        "loss": "CrossEntropyLoss",
        **client_settings,
    }
    client |= {"optimizer": DDict(lr=lr), "scheduler": DDict(gamma=1, step_size=1)}
    if method not in ("fedavg", "fedala"):
        client["model"] = model
    return DDict(
        client=DDict(**client), server=DDict(weighted=True, **servers.get(method, {})), model=model
    )


def main() -> None:
    """Run."""
    options = arguments()
    torch.set_num_threads(options.threads)
    task = Task(options.folder)
    fluke, personal = FlukeENV(), options.method in MOMENTS
    moment, offset = MOMENTS.get(options.method, ("", 0))
    classes = task.settings["classes"]
    fluke.set_seed(task.settings["seed"])
    fluke.set_inmemory(True)
    fluke.set_evaluator(
        ClassificationEval(
            eval_every=1,
            n_classes=classes,
            accuracy=Accuracy(task="multiclass", num_classes=classes),
        )
    )
    fluke.set_eval_cfg(
        server=not personal,
        locals=False,
        pre_fit=moment == "pre_fit",
        post_fit=moment == "post_fit",
    )
    settings = parameters(task, options.method)
    run = ALGORITHMS[options.method](task.settings["clients"], Split(task, personal), settings)
    run.set_callbacks(Watch(task, offset))
    run.run(options.rounds + 1, 1.0)  # the last one never gets its turn


if __name__ == "__main__":
    main()

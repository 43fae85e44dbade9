"""PFLlib on the task: python pfllib_rounds.py TASK METHOD ROUNDS --threads 2; PFLLIB names its
checkout.

Its own servers, clients and evaluation, which reads each client's file again for each pass, drops
the last incomplete batch of training, and evaluates on all training data as well as on all test
data. ``--test-alone`` leaves the training data out of evaluation, for which PFLlib has no option.
"""

import os
import random  # noqa: TID251 - the generator that PFLlib draws from
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import turns
from task import METHODS, Task, arguments

DATA = "Task"
SERVERS = {
    "fedavg": ("serveravg", "FedAvg"),
    "fedala": ("serverala", "FedALA"),
    "ditto": ("serverditto", "Ditto"),
    "apfl": ("serverapfl", "APFL"),
    "fedamp": ("serveramp", "FedAMP"),
    "apple": ("serverapple", "APPLE"),
    "fedfomo": ("serverfomo", "FedFomo"),
}


def files(task: Task) -> Path:
    """Write the task as a PFLlib data set; returns the working folder, like the folder ``system``
    of its programs.
    """
    root = task.folder / "pfllib"
    for split in ("train", "test"):
        folder = root / "dataset" / DATA / split
        folder.mkdir(parents=True, exist_ok=True)
        for i, (x, y) in enumerate(task.samples_by_client(split)):
            np.savez_compressed(folder / f"{i}.npz", data={"x": x.numpy(), "y": y.numpy()})  # type: ignore[arg-type]
    work = root / "system"
    work.mkdir(exist_ok=True)
    return work


def settings(task: Task, method: str, rounds: int) -> Namespace:
    """Settings as PFLlib's command line would set them."""
    s, hyperparameters = task.settings, METHODS
    general = {
        "model": task.network(),
        "device": "cpu",
        "dataset": DATA,
        "num_classes": s["classes"],
        "global_rounds": rounds,
        "local_epochs": s["local_epochs"],
        "batch_size": s["batch_size"],
        "local_learning_rate": s["lr"],
        "num_clients": s["clients"],
        "algorithm": method,
        "join_ratio": 1.0,
        "eval_gap": 1,
        "top_cnt": 100,
        "time_threthold": 10_000,
        "learning_rate_decay_gamma": 0.99,
        "batch_num_per_client": 2,
        "dlg_gap": 100,
        "save_folder_name": "items",
        "goal": "test",
    }
    unused = (
        "random_join_ratio",
        "few_shot",
        "time_select",
        "auto_break",
        "client_drop_rate",
        "train_slow_rate",
    )
    unused += (
        "send_slow_rate",
        "dlg_eval",
        "num_new_clients",
        "fine_tuning_epoch_new",
        "learning_rate_decay",
    )
    specific: dict[str, dict[str, Any]] = {
        "fedala": {
            "eta": hyperparameters["fedala"]["eta"],
            "rand_percent": int(100 * hyperparameters["fedala"]["share"]),
            "layer_idx": 2,
        },
        "ditto": {"mu": hyperparameters["ditto"]["lambda"], "plocal_epochs": s["local_epochs"]},
        "apfl": {"alpha": hyperparameters["apfl"]["alpha"]},
        "fedamp": {
            "alphaK": 1.0,
            "lamda": hyperparameters["fedamp"]["lambda"],
            "sigma": hyperparameters["fedamp"]["sigma"],
        },
        "apple": {
            "dr_learning_rate": hyperparameters["apple"]["dr_lr"],
            "mu": hyperparameters["apple"]["mu"],
            "L": hyperparameters["apple"]["L"],
        },
        "fedfomo": hyperparameters["fedfomo"],
    }
    return Namespace(**general, **dict.fromkeys(unused, 0), **specific.get(method, {}))


def turned(server: Any, samples: int, test_alone: bool) -> Any:
    """A server class whose rounds wait for their turn; a round begins with the selection of its
    clients.
    """

    class Turned(server):  # type: ignore[misc]
        def select_clients(self) -> Any:
            completed = len(self.Budget)
            # it evaluates what is sent out, or was trained before; the last of several is the
            # personal model
            if completed:
                turns.report(completed - 1, float(self.rs_test_acc[-1]), samples)
            turns.wait_for(completed + 1)
            return super().select_clients()

        def train_metrics(self) -> Any:
            return ([0], [1], [0]) if test_alone else super().train_metrics()

        def train_metrics_personalized(self) -> Any:
            return ([0], [1], [0]) if test_alone else super().train_metrics_personalized()

    return Turned


def main() -> None:
    """Run."""
    options = arguments()
    torch.set_num_threads(options.threads)
    sys.path.insert(0, str(Path(os.environ["PFLLIB"]).absolute() / "system"))
    task = Task(options.folder.absolute())
    os.chdir(files(task))
    module, name = SERVERS[options.method]
    server = getattr(__import__(f"flcore.servers.{module}", fromlist=[name]), name)
    samples = sum(len(task.rows[f"test_{i}"]) for i in range(task.settings["clients"]))
    # it runs one round more than this, which never gets its turn
    args = settings(task, options.method, options.rounds)
    run = turned(server, samples, options.test_alone)(args, 0)
    seed = task.settings["seed"]
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the generator that PFLlib draws from
    torch.manual_seed(seed)
    run.train()


if __name__ == "__main__":
    main()

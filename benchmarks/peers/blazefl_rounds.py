"""BlazeFL on the task: python blazefl_rounds.py TASK fedavg ROUNDS --threads 2: FedAvg by its own
server and clients.

``--threads``: clients that its pool of threads trains at a time, which a Python without the lock of
the interpreter runs in parallel. ``--processes`` above 1: its pool of processes, which it starts in
each round. Both compute the same bits, with one thread of PyTorch for a client. A batch is gathered
at once, where ``DataLoader`` by default stacks samples; all is in memory before the first round.
"""

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import torch
import turns
from blazefl.contrib import (
    FedAvgBaseServerHandler,
    FedAvgProcessPoolClientTrainer,
    FedAvgThreadPoolClientTrainer,
)
from task import AT_ONCE, Task, arguments
from torch.nn import Module
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


@cache
def samples(folder: Path, split: str, client: int | None) -> TensorDataset:
    """A client's samples, or all of a split; forked processes inherit them."""
    task = Task(folder)
    pair = task.pooled(split) if client is None else task.client_samples(split, client)
    return TensorDataset(*pair)


class Data:
    """The task as BlazeFL's data set; it is sent to each process, so it holds the folder alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get_dataset(self, type_: str, cid: int | None) -> TensorDataset:
        """A client's data, or all."""
        return samples(self.folder, str(type_), cid)

    def set_dataset(self, type_: str, cid: int | None, dataset: Any) -> None:
        """Do nothing: training changes no data."""

    def get_dataloader(
        self, type_: str, cid: int | None, batch_size: int | None, generator: Any
    ) -> DataLoader[Any]:
        """Batches in the order that the client's own generator draws."""
        data = self.get_dataset(type_, cid)
        rows = RandomSampler(data, generator=generator)
        batches = BatchSampler(rows, batch_size or len(data), drop_last=False)
        return DataLoader(data, sampler=batches, batch_size=None, generator=generator)


class Networks:
    """Gives clients and server the network with the first weights."""

    def __init__(self, network: Module) -> None:
        self.network = network

    def select_model(self, _: str) -> Module:
        """A copy of it."""
        return deepcopy(self.network)


def main() -> None:
    """Run."""
    options = arguments()
    torch.multiprocessing.set_start_method("fork")  # else each process imports PyTorch per round
    torch.set_num_threads(1)
    task = Task(options.folder.absolute())
    s, data = task.settings, Data(task.folder)
    networks, n, test = Networks(task.network()), s["clients"], len(task.pooled("test")[1])
    for client in range(n):
        samples(task.folder, "train", client)
    common = {"model_selector": networks, "model_name": "", "dataset": data, "device": "cpu"}
    common |= {"num_clients": n, "seed": s["seed"]}
    training = {"epochs": s["local_epochs"], "batch_size": s["batch_size"], "lr": s["lr"]}
    if options.processes > 1:
        folder = task.folder / "blazefl"
        trainer: Any = FedAvgProcessPoolClientTrainer(
            **common, **training, state_dir=folder, num_parallels=options.processes
        )
    else:
        trainer = FedAvgThreadPoolClientTrainer(**common, **training, num_parallels=options.threads)
    server = FedAvgBaseServerHandler(
        **common, global_round=options.rounds, sample_ratio=1.0, batch_size=AT_ONCE
    )
    while not server.is_stopped():
        turns.wait_for(server.round + 1)
        trainer.local_process(server.downlink_package(), server.sample_clients())
        for package in trainer.uplink_package():
            server.load(package)
        turns.report(server.round, server.get_summary()["server_acc"], test)
    turns.wait_for(server.round + 1)


if __name__ == "__main__":
    main()

"""The ClientApp of Flower's simulation, in a module of its own: Ray's actors cannot import the
program itself.
"""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import Task
from task import train as train_locally

app = ClientApp()


@cache
def task_at(folder: str, threads: int) -> Task:
    """The task, loaded once in each actor, with its threads set."""
    torch.set_num_threads(threads)
    return Task(Path(folder))


@cache
def samples(task: Task, client: int) -> Any:
    """A client's training data, read once by an actor."""
    return task.client_samples("train", client)


@app.train()
def train(message: Message, context: Any) -> Message:
    """An epoch of SGD."""
    config = message.content["config"]
    task = task_at(str(config["task"]), int(config["threads"]))
    x, y = samples(task, int(context.node_config["partition-id"]))
    net = task.network()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train_locally(net, x, y, task.settings)
    reply = {
        "arrays": ArrayRecord(net.state_dict()),
        "metrics": MetricRecord({"num-examples": len(y)}),
    }
    return Message(RecordDict(reply), reply_to=message)

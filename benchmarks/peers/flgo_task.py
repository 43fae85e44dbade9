"""The task in FLGo's benchmark format: a module with data, network and calculator."""

import sys
from typing import Any

import vision  # noqa: F401
from flgo.benchmark.toolkits.cv.classification import FromDatasetPipe, GeneralCalculator
from flgo.utils.fmodule import FModule
from task import Task
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

TaskCalculator = GeneralCalculator


class Model(FModule):  # type: ignore[misc]
    """The network."""

    def __init__(self) -> None:
        super().__init__()
        self.net = current_task.network()

    def forward(self, x: Tensor) -> Tensor:
        """Inputs -> (B, classes) logits."""
        return self.net(x)


class TaskPipe(FromDatasetPipe):  # type: ignore[misc]
    """Client rows from the folder; the data are in memory."""

    class TaskDataset(Subset[Any]):
        """A client's samples, as PyTorch no longer accepts FLGo's own class of this name."""

        def __init__(self, dataset: Any, indices: list[int], *_: Any) -> None:
            super().__init__(dataset, indices)

    def __init__(self, task_path: str) -> None:
        super().__init__(task_path, train_data=train_data, val_data=None, test_data=test_data)


def load(task: Task) -> None:
    """Set this module's data to a task's; FLGo expects a module ``core`` in it."""
    globals().update(
        current_task=task,
        train_data=TensorDataset(*task.pooled("train")),
        test_data=TensorDataset(*task.pooled("test")),
    )
    sys.modules[f"{__name__}.core"] = sys.modules[__name__]


def init_global_module(owner: Any) -> None:
    """Give the server its first model."""
    if "Server" in type(owner).__name__:
        owner.model = Model()


def init_local_module(owner: Any) -> None:
    """Do nothing: clients get their models from the server."""


current_task: Any = None
train_data: Any = None
test_data: Any = None

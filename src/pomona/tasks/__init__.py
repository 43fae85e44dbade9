"""Tasks, by the kind of a data set's targets: loss, outputs, metrics and answers, one file each."""

from collections.abc import Mapping, Sequence

from pomona.core.targets import Targets
from pomona.tasks import classes, multilabel, regression, segmentation, survival
from pomona.tasks.task import Task

__all__ = ["TASKS", "Task", "task_of"]

TASKS: Mapping[Targets, Task] = {
    task.targets: task for task in (classes.TASK, multilabel.TASK, regression.TASK, segmentation.TASK, survival.TASK)
}


def task_of(targets: Targets, edges: Sequence[float] = ()) -> Task:
    """The task of a run: that of the targets' kind, and of times one that knows where its intervals end."""
    task = TASKS[targets]
    return task.within(tuple(edges)) if task.within else task

"""Tasks by type of targets: loss, outputs, metrics and answers, one file each."""

from collections.abc import Mapping, Sequence

from pomona.core.bounds import Targets
from pomona.tasks import classes, multilabel, regression, segmentation, survival
from pomona.tasks.task import Task

__all__ = ["TASKS", "Task", "task_of"]

TASKS: Mapping[Targets, Task] = {
    task.targets: task
    for task in (classes.TASK, multilabel.TASK, regression.TASK, segmentation.TASK, survival.TASK)
}


def task_of(targets: Targets, edges: Sequence[float] = ()) -> Task:
    """Return the task for a type of targets; for times, with the ends of the intervals."""
    task = TASKS[targets]
    return task.within(tuple(edges)) if task.within else task

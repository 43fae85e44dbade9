"""Tasks, by the kind of a data set's targets: loss, outputs, metrics and answers, one file each."""

from collections.abc import Mapping

from pomona.core.targets import Targets
from pomona.tasks import classes, multilabel, regression, segmentation
from pomona.tasks.task import Task

__all__ = ["TASKS", "Task"]

TASKS: Mapping[Targets, Task] = {
    task.targets: task for task in (classes.TASK, multilabel.TASK, regression.TASK, segmentation.TASK)
}

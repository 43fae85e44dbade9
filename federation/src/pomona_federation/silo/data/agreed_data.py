"""A silo's data in the agreed form."""

from dataclasses import replace

import numpy as np

from pomona.core.errors import DataError
from pomona.data import csv_table, image_arrays, read
from pomona.data.dataset import Dataset
from pomona.data.settings import DataSettings
from pomona_federation.task_settings import TaskSettings


def conformed(found: Dataset, task: TaskSettings) -> Dataset:
    """The data with the task's label map, preprocessing and vocabulary. Raises DataError if it does not fit."""
    known = found.target_kind or task.targets
    if known != task.targets:
        raise DataError(f"the targets are {known}, agreed are {task.targets}; set data.targets")
    table = csv_table.agreed(found, task.preprocessing) if task.preprocessing and found.kind == "table" else found
    dataset = replace(table, target_shift=task.target_shift, target_scale=task.target_scale, edges=task.time_edges)
    if dataset.kind != task.kind:
        raise DataError(f"the data is of kind {dataset.kind}, agreed is {task.kind}; look at section data")
    if (shape := tuple(dataset.x.shape[1:])) != task.input_shape:
        raise DataError(f"a sample has shape {shape}, agreed is {task.input_shape}; bring the data into that shape")
    dataset = replace(dataset, x=image_arrays.as_type(dataset.x, task.dtype, "the data"))
    if dataset.classes != task.classes:
        raise DataError(
            f"the classes are {', '.join(dataset.classes) or 'none'}, agreed are, in this order, "
            f"{', '.join(task.classes) or 'none'}; set data.classes to these, or rename labels"
        )
    if dataset.n_outputs != task.outputs:
        raise DataError(
            f"a sample has {dataset.n_outputs} targets, agreed are {task.outputs}; bring them into that form"
        )
    if dataset.kind == "text":
        numbers = {word: number for number, word in enumerate(task.words, start=2)}
        spoken = np.array([0, 1, *(numbers.get(word, 1) for word in dataset.words)], np.int32)
        x = spoken[dataset.x] if dataset.words else dataset.x  # tokens without words are numbers already
        if x.size and int(x.max()) >= task.vocabulary:
            raise DataError(f"the data has token {int(x.max())}, agreed are {task.vocabulary} tokens; encode it again")
        return replace(dataset, x=x, vocabulary=task.vocabulary, words=task.words)
    return replace(dataset, shift=task.shift, scale=task.scale, learn=None)


def agreed_data(settings: DataSettings, task: TaskSettings) -> Dataset:
    """The data named by settings, in the agreed form. Raises DataError or ConfigError.

    A label column takes its classes from the agreement if the settings name none: a silo may lack some.
    """
    by = task.preprocessing
    own = csv_table.read_as(settings, by) if by else settings
    if task.classes and not own.classes and own.label_column is not None:
        own = own.model_copy(update={"classes": task.classes})
    return conformed(read(own), task)

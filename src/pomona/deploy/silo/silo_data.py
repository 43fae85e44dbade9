"""A silo's own data, read and held against what everybody agreed on, as a scenario of one client."""

from dataclasses import replace

import numpy as np

from pomona.config import Config, resolve
from pomona.core.errors import DataError
from pomona.core.toml import named
from pomona.data import read
from pomona.data.dataset import Dataset
from pomona.deploy.agreement import Federation, TaskSettings
from pomona.deploy.silo.settings import SiloFile
from pomona.methods.base import MethodSettings
from pomona.partition import divide
from pomona.scenario import Scenario


def agreed(found: Dataset, task: TaskSettings) -> Dataset:
    """The data with the task's label map, preprocessing and vocabulary. Raises DataError where it does not fit."""
    dataset = replace(found, target_shift=task.target_shift, target_scale=task.target_scale)
    if dataset.kind != task.kind:
        raise DataError(f"the data is of kind {dataset.kind}, agreed is {task.kind}; look at section data of silo.toml")
    if (shape := tuple(dataset.x.shape[1:])) != task.input_shape:
        raise DataError(f"a sample has shape {shape}, agreed is {task.input_shape}; bring the data into that shape")
    if dataset.classes != task.classes:
        raise DataError(
            f"the classes are {', '.join(dataset.classes) or 'none'}, agreed are, in this order, "
            f"{', '.join(task.classes) or 'none'}; set data.classes in silo.toml to these, or rename labels"
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
    return replace(dataset, shift=task.shift, scale=task.scale)


def config(silo: SiloFile, federation: Federation, method: MethodSettings | None = None) -> Config:
    """The run as this silo alone would run it; with another method if one is given."""
    own = {"data": silo.data.model_dump(mode="json", exclude_unset=True), "clients": 1, "workers": 1}
    own["metric"] = federation.config().metric
    own["device"] = "cuda" if silo.device.startswith("cuda") else "cpu"
    resolved = resolve(named(federation.run), own)
    return resolved.model_copy(update={"method": method, "privacy": None}) if method else resolved


def scenario(silo: SiloFile, federation: Federation, method: MethodSettings | None = None) -> Scenario:
    """Read, check and split the silo's data. Raises DataError or ConfigError, before anything is computed."""
    settings = config(silo, federation, method)
    dataset = agreed(read(settings.data), federation.task)
    partition = divide(dataset, settings.data, settings.partition, 1, settings.seed)
    own = Scenario(settings, dataset, partition)
    own.check(agreed=True)
    return own

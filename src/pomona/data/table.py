"""Tables of numbers from CSV, and the standardisation of tables."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.data import csvfile
from pomona.data.catalogue import own_path
from pomona.data.check import blocks
from pomona.data.dataset import Dataset
from pomona.data.settings import DataSettings
from pomona.data.targets import numbers
from pomona.errors import DataError
from pomona.memory import allocate

Moments = tuple[tuple[float, ...], tuple[float, ...]]


def moments(x: NDArray[Any]) -> Moments:
    """Mean and standard deviation (over N) of each column of a table (N, F), in double precision.

    A column that does not vary beyond its rounding gets 1, so that it becomes 0 and not noise.
    """
    n = max(1, len(x))
    mean = sum((rows.sum(axis=0, dtype=np.float64) for _, rows in blocks(x)), np.zeros(x.shape[1])) / n
    square = sum((((rows - mean) ** 2).sum(axis=0) for _, rows in blocks(x)), np.zeros(x.shape[1]))
    deviation = np.sqrt(square / n)
    scale = np.where(deviation > np.finfo(np.float32).eps * np.abs(mean), deviation, 1.0)
    return tuple(mean.tolist()), tuple(scale.tolist())


def read(settings: DataSettings) -> Dataset:
    """Own table: a CSV file, or a folder with train.csv and perhaps test.csv; every other column is a feature."""
    return read_parts(csvfile.parts(own_path(settings)), 1, settings)[0]


def read_parts(paths: Sequence[Path], training: int, settings: DataSettings) -> tuple[Dataset, tuple[int, ...]]:
    """CSV files one after the other, the first ``training`` of them for training; and their row counts.

    Raises:
        DataError: no feature, a cell that is no number (with file, line and column), and all that a survey raises.
    """
    survey = csvfile.survey(paths, settings)
    features = [i for i in range(len(survey.columns)) if i not in {survey.label, survey.client}]
    if not features:
        raise DataError(f"{paths[0]} has no column beside the label and the client; add features")
    x = allocate((len(survey.labels), len(features)), np.float32, settings.memory_share)
    for row, record in enumerate(survey):
        x[row] = numbers([record.cells[i] for i in features], partial(_place, survey, record, features))
    y, classes = survey.targets(settings)
    n_train = sum(survey.counts[:training])
    name = str(paths[0] if len(paths) == 1 else paths[0].parent)
    dataset = Dataset(name, "table", x, y, classes, n_train, *moments(x[:n_train]), owners=survey.owners(n_train))
    return survey.named(dataset, features), survey.counts


def _place(survey: csvfile.Survey, record: csvfile.Record, features: Sequence[int], i: int) -> str:
    return f"{record.where}, column {survey.columns[features[i]]}"

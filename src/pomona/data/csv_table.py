"""Tables of numbers from CSV, and the standardisation of tables."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError
from pomona.data import csv_columns, csv_records
from pomona.data.catalogue import own_path
from pomona.data.csv_columns import Strays
from pomona.data.dataset import Dataset
from pomona.data.problem_report import refuse
from pomona.data.settings import DataSettings
from pomona.data.validation import blocks
from pomona.storage.mapped_array import allocate

PIECE = 1 << 20  # values of images at once, in double precision
Moments = tuple[tuple[float, ...], tuple[float, ...]]


def moments(x: NDArray[Any], rows: NDArray[np.int64]) -> Moments:
    """Mean and standard deviation of each column of a table (N, F) over the given rows (n,), in double precision.

    Of images (N, ..., C): of each channel. A column that does not vary beyond its rounding gets 1, so that it becomes 0
    and not noise.
    """
    n, zero = max(1, len(rows) * prod(x.shape[1:-1])), np.zeros(x.shape[-1])
    mean = sum((part.sum(axis=0, dtype=np.float64) for part in _pieces(x, rows)), zero) / n
    square = sum((((part - mean) ** 2).sum(axis=0) for part in _pieces(x, rows)), zero)
    deviation = np.sqrt(square / n)
    scale = np.where(deviation > np.finfo(np.float32).eps * np.abs(mean), deviation, 1.0)
    return tuple(mean.tolist()), tuple(scale.tolist())


def _pieces(x: NDArray[Any], rows: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
    """The rows as (m, F), at once as many as leave memory small; of volumes not even one at once."""
    if x.ndim == 2:
        yield from (x[part] for _, part in blocks(rows))
        return
    for _, part in blocks(rows, max(1, PIECE // prod(x.shape[1:]))):
        flat = (x[part[0]] if len(part) == 1 else x[part]).reshape(-1, x.shape[-1])
        yield from (values for _, values in blocks(flat, PIECE // x.shape[-1] + 1))


def standardised(dataset: Dataset, rows: NDArray[np.int64]) -> Dataset:
    """The same data, seen with mean 0 and deviation 1 over these rows, by column or by channel."""
    shift, scale = moments(dataset.x, rows)
    return replace(dataset, shift=shift, scale=scale, learn=standardised)


def read(settings: DataSettings) -> Dataset:
    """Own table: a CSV file, or a folder with train.csv and perhaps test.csv; every other column is a feature."""
    return read_parts(csv_records.parts(own_path(settings)), 1, settings)[0]


def read_parts(paths: Sequence[Path], training: int, settings: DataSettings) -> tuple[Dataset, tuple[int, ...]]:
    """CSV files one after the other, the first ``training`` of them for training; and their row counts.

    Raises:
        DataError: no feature, all cells that are no numbers and all labels that cannot be (by column, with the first
            line and the remedy), and all that a survey raises.
    """
    survey = csv_records.survey(paths, settings)
    if not survey.features:
        raise DataError(f"{paths[0]} has no column beside labels, client and those left out; add features")
    x, strays = _features(survey, settings.memory_share)
    (y, classes), wrong = survey.targets(settings)
    wrong += survey.ownerless()
    wrong += [column.problem(len(survey)) for column in strays]
    refuse(survey.name, wrong, csv_columns.remedies(strays, len(survey)))
    n_train = sum(survey.counts[:training])
    dataset = Dataset(survey.name, "table", x, y, classes, n_train, owners=survey.owners(n_train))
    return survey.named(dataset, survey.features), survey.counts


def _features(survey: csv_records.CsvSurvey, memory_share: float) -> tuple[NDArray[np.generic], list[Strays]]:
    """Features as a table (N, F) float32, and the columns with cells that are not finite numbers."""
    several = len(survey.paths) > 1
    return numbers(survey, len(survey), survey.features, survey.columns, memory_share, several)


def numbers(
    records: Iterable[csv_records.CsvRecord],
    count: int,
    features: Sequence[int],
    names: Sequence[str],
    memory_share: float,
    several: bool = False,
) -> tuple[NDArray[np.generic], list[Strays]]:
    """Columns of records as a table, and those with cells that are not finite numbers.

    Args:
        records: as wide as ``names``.
        count: how many there are, N.
        features: numbers of the columns to take, F of them, in this order.
        names: of all columns.
        memory_share: see ``allocate``.
        several: whether the records are of several files, so that their places need a name.

    Returns:
        x (N, F) float32, and what was found in columns that are not numbers alone, in the order of ``features``.
    """
    found: dict[int, Strays] = {}
    x = allocate((count, len(features)), np.float32, memory_share)
    for row, record in zip(x, records, strict=True):
        cells = [record.cells[i] for i in features]
        row[...] = values = csv_columns.numbers(cells)
        if math.isnan(sum(values)):
            for k in map(int, np.flatnonzero(np.isnan(values))):
                strays = found.setdefault(k, Strays(names[features[k]]))
                strays.add(cells[k], f"line {record.line}" + (f" of {record.path}" if several else ""))
    return x, [found[k] for k in sorted(found)]

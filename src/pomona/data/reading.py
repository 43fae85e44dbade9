"""Reads the data set that settings name: its reader, then what is done with all data alike."""

from dataclasses import replace
from typing import Any, cast

import numpy as np

from pomona.core.errors import ConfigError, DataError
from pomona.core.registry import Registry
from pomona.data import memory_tables, npz, python_values
from pomona.data.array_file import paired
from pomona.data.axes import OwnData, Source
from pomona.data.catalogue import CATALOGUE
from pomona.data.dataset import Dataset
from pomona.data.formats.frame import is_frame
from pomona.data.images import image_arrays
from pomona.data.quality import content_notes
from pomona.data.quality.duplicates import without_repeats
from pomona.data.settings import DataSettings, EventTimes, Images, Normalisation, TargetKind
from pomona.data.tables import tabular
from pomona.data.targets import timed
from pomona.data.validation import checked

DATASETS = Registry("data set", {name: entry.target for name, entry in CATALOGUE.items()})
OWN_DATA = Registry(
    "source of data",
    {
        "clients": "pomona.data.clients:read",
        "repository": "pomona.data.hub_dataset:read",
        "memory": "pomona.data.memory:read",
        "table": "pomona.data.tables.tabular:read",
        "text": "pomona.data.text:read",
        "arrays": "pomona.data.npz:read",
        "folders": "pomona.data.images.folders:read",
        "list": "pomona.data.images.manifest:read",
        "idx": "pomona.data.idx:read_own",
    },
)


def read(settings: DataSettings, keep_raw: bool = False) -> Dataset:
    """Read the configured data set, resize its images if requested, and validate it.

    Args:
        settings: of the data.
        keep_raw: whether a table of numbers keeps its cells in double precision, for features that
            were agreed.

    Raises:
        ConfigError: unknown name, or settings that do not fit the data.
        DataError: the data are missing or damaged.
    """
    if isinstance(settings, OwnData):
        reader = OWN_DATA.resolve(_reader_of(settings.source))
    else:
        reader = DATASETS.resolve(settings.name)
    if not callable(reader):
        raise ConfigError(
            f"{settings.name} is not a function; give a module:function that takes settings"
        )
    dataset_read = _adopted(reader(settings), settings)
    dataset_read = without_repeats(dataset_read, settings.duplicates, settings.memory_share)
    dataset = _with_features(dataset_read)
    if dataset.learn is None and not keep_raw:
        dataset = replace(dataset, raw=None)
    dataset = checked(
        _with_targets(dataset, settings) if isinstance(settings, TargetKind) else dataset
    )
    # judged as read: later steps drop the cells and fill the gaps
    as_read = replace(dataset, x=dataset_read.x, raw=dataset_read.raw, columns=dataset_read.columns)
    dataset = replace(dataset, notes=(*dataset.notes, *content_notes(as_read)))
    if isinstance(settings, Images):
        resized = image_arrays.resized(dataset, settings.resize, settings.memory_share)
        normalised = _normalised(resized, settings.normalise)
    else:
        normalised = _normalised(dataset)
    if normalised.targets == "survival" and isinstance(settings, EventTimes):
        return timed(normalised, settings)
    return normalised


def _reader_of(source: Source) -> str:
    """Return the name of the reader of own data: of its place, else of its content."""
    if source.location != "path":
        return source.location
    return source.format if source.content == "images" else source.content


def _with_targets(dataset: Dataset, settings: TargetKind) -> Dataset:
    """Return the data with targets of the configured kind.

    Raises ConfigError if they are classes already.
    """
    targets, names = settings.targets, settings.classes
    if targets == "segmentation":
        return replace(dataset, target_kind=targets, classes=names or dataset.classes)
    if targets == "classes":
        return dataset
    if dataset.classes:
        raise ConfigError(f"{dataset.name} has classes; drop data.targets = {targets}")
    return replace(dataset, labels=names or dataset.labels, target_kind=targets)


def _normalised(dataset: Dataset, normalisation: str | Normalisation = "default") -> Dataset:
    """Apply the configured normalisation, or the reader's own if none is configured.

    Tables, and images of more than 8 bits without a normalisation from their reader, learn it here
    from all rows that may be used for training.

    Raises:
        ConfigError: a normalisation is set for data that are not images.
        DataError: its number of channels is wrong.
    """
    if normalisation != "default" and dataset.kind != "image":
        raise ConfigError(
            f"data.normalise is for images, and {dataset.name} is a {dataset.kind}; drop it"
        )
    if isinstance(normalisation, Normalisation):
        return checked(
            replace(dataset, shift=normalisation.shift, scale=normalisation.scale, learn=None)
        )
    is_set = dataset.learn or (dataset.shift, dataset.scale) != ((0.0,), (1.0,))
    learns = dataset.kind == "table" or (dataset.kind == "image" and dataset.x.dtype != np.uint8)
    if normalisation == "training" or (learns and not is_set):
        return tabular.standardised(dataset, np.arange(dataset.n_train))
    return dataset


def _with_features(dataset: Dataset) -> Dataset:
    """Build a table's features from all rows that may be used for training, until a partition
    selects the rows.
    """
    if dataset.raw is None or dataset.learn is None:
        return dataset
    learned = dataset.learn(dataset, np.arange(dataset.n_train))
    return replace(learned, raw=dataset.raw, learn=dataset.learn, notes=dataset.notes)


def _adopted(result: Any, settings: DataSettings) -> Dataset:
    """Convert a reader's result to a ``Dataset``; a user's own function may return arrays x, y."""
    if isinstance(result, Dataset):
        return result
    name, custom = settings.name, cast(Any, settings)  # with all settings that any data have
    if not (isinstance(result, tuple) and len(result) == 2):
        raise DataError(
            f"{name} returned {type(result).__name__}; return a Dataset, or arrays (x, y)"
        )
    x, y, notes = python_values.pair(result, name)
    if is_frame(x):
        return memory_tables.own_table(x, y, name, settings)
    pair = paired(python_values.stored(x, f"{name}: x"), python_values.stored(y, f"{name}: y"))
    dataset = npz.assembled(name, [pair], 1, custom, custom.classes)
    return replace(dataset, notes=(*dataset.notes, *notes))

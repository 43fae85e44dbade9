"""Tables as data sets: read, standardised, with features learned from rows or agreed on."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import ConfigError, DataError, listed
from pomona.data import cell_values, formats
from pomona.data.axes import Table
from pomona.data.catalogue import own_path
from pomona.data.dataset import Dataset
from pomona.data.preprocessing import MOST_CATEGORIES, Preprocessing, RawTable, offset
from pomona.data.settings import DataSettings
from pomona.data.table_settings import Features, as_column
from pomona.data.tables import cells, features, roles
from pomona.data.tables.source import Source
from pomona.data.tables.strays import Strays
from pomona.data.tables.survey import TableSurvey, survey
from pomona.data.validation import blocks
from pomona.storage.mapped_array import allocate

BLOCK_VALUES = 1 << 20  # image values processed at once, in double precision
Rows = NDArray[np.int64]


def moments(x: NDArray[Any], rows: Rows) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation of each column of a table (N, F) over rows (n,), in
    double precision.

    For images (N, ..., C), of each channel. A column that is constant up to rounding gets deviation
    1, so that it becomes 0 instead of noise.
    """
    n, zero = max(1, len(rows) * prod(x.shape[1:-1])), np.zeros(x.shape[-1])
    mean = sum((block.sum(axis=0, dtype=np.float64) for block in _flat(x, rows)), zero) / n
    square = sum((((block - mean) ** 2).sum(axis=0) for block in _flat(x, rows)), zero)
    deviation = np.sqrt(square / n)
    scale = np.where(deviation > np.finfo(np.float32).eps * np.abs(mean), deviation, 1.0)
    return tuple(mean.tolist()), tuple(scale.tolist())


def _flat(x: NDArray[Any], rows: Rows) -> Iterator[NDArray[Any]]:
    """Yield the rows as (m, F) in blocks that need little memory; for volumes less than one sample
    at once.
    """
    if x.ndim == 2:
        yield from (x[block] for _, block in blocks(rows))
        return
    for _, block in blocks(rows, max(1, BLOCK_VALUES // prod(x.shape[1:]))):
        flat = (x[block[0]] if len(block) == 1 else x[block]).reshape(-1, x.shape[-1])
        yield from (values for _, values in blocks(flat, BLOCK_VALUES // x.shape[-1] + 1))


def standardised(dataset: Dataset, rows: Rows, _training: Rows | None = None) -> Dataset:
    """Standardise the data to mean 0 and deviation 1 over these rows, by column or by channel."""
    shift, scale = moments(dataset.x, rows)
    return replace(dataset, shift=shift, scale=scale, learn=standardised)


def read(settings: Table) -> Dataset:
    """Read an own table: a file, or a folder with training and maybe test rows, or with files of
    one table; all other columns are features.
    """
    return read_parts(formats.training_and_test(own_path(settings)), 1, settings)[0]


def read_parts(
    paths: Sequence[Source], training: int, settings: Table
) -> tuple[Dataset, tuple[int, ...]]:
    """Read several tables, the first ``training`` of them for training; returns the data and their
    row counts.

    Raises:
        DataError: no features, unreadable cells or labels (by column, with the first line and the
            remedy), or any problem found by the survey.
    """
    table = survey(paths, settings)
    indices = table.roles.features
    if not indices:
        raise DataError(
            f"{paths[0]} has no features next to labels, client and dropped columns; add some"
        )
    raw, unread = _cells(table, settings)
    y, classes = table.targets(
        settings, lambda file: unread if file is table else _cells(file, settings)[1]
    )
    dataset = Dataset(table.name, "table", raw.x, y, classes, sum(table.counts[:training]))
    dataset = table.described(dataset, training, indices)
    dataset = replace(dataset, notes=(*dataset.notes, *notes(raw)))
    layout, share = () if table.sources[0].header else table.columns, settings.memory_share
    refused = settings.missing == settings.censored == settings.categories == "refuse"
    refused &= not settings.missing_values  # of which a table for prediction may have some
    by_client = settings.fit == "client"
    if refused and not settings.dates and not by_client:
        return in_single(dataset, share, layout), table.counts
    learn = partial(learnt, share=settings.category_share, by_client=by_client, memory_share=share)
    return replace(dataset, raw=replace(raw, layout=layout), learn=learn), table.counts


def _cells(table: TableSurvey, settings: Table) -> tuple[RawTable, list[Strays]]:
    """Read the feature columns as configured; returns the same as ``cells.read``.

    If the settings allow it, columns with mostly non-numeric cells are read again as categories.

    Raises as ``planned``.
    """
    indices = table.roles.features
    plan = roles.planned(table.sources, indices, settings)

    def read(numbers: Sequence[int]) -> tuple[RawTable, list[Strays]]:
        return cells.read(
            table.sources,
            table.decimals,
            [indices[k] for k in numbers],
            [plan[k] for k in numbers],
            settings.memory_share,
            settings.category_limit,
        )

    raw, unread = read(range(len(plan)))
    texts = {c.name for c in unread if c.appearance(len(table)) in {"category", "texts"}}
    if settings.categories != "encode" or not texts:
        return raw, unread
    again = [k for k, column in enumerate(plan) if column.name in texts]
    for k in again:
        plan[k] = roles.column_plan(plan[k].name, "category", plan[k].missing, settings)
    table_again, unread_again = read(again)
    names = [column.name for column in plan]
    unread = [*(column for column in unread if column.name not in texts), *unread_again]
    return raw.with_columns(again, table_again), sorted(unread, key=lambda x: names.index(x.name))


def notes(raw: RawTable) -> list[str]:
    """Report categories that differ in their writing only, and cells that were read as numbers
    though they have signs or marks.
    """
    names = [column.name for column in raw.columns]
    notes = [
        line
        for name, values in zip(names, raw.values, strict=True)
        for line in cell_values.alike_notes(f"column {name}: categories", values)
    ]
    pairs = [*zip(names, raw.readings, strict=False)]
    for key, text in cells.READINGS.items():
        counted = [f"{name} ({readings[key]})" for name, readings in pairs if key in readings]
        notes += [f"{text}: {listed(counted, 8)}"] * bool(counted)
    return notes


def in_single(dataset: Dataset, memory_share: float, layout: tuple[str, ...] = ()) -> Dataset:
    """Convert a numeric table x (N, F) of any dtype to float32.

    Raw cells stay next to it until the training rows are known: features are learned from these if
    float32 would lose their differences.
    """
    if np.can_cast(dataset.x.dtype, np.float32):
        return replace(dataset, x=dataset.x.astype(np.float32, copy=False))
    names = dataset.columns or tuple(map(str, range(dataset.x.shape[1])))
    raw = RawTable.plain(names, dataset.x, layout)
    learn = partial(_resolved, columns=dataset.columns, memory_share=memory_share)
    return replace(dataset, x=_rounded(raw.x, memory_share), raw=raw, learn=learn)


def _rounded(x: NDArray[Any], memory_share: float) -> NDArray[Any]:
    """Return numbers as float32."""
    rounded: NDArray[Any] = allocate(x.shape, np.float32, memory_share)
    rounded[...] = x
    return rounded


def _resolved(
    dataset: Dataset,
    rows: Rows,
    _training: Rows | None = None,
    *,
    columns: tuple[str, ...],
    memory_share: float,
) -> Dataset:
    """Standardise a numeric table over these rows, less an offset where float32 would lose their
    differences.
    """
    raw = dataset.raw
    assert raw
    if any(offset(raw.x[rows, k]) for k in range(len(raw.columns))):
        return learnt(dataset, rows, share=0.0, by_client=False, memory_share=memory_share)
    if dataset.preprocessing:  # other rows needed an offset
        x = _rounded(raw.x, memory_share)
        dataset = replace(dataset, x=x, preprocessing=(), columns=columns)
    return replace(standardised(dataset, rows), raw=None, learn=None)


def learnt(
    dataset: Dataset,
    rows: Rows,
    training: Rows | None = None,
    *,
    share: float,
    by_client: bool,
    memory_share: float,
) -> Dataset:
    """Rebuild a table's features from these rows, standardised over them.

    Args:
        dataset: must include the raw table.
        rows: (n,) indices of the training rows.
        training: (m,) those of all clients, by default the same.
        share: see ``features.fitted``.
        by_client: whether to learn medians, means and deviations from each owner's own training
            rows.
        memory_share: see ``allocate``.

    Raises:
        ConfigError: ``by_client`` without owners.
        DataError: no features are left.
    """
    assert dataset.raw
    shared = features.fitted(dataset.raw, rows, share)
    x = features.features(dataset.raw, shared, memory_share)
    notes = features.summary(dataset.raw, shared, len(rows))
    learned = _with_features(dataset, x, shared, notes)
    if by_client:
        by_owner = _by_owner(
            dataset, rows if training is None else training, shared, x, memory_share
        )
        return replace(learned, preprocessing=by_owner)
    return replace(standardised(learned, rows), learn=None)


def _with_features(
    dataset: Dataset, x: NDArray[Any], preprocessing: Preprocessing, notes: Sequence[str]
) -> Dataset:
    """Return the data with the features x in place of the raw table."""
    return replace(
        dataset,
        x=x,
        preprocessing=(preprocessing,),
        columns=preprocessing.features,
        notes=(*dataset.notes, *notes),
        raw=None,
        learn=None,
    )


def _by_owner(
    dataset: Dataset, rows: Rows, shared: Preprocessing, x: NDArray[Any], memory_share: float
) -> tuple[Preprocessing, ...]:
    """Learn each owner's preprocessing from its training rows, and write its features into ``x``
    (N, F).
    """
    raw, owners = dataset.raw, dataset.owners
    if owners is None or raw is None:
        raise ConfigError(
            "data.fit=client needs rows with owners: set data.client_column or data.clients"
        )
    by_owner = []
    for k in range(len(owners.names)):
        client, training = np.flatnonzero(owners.client == k), rows[owners.client[rows] == k]
        preprocessing = features.refilled(raw, training, shared)
        x[client] = features.features(raw.rows(client), preprocessing, memory_share)
        shift, scale = moments(x, training)
        by_owner.append(preprocessing.model_copy(update={"shift": shift, "scale": scale}))
        x[client] = features.features(raw.rows(client), by_owner[-1], memory_share)
    return tuple(by_owner)


def needs_raw(preprocessing: Preprocessing) -> bool:
    """Return whether agreed features are made from cells in double precision, or from gaps."""
    return any(c.fill is not None for c in preprocessing.columns) or any(preprocessing.offsets)


def settings_as_agreed(settings: DataSettings, preprocessing: Preprocessing) -> DataSettings:
    """Return the settings for reading a table whose columns become features as agreed, if its
    columns have settings.
    """
    if not isinstance(settings, Features):
        return settings
    columns = preprocessing.columns
    categories = tuple(as_column(column.name) for column in columns if column.kind == "category")
    dates = tuple(as_column(column.name) for column in columns if column.kind == "date")
    censored = any(column.censored for column in columns)
    update = {
        "categories": categories,
        "dates": dates,
        "missing": "median" if needs_raw(preprocessing) else "refuse",
        "missing_values": {c.name: c.missing for c in preprocessing.columns if c.missing},
        "censored": "limit" if censored else settings.censored,
        "category_share": 0.0,
        "category_limit": MOST_CATEGORIES,
        "fit": "pooled",
    }
    return settings.model_copy(update=update)


def with_agreed_features(
    dataset: Dataset, preprocessing: Preprocessing, memory_share: float = 0.25
) -> Dataset:
    """Return a table with the agreed features; its columns may be in another order.

    Raises DataError for different columns, or for gaps where the agreement has none.
    """
    raw = dataset.raw or RawTable.plain(dataset.columns, dataset.x)
    names = [column.name for column in raw.columns]
    if sorted(names) != sorted(preprocessing.names):
        raise DataError(
            f"{dataset.name} has the columns {listed(names, 12)}, but the agreement says "
            f"{listed(preprocessing.names, 12)}; give it these, and drop others"
        )
    raw = raw.select([names.index(name) for name in preprocessing.names])
    gaps = np.isnan(raw.x).any(axis=0)
    if empty := [
        c.name for c, gap in zip(preprocessing.columns, gaps, strict=True) if gap and c.fill is None
    ]:
        raise DataError(
            f"{dataset.name} has gaps in {listed(empty)}, where the agreement has none; fill them"
        )
    x = features.features(raw, preprocessing, memory_share)
    return _with_features(dataset, x, preprocessing, features.strangers(raw, preprocessing))

"""Tables as data sets, and the features learned from their training rows."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import ConfigError, DataError, listed, refuse
from pomona.data import cell_values, formats
from pomona.data.axes import Table
from pomona.data.catalogue import own_path
from pomona.data.dataset import Dataset
from pomona.data.preprocessing import MOST_CATEGORIES, Preprocessing, RawTable, offset
from pomona.data.settings import DataSettings, Features, as_column
from pomona.data.tables import cells, features, roles, strays
from pomona.data.tables.source import Source
from pomona.data.tables.survey import TableSurvey, survey
from pomona.data.validation import blocks
from pomona.storage.mapped_array import allocate

PIECE = 1 << 20  # image values processed at once, in double precision
Moments = tuple[tuple[float, ...], tuple[float, ...]]


def moments(x: NDArray[Any], rows: NDArray[np.int64]) -> Moments:
    """Return the mean and standard deviation of each column of a table (N, F) over rows (n,), in
    double precision.

    For images (N, ..., C), of each channel. A column that is constant up to rounding gets deviation
    1, so that it becomes 0 instead of noise.
    """
    n, zero = max(1, len(rows) * prod(x.shape[1:-1])), np.zeros(x.shape[-1])
    mean = sum((part.sum(axis=0, dtype=np.float64) for part in _pieces(x, rows)), zero) / n
    square = sum((((part - mean) ** 2).sum(axis=0) for part in _pieces(x, rows)), zero)
    deviation = np.sqrt(square / n)
    scale = np.where(deviation > np.finfo(np.float32).eps * np.abs(mean), deviation, 1.0)
    return tuple(mean.tolist()), tuple(scale.tolist())


def _pieces(x: NDArray[Any], rows: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
    """Yield the rows as (m, F) in blocks that need little memory; for volumes less than one sample
    at once.
    """
    if x.ndim == 2:
        yield from (x[part] for _, part in blocks(rows))
        return
    for _, part in blocks(rows, max(1, PIECE // prod(x.shape[1:]))):
        flat = (x[part[0]] if len(part) == 1 else x[part]).reshape(-1, x.shape[-1])
        yield from (values for _, values in blocks(flat, PIECE // x.shape[-1] + 1))


def standardised(
    dataset: Dataset, rows: NDArray[np.int64], _training: NDArray[np.int64] | None = None
) -> Dataset:
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
    if not table.roles.features:
        raise DataError(
            f"{paths[0]} has no features beside labels, client and dropped columns; add some"
        )
    raw, unread = _features(table, settings)
    (y, classes), problems = table.targets(settings)
    problems += table.problems()
    problems += [_problem(column, table, settings.category_limit) for column in unread]
    refuse(table.name, problems, [*table.headless(), *strays.remedies(unread, len(table))])
    n_train = sum(table.counts[:training])
    dataset = Dataset(table.name, "table", raw.x, y, classes, n_train)
    dataset = table.described(dataset, training, table.roles.features)
    dataset = replace(dataset, notes=(*dataset.notes, *_notes(raw)))
    layout = () if table.sources[0].header else table.columns
    if not _prepares(settings):
        return in_single(dataset, settings.memory_share, layout), table.counts
    by_client, share = settings.fit == "client", settings.memory_share
    learn = partial(learnt, share=settings.category_share, by_client=by_client, memory_share=share)
    return replace(dataset, raw=replace(raw, layout=layout), learn=learn), table.counts


def _features(table: TableSurvey, settings: Table) -> tuple[RawTable, list[strays.Strays]]:
    """Read the feature columns as configured; returns the same as ``cells.read``.

    If the settings allow it, columns with mostly non-numeric cells are read again as categories.

    Raises as ``planned``.
    """
    indices = table.roles.features
    share, most = settings.memory_share, settings.category_limit
    plan = roles.planned(table.sources, indices, settings)
    raw, unread = cells.read(table.sources, table.decimals, indices, plan, share, most)
    texts = {s.name for s in unread if s.kind(len(table)) in {"category", "texts"}}
    if settings.categories != "encode" or not texts:
        return raw, unread
    at = [k for k, column in enumerate(plan) if column.name in texts]
    named = [roles.read_as(plan[k].name, "category", plan[k].missing, settings) for k in at]
    chosen = [indices[k] for k in at]
    again, rest = cells.read(table.sources, table.decimals, chosen, named, share, most)
    order = {column.name: k for k, column in enumerate(plan)}
    unread = [*(column for column in unread if column.name not in texts), *rest]
    return raw.with_columns(at, again), sorted(unread, key=lambda column: order[column.name])


def _problem(column: strays.Strays, table: TableSurvey, most: int) -> str:
    """Describe a column with unreadable cells in one line; ``most``: of categories."""
    if column.wanted != strays.WANTED["category"] or not column.others:
        return column.problem(len(table), table.where)
    row, cell = column.first["other"]
    return (
        f"column {column.name}: a category with more than {most} values (one too many is "
        f"{cell_values.short(cell)} in {table.where(row)}); leave it out, group its values, or "
        "raise data.category_limit"
    )


def _notes(raw: RawTable) -> list[str]:
    """Report categories that differ in their writing only, and cells that were read as numbers
    though they have signs or marks.
    """
    notes = [
        f"column {column.name}: categories that differ in their writing only: {listed(alike)}"
        for column, values in zip(raw.columns, raw.values, strict=True)
        if (alike := cell_values.alike(values))
    ]
    for counts, reading in (
        (raw.bounds, "bounds such as <5, read as the number behind the sign"),
        (raw.thousands, "marks of thousands, which count for nothing: 1.145 or 1,145 is 1145"),
    ):
        named = [f"{c.name} ({n})" for c, n in zip(raw.columns, counts, strict=True) if n]
        if named:
            notes.append(f"{reading}: {listed(named, 8)}")
    return notes


def in_single(dataset: Dataset, memory_share: float, layout: tuple[str, ...] = ()) -> Dataset:
    """Convert a numeric table x (N, F) of any dtype to float32.

    Raw cells stay beside it until the training rows are known: features are learned from these if
    float32 would lose their differences.
    """
    if np.can_cast(dataset.x.dtype, np.float32):
        return replace(dataset, x=dataset.x.astype(np.float32, copy=False))
    names = dataset.columns or tuple(map(str, range(dataset.x.shape[1])))
    raw = RawTable.plain(names, dataset.x, layout)
    learn = partial(_resolved, columns=dataset.columns, memory_share=memory_share)
    return replace(_rounded(dataset, raw, memory_share), raw=raw, learn=learn)


def _rounded(dataset: Dataset, raw: RawTable, memory_share: float) -> Dataset:
    """Return the data with the raw numbers as float32."""
    x = allocate(raw.x.shape, np.float32, memory_share)
    x[...] = raw.x
    return replace(dataset, x=x)


def _resolved(
    dataset: Dataset,
    rows: NDArray[np.int64],
    _training: NDArray[np.int64] | None = None,
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
        dataset = replace(_rounded(dataset, raw, memory_share), preprocessing=(), columns=columns)
    return replace(standardised(dataset, rows), raw=None, learn=None)


def _prepares(settings: Table) -> bool:
    """Return whether the settings require more than plain numeric columns."""
    refused = settings.missing == settings.censored == settings.categories == "refuse"
    return not refused or bool(settings.dates) or settings.fit == "client"


def learnt(
    dataset: Dataset,
    rows: NDArray[np.int64],
    training: NDArray[np.int64] | None = None,
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
    notes = (*dataset.notes, *features.summary(dataset.raw, shared, len(rows)))
    made = replace(
        dataset,
        x=x,
        preprocessing=(shared,),
        columns=shared.features,
        notes=notes,
        raw=None,
        learn=None,
    )
    if by_client:
        each = _by_owner(dataset, rows if training is None else training, shared, x, memory_share)
        return replace(made, preprocessing=each)
    return replace(standardised(made, rows), learn=None)


def _by_owner(
    dataset: Dataset,
    rows: NDArray[np.int64],
    shared: Preprocessing,
    x: NDArray[Any],
    memory_share: float,
) -> tuple[Preprocessing, ...]:
    """Learn each owner's preprocessing from its training rows, and write its features into ``x``
    (N, F).
    """
    raw, owners = dataset.raw, dataset.owners
    if owners is None or raw is None:
        raise ConfigError(
            "data.fit=client needs rows with owners: set data.client_column or data.clients"
        )
    each = []
    for k in range(len(owners.names)):
        held, taught = np.flatnonzero(owners.client == k), rows[owners.client[rows] == k]
        own = features.own(raw, taught, shared)
        x[held] = features.features(raw.rows(held), own, memory_share)
        shift, scale = moments(x, taught)
        each.append(own.model_copy(update={"shift": shift, "scale": scale}))
        x[held] = features.features(raw.rows(held), each[-1], memory_share)
    return tuple(each)


def needs_raw(by: Preprocessing) -> bool:
    """Return whether agreed features are made from cells in double precision, or from gaps."""
    return any(column.fill is not None for column in by.columns) or any(by.offsets)


def read_as(settings: DataSettings, by: Preprocessing) -> DataSettings:
    """Return the settings for reading a table whose columns become features as agreed, if its
    columns have settings.
    """
    if not isinstance(settings, Features):
        return settings
    marked = {column.name: column.missing for column in by.columns if column.missing}
    listed = {
        kind: tuple(as_column(c.name) for c in by.columns if c.kind == kind)
        for kind in ("category", "date")
    }
    return settings.model_copy(
        update={
            "categories": listed["category"],
            "dates": listed["date"],
            "missing": "median" if needs_raw(by) else "refuse",
            "missing_values": marked,
            "censored": "limit"
            if any(column.censored for column in by.columns)
            else settings.censored,
            "category_share": 0.0,
            "category_limit": MOST_CATEGORIES,
            "fit": "pooled",
        }
    )


def agreed(dataset: Dataset, by: Preprocessing, memory_share: float = 0.25) -> Dataset:
    """Return a table with the agreed features; its columns may be in another order.

    Raises DataError for different columns, or for gaps where the agreement has none.
    """
    raw = dataset.raw or RawTable.plain(dataset.columns, dataset.x)
    names = tuple(column.name for column in raw.columns)
    if sorted(names) != sorted(by.names):
        raise DataError(
            f"{dataset.name} has the columns {listed(names, 12)}, the agreement says "
            f"{listed(by.names, 12)}; give "
            "the table these columns, and leave out others by data.drop_columns"
        )
    raw = raw.of([names.index(name) for name in by.names])
    gaps = np.isnan(raw.x).any(axis=0)
    if odd := [c.name for c, some in zip(by.columns, gaps, strict=True) if some and c.fill is None]:
        raise DataError(
            f"{dataset.name} has gaps in {listed(odd)}, where the agreement has none; fill them"
        )
    notes = (*dataset.notes, *features.strangers(raw, by))
    x = features.features(raw, by, memory_share)
    return replace(
        dataset, x=x, preprocessing=(by,), columns=by.features, notes=notes, raw=None, learn=None
    )

"""Preprocessing learned from a table's training rows, and its application to any rows."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError, listed
from pomona.data import cell_values
from pomona.data.preprocessing import Floats, Preprocessing, RawTable, TableColumn, offset
from pomona.data.targets import in_order
from pomona.data.validation import blocks
from pomona.storage.mapped_array import allocate


def fitted(raw: RawTable, rows: NDArray[np.int64], share: float) -> Preprocessing:
    """Learn the preprocessing from these rows (n,) of a table.

    Args:
        raw: the table, whose columns define what is refused.
        rows: the training rows.
        share: categories in a smaller share of the rows get no feature.

    Raises:
        DataError: no features are left.
    """
    columns = [_fitted(raw, k, raw.x[rows, k], share) for k in range(len(raw.columns))]
    preprocessing = Preprocessing(columns=tuple(columns), layout=raw.layout)
    if not preprocessing.width:
        raise DataError(
            f"no category of {listed(preprocessing.names)} is in {share:.2%} of the training "
            "rows, so no feature is left; lower data.category_share, or add features"
        )
    return preprocessing


def _fitted(raw: RawTable, k: int, cells: Floats, share: float) -> TableColumn:
    """Learn column k from its training cells (n,); a column without any value becomes 0."""
    column, gaps = raw.columns[k], np.isnan(cells)
    values, fills = cells[~gaps], column.fill is not None
    update: dict[str, Any] = {"flagged": fills and bool(gaps.any())}
    if column.kind == "category":
        counts = np.bincount(values.astype(np.int64), minlength=len(raw.values[k]))
        frequent = {
            value: int(n)
            for value, n in zip(raw.values[k], counts, strict=True)
            if n and n >= share * len(cells)
        }
        update["values"] = in_order(frequent)
        fill: float | str = max(update["values"], key=frequent.__getitem__, default="")
    else:
        update["offset"] = base = offset(values)
        single = (values - base).astype(np.float32).astype(np.float64)
        fill = base + float(np.float32(np.median(single))) if len(values) else 0.0
    return column.model_copy(update=update | {"fill": fill if fills else None})


def refilled(raw: RawTable, rows: NDArray[np.int64], shared: Preprocessing) -> Preprocessing:
    """Return the same features, with medians and most frequent categories from these rows if they
    have values.
    """
    columns = []
    for k, column in enumerate(shared.columns):
        cells = raw.x[rows, k]
        fill = _fitted(raw, k, cells, 0.0).fill
        usable = not np.isnan(cells).all() and (column.kind != "category" or fill in column.values)
        columns.append(column.model_copy(update={"fill": fill}) if usable else column)
    return shared.model_copy(update={"columns": tuple(columns)})


def features(raw: RawTable, preprocessing: Preprocessing, memory_share: float) -> NDArray[Any]:
    """Return the features (N, F) float32 of a table.

    Args:
        raw: has the columns of ``preprocessing``, in order, and no gaps if they are refused.
        preprocessing: as learned.
        memory_share: see ``allocate``.
    """
    x: NDArray[Any] = allocate((len(raw.x), preprocessing.width), np.float32, memory_share)
    codes = [_codes(raw, k, column) for k, column in enumerate(preprocessing.columns)]
    for start, block in blocks(raw.x):
        rows, lower = x[start : start + len(block)], 0
        for column, code, cells in zip(preprocessing.columns, codes, block.T, strict=True):
            upper = lower + len(column.features)
            _write(rows[:, lower:upper], column, code, cells)
            lower = upper
        if preprocessing.shift:
            rows -= np.array(preprocessing.shift, np.float32)
            rows /= np.array(preprocessing.scale, np.float32)
    return x


def _write(x: NDArray[Any], column: TableColumn, codes: NDArray[np.int64], cells: Floats) -> None:
    """Write the features (n, F) of the cells (n,) of one column."""
    gaps = np.isnan(cells)
    if column.kind == "category":
        usual = column.values.index(column.fill) if column.fill in column.values else -1
        number = np.full(len(cells), usual)
        number[~gaps] = codes[cells[~gaps].astype(np.int64)]
        x[:, : len(column.values)] = number[:, None] == np.arange(len(column.values))
    else:
        x[:, 0] = np.where(gaps, column.fill or 0.0, cells) - column.offset
    if column.flagged:
        x[:, -1] = gaps


def _codes(raw: RawTable, k: int, column: TableColumn) -> NDArray[np.int64]:
    """Return the feature's index of each category of a column, -1 for those without."""
    index = {value: j for j, value in enumerate(column.values)}
    return np.array([index.get(value, -1) for value in raw.values[k]], np.int64)


def strangers(raw: RawTable, preprocessing: Preprocessing) -> list[str]:
    """Warn for each column about cells unlike those in training: gaps in a column that had none,
    and categories without a feature: how many, and the first of them.
    """
    lines = []
    for k, column in enumerate(preprocessing.columns):
        cells, n = raw.x[:, k], len(raw.x)
        filled = cells[~np.isnan(cells)]
        if len(filled) < n and not column.flagged:
            lines.append(
                f"column {column.name}: {n - len(filled)} of {n} rows have a gap; it is filled "
                "without a flag, since the rows that features were learned from had none"
            )
        if column.kind == "category":
            filled = filled.astype(np.int64)
            unknown = filled[_codes(raw, k, column)[filled] < 0]
            if len(unknown):
                first = cell_values.quoted(raw.values[k][unknown[0]])
                lines.append(
                    f"column {column.name}: {len(unknown)} of {n} rows have categories that are "
                    f"too rare in the training rows or absent from them (first {first}); they are "
                    f"0 in all columns of {column.name}"
                )
    return lines


def summary(raw: RawTable, preprocessing: Preprocessing, rows: int) -> list[str]:
    """Summarise the features made from a table; empty if the columns are used unchanged."""
    shifted = [f"{c.name} ({c.offset!r})" for c in preprocessing.columns if c.offset]
    text = "numbers too close to each other for float32, read less their median"
    lines = [f"{text}: {listed(shifted, 8)}"] if shifted else []
    if preprocessing.features == preprocessing.names and not preprocessing.shift:
        return lines
    filled = listed([column.name for column in preprocessing.columns if column.flagged], 8)
    lines.insert(
        0,
        f"{len(preprocessing.columns)} columns become {preprocessing.width} features, learnt from "
        f"{rows} training rows{f'; gaps in {filled} are filled and flagged' if filled else ''}",
    )
    if empty := [c.name for c in preprocessing.columns if c.kind == "category" and not c.values]:
        lines.append(
            f"columns without a category that is frequent enough: {listed(empty)}; leave them out"
        )
    return [*lines, *strangers(raw, preprocessing)]

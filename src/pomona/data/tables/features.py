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
    by = Preprocessing(columns=tuple(columns), layout=raw.layout)
    if not by.width:
        raise DataError(
            f"no category of {listed(by.names)} is in {share:.2%} of the training rows, so that "
            "no feature is left; lower data.category_share, or add features"
        )
    return by


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


def features(raw: RawTable, by: Preprocessing, memory_share: float) -> NDArray[Any]:
    """Return the features (N, F) float32 of a table.

    Args:
        raw: has the columns of ``by``, in order, and no gaps if they are refused.
        by: the learned preprocessing.
        memory_share: see ``allocate``.
    """
    out: NDArray[Any] = allocate((len(raw.x), by.width), np.float32, memory_share)
    codes = [_codes(raw, k, column) for k, column in enumerate(by.columns)]
    for start, block in blocks(raw.x):
        rows, at = out[start : start + len(block)], 0
        for column, code, cells in zip(by.columns, codes, block.T, strict=True):
            end = at + len(column.features)
            _write(rows[:, at:end], column, code, cells)
            at = end
        if by.shift:
            rows -= np.array(by.shift, np.float32)
            rows /= np.array(by.scale, np.float32)
    return out


def _write(out: NDArray[Any], column: TableColumn, codes: NDArray[np.int64], cells: Floats) -> None:
    """Write the features (n, F) of the cells (n,) of one column."""
    gaps = np.isnan(cells)
    if column.kind == "category":
        usual = column.values.index(column.fill) if column.fill in column.values else -1
        number = np.full(len(cells), usual)
        number[~gaps] = codes[cells[~gaps].astype(np.int64)]
        out[:, : len(column.values)] = number[:, None] == np.arange(len(column.values))
    else:
        out[:, 0] = np.where(gaps, column.fill or 0.0, cells) - column.offset
    if column.flagged:
        out[:, -1] = gaps


def _codes(raw: RawTable, k: int, column: TableColumn) -> NDArray[np.int64]:
    """Return the feature's index of each category of a column, -1 for those without."""
    index = {value: j for j, value in enumerate(column.values)}
    return np.array([index.get(value, -1) for value in raw.values[k]], np.int64)


def strangers(raw: RawTable, by: Preprocessing) -> list[str]:
    """Warn for each column about cells unlike those in training: gaps in a column that had none,
    and categories without a feature: how many, and the first of them.
    """
    lines = []
    for k, column in enumerate(by.columns):
        cells, n = raw.x[:, k], len(raw.x)
        filled = cells[~np.isnan(cells)]
        if len(filled) < n and not column.flagged:
            lines.append(
                f"column {column.name}: {n - len(filled)} of {n} rows have a gap; it is filled, "
                "and no feature marks it, since the rows that features were learnt from had none"
            )
        if column.kind == "category":
            filled = filled.astype(np.int64)
            unknown = filled[_codes(raw, k, column)[filled] < 0]
            if len(unknown):
                first = cell_values.short(raw.values[k][unknown[0]])
                lines.append(
                    f"column {column.name}: {len(unknown)} of {n} rows hold categories that the "
                    f"training rows have too seldom or not at all (first {first}); they are 0 in "
                    f"all columns of {column.name}"
                )
    return lines


def summary(raw: RawTable, by: Preprocessing, rows: int) -> list[str]:
    """Summarise the features made from a table; empty if the columns are used unchanged."""
    shifted = [f"{column.name} ({column.offset!r})" for column in by.columns if column.offset]
    text = "numbers too close to each other for float32, read less their median"
    lines = [f"{text}: {listed(shifted, 8)}"] if shifted else []
    if by.features == by.names and not by.shift:
        return lines
    filled = listed([column.name for column in by.columns if column.flagged], 8)
    lines.insert(
        0,
        f"{len(by.columns)} columns become {by.width} features, learnt from {rows} training rows"
        f"{f'; gaps in {filled} are filled and flagged' if filled else ''}",
    )
    if empty := [c.name for c in by.columns if c.kind == "category" and not c.values]:
        lines.append(
            f"columns without a category that is frequent enough: {listed(empty)}; leave them out"
        )
    return [*lines, *strangers(raw, by)]

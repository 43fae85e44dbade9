"""Preprocessing learned from a table's training rows, and its application to any rows."""

from collections.abc import Sequence
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
    made = Preprocessing(columns=tuple(columns), layout=raw.layout)
    if not made.width:
        raise DataError(
            f"no category of {listed(made.names)} is in {share:.2%} of the training rows, so that "
            "no feature is left; lower data.category_share, or add features"
        )
    return made


def _fitted(raw: RawTable, k: int, cells: Floats, share: float) -> TableColumn:
    """Learn column k from its training cells (n,); a column without any value becomes 0."""
    column, gaps = raw.columns[k], np.isnan(cells)
    known, fills = cells[~gaps], column.fill is not None
    flagged = fills and bool(gaps.any())
    if column.kind != "category":
        base = offset(known)
        held = (known - base).astype(np.float32).astype(np.float64)
        middle = base + float(np.float32(np.median(held))) if len(known) else 0.0
        return column.model_copy(
            update={"offset": base, "fill": middle if fills else None, "flagged": flagged}
        )
    counts = np.bincount(known.astype(np.int64), minlength=len(raw.values[k]))
    frequent = {
        raw.values[k][j]: int(n) for j, n in enumerate(counts) if n and n >= share * len(cells)
    }
    values = in_order(frequent)
    usual = max(values, key=lambda value: frequent[value], default="")
    return column.model_copy(
        update={"values": values, "fill": usual if fills else None, "flagged": flagged}
    )


def own(raw: RawTable, rows: NDArray[np.int64], shared: Preprocessing) -> Preprocessing:
    """Return the same features, with medians and most frequent categories from these rows if they
    have values.
    """
    columns = [_own(raw, k, raw.x[rows, k], column) for k, column in enumerate(shared.columns)]
    return shared.model_copy(update={"columns": tuple(columns)})


def _own(raw: RawTable, k: int, cells: Floats, shared: TableColumn) -> TableColumn:
    fill = _fitted(raw, k, cells, 0.0).fill
    known = not np.isnan(cells).all() and (shared.kind != "category" or fill in shared.values)
    return shared.model_copy(update={"fill": fill}) if known else shared


def features(raw: RawTable, by: Preprocessing, memory_share: float) -> NDArray[Any]:
    """Return the features (N, F) float32 of a table.

    Args:
        raw: has the columns of ``by``, in order, and no gaps if they are refused.
        by: the learned preprocessing.
        memory_share: see ``allocate``.
    """
    out: NDArray[Any] = allocate((len(raw.x), by.width), np.float32, memory_share)
    codes = [_codes(raw.values[k], column) for k, column in enumerate(by.columns)]
    for start, block in blocks(raw.x):
        rows, at = out[start : start + len(block)], 0
        for column, code, cells in zip(by.columns, codes, block.T, strict=True):
            at = _fill(rows, at, column, code, cells)
        if by.shift:
            rows -= np.array(by.shift, np.float32)
            rows /= np.array(by.scale, np.float32)
    return out


def _fill(
    rows: NDArray[Any], at: int, column: TableColumn, codes: NDArray[np.int64], cells: Floats
) -> int:
    """Write the features of one column starting at index ``at``; return the next index."""
    gaps = np.isnan(cells)
    if column.kind == "category":
        usual = column.values.index(column.fill) if column.fill in column.values else -1
        found = np.full(len(cells), usual)
        found[~gaps] = codes[cells[~gaps].astype(np.int64)]
        end = at + len(column.values)
        rows[:, at:end] = found[:, None] == np.arange(len(column.values))
    else:
        end = at + 1
        rows[:, at] = np.where(gaps, column.fill or 0.0, cells) - column.offset
    if column.flagged:
        rows[:, end] = gaps
        end += 1
    return end


def _codes(values: Sequence[str], column: TableColumn) -> NDArray[np.int64]:
    """Return each category's feature index, -1 for those without."""
    place = {value: j for j, value in enumerate(column.values)}
    return np.array([place.get(value, -1) for value in values], np.int64)


def strangers(raw: RawTable, by: Preprocessing) -> list[str]:
    """Warn for each column about cells unlike those in training: gaps in a column that had none,
    and categories without a feature: how many, and the first of them.
    """
    lines = []
    for k, column in enumerate(by.columns):
        cells = raw.x[:, k]
        if (gaps := int(np.isnan(cells).sum())) and not column.flagged:
            lines.append(
                f"column {column.name}: {gaps} of {len(cells)} rows have a gap; it is filled, and "
                "no feature marks it, since the rows that features were learnt from had none"
            )
        if column.kind != "category":
            continue
        found = _codes(raw.values[k], column)[cells[~np.isnan(cells)].astype(np.int64)]
        if count := int((found < 0).sum()):
            first = raw.values[k][int(cells[~np.isnan(cells)][np.flatnonzero(found < 0)[0]])]
            lines.append(
                f"column {column.name}: {count} of {len(cells)} rows hold categories that the "
                f"training rows have too seldom or not at all (first {cell_values.short(first)}); "
                f"they are 0 in all columns of {column.name}"
            )
    return lines


def summary(raw: RawTable, by: Preprocessing, rows: int) -> list[str]:
    """Summarise the features made from a table; empty if the columns are used unchanged."""
    moved = [f"{column.name} ({column.offset!r})" for column in by.columns if column.offset]
    near = (
        [f"numbers too close to each other for float32, read less their median: {listed(moved, 8)}"]
        if moved
        else []
    )
    if by.features == by.names and not by.shift:
        return near
    filled = [column.name for column in by.columns if column.flagged]
    gaps = f"; gaps in {listed(filled, 8)} are filled and flagged" if filled else ""
    empty = [
        column.name for column in by.columns if column.kind == "category" and not column.values
    ]
    odd = (
        [f"columns without a category that is frequent enough: {listed(empty)}; leave them out"]
        if empty
        else []
    )
    learnt = (
        f"{len(by.columns)} columns become {by.width} features, learnt from {rows} training "
        f"rows{gaps}"
    )
    return [learnt, *near, *odd, *strangers(raw, by)]

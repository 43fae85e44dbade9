"""Columns that say nothing about a patient: identifiers, constants, and columns without values."""

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import listed
from pomona.data.quality.cells import Cells, Rows, capped, digits

ENOUGH_ROWS = 30  # rows after which measured integers repeat
EXPECTED_VALUES = 10  # at a client, from the share of values at the others
MOSTLY_EMPTY = 0.02  # largest share of rows with a value, where a column has none to speak of
DISTINCT = 0.95  # smallest share of distinct texts of an identifier


def notes(cells: Cells) -> list[str]:
    """Warn about identifiers, constant columns, and columns that are empty everywhere or at some
    clients.
    """
    return [*_identifiers(cells), *_constant(cells), *_empty(cells)]


def is_counted(column: NDArray[np.generic]) -> bool:
    """Return whether all numbers are distinct integers; the first rows rule out most columns."""
    return all(
        bool(np.isfinite(rows).all() and (rows == np.rint(rows)).all())
        and len(np.unique(rows)) == len(rows)
        for rows in (np.asarray(column[:ENOUGH_ROWS], np.float64), np.asarray(column, np.float64))
    )


def _identifiers(cells: Cells) -> list[str]:
    """Warn if a column could identify rows: distinct integers, distinct texts, or a counter that
    starts anew at each client.
    """
    if len(cells) < ENOUGH_ROWS or not cells.has_names:
        return []
    unique_numbers = [repr(name) for k, name in cells.numbers() if is_counted(cells.x[:, k])]
    counters = [
        name
        for k, name in cells.numbers()
        if repr(name) not in unique_numbers
        and any(_counts(cells, rows, k) for rows in cells.by_client)
    ]
    texts = [
        f"{column.name} ({len(cells.values[k])} of {len(cells)})"
        for k, column in enumerate(cells.columns)
        if len(cells.values[k]) >= max(ENOUGH_ROWS, DISTINCT * len(cells))
    ]
    lines = []
    if len(unique_numbers) == 1:
        lines.append(
            f"column {unique_numbers[0]} has a different whole number in every row: if it is an "
            "identifier, leave it out with data.drop_columns"
        )
    elif unique_numbers:
        lines.append(
            f"columns {listed(unique_numbers)} have a different whole number in every row: if they "
            "are "
            "identifiers, leave them out with data.drop_columns"
        )
    if counters:
        lines.append(
            f"columns that count the rows of a client (1, 2, 3, ...): {listed(counters)}; if they "
            "are identifiers, leave them out with data.drop_columns"
        )
    if texts:
        lines.append(
            f"columns of categories with another value in nearly every row: {listed(texts)}; if "
            "they are identifiers, leave them out with data.drop_columns"
        )
    return lines


def _counts(cells: Cells, rows: Rows, k: int) -> bool:
    """Return whether in many rows (n,) each number is the one before plus 1."""
    return len(rows) >= ENOUGH_ROWS and all(
        bool((np.diff(np.asarray(cells.x[subset, k], np.float64)) == 1).all())
        for subset in (rows[:ENOUGH_ROWS], rows)
    )


def _constant(cells: Cells) -> list[str]:
    """Warn about columns with a single value in all rows that have one."""
    low, high = _overall(cells)
    constant = [k for k in range(len(cells.columns)) if low[k] == high[k]]
    if not constant or len(cells) < ENOUGH_ROWS:
        return []
    descriptions = [f"{cells.columns[k].name} ({_cell_text(cells, k, low[k])})" for k in constant]
    return [
        f"columns with the same value in all rows: {listed(descriptions)}; nothing can be learnt "
        "from "
        "them: leave them out by data.drop_columns"
    ]


def _overall(cells: Cells) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the lowest and the highest value of each column; NaN if it is empty."""
    return np.fmin.reduce(cells.extremes.low), np.fmax.reduce(cells.extremes.high)


def _cell_text(cells: Cells, k: int, value: float) -> str:
    """Return a value as it is in the file."""
    return cells.values[k][int(value)] if cells.values[k] else digits(float(value))


def _empty(cells: Cells) -> list[str]:
    """Warn about columns without a value in any row, or in hardly any row of some clients."""
    counts, rows = cells.extremes.counts, np.array([len(own) for own in cells.by_client])
    empty_columns = [
        column.name for k, column in enumerate(cells.columns) if not counts[:, k].any()
    ]
    lines = capped(
        [
            (
                name,
                f"column {name}: no value in any of the {len(cells)} rows that are kept; leave it "
                "out by data.drop_columns, or look which rows were left out",
            )
            for name in empty_columns
        ]
    )
    descriptions = []
    for k, column in enumerate(cells.columns):
        rate = counts[:, k] / np.maximum(rows, 1)
        usual_rate = (
            float(np.median(rate[rate > MOSTLY_EMPTY])) if (rate > MOSTLY_EMPTY).any() else 0.0
        )
        empty_at = [
            i
            for i in range(len(cells.names))
            if usual_rate * rows[i] >= EXPECTED_VALUES and rate[i] <= MOSTLY_EMPTY
        ]
        if empty_at and counts[:, k].any() and len(empty_at) < len(cells.names):
            clients = [f"{cells.names[i]} ({counts[i, k]} of {rows[i]})" for i in empty_at]
            descriptions.append(f"{column.name} at {listed(clients, 3)}")
    if descriptions:
        lines.append(
            f"columns with no value, or hardly any, at some clients: {'; '.join(descriptions[:5])}"
            f"{f'; and {len(descriptions) - 5} more columns' if len(descriptions) > 5 else ''}; "
            "gaps that are "
            "filled there say nothing: leave the columns out, or compare with a run without them"
        )
    return lines

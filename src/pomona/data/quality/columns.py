"""Columns that say nothing about a patient: identifiers, constants, and columns without values."""

from collections.abc import Iterable
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import listed
from pomona.data.quality.cells import Cells, capped, digits, without_gaps
from pomona.data.quality.markers import outside

ENOUGH_ROWS = 30  # rows after which measured integers repeat
EXPECTED_VALUES = 10  # at a client, from the share of values at the others
MOSTLY_EMPTY = 0.02  # largest share of rows with a value, where a column has none to speak of
EXACT = 2**53  # doubles hold every whole number below it
FLAT = 10.0  # times the deviation that the others keep, in units of it, is lost on one cell
MIN_TOTALLED = 5  # rows below which a row of sums may be chance
FEWEST = {"sums": 2, "means": 3}  # columns that are so hardly by chance
DISTINCT = 0.95  # smallest share of distinct texts of an identifier


def is_unique(column: NDArray[Any]) -> bool:
    """Return whether all numbers are distinct integers; the first rows rule out most columns."""
    return all(
        bool(np.isfinite(rows).all() and (rows == np.rint(rows)).all())
        and len(np.unique(rows)) == len(rows)
        for rows in (np.asarray(column[:ENOUGH_ROWS], float), np.asarray(column, float))
    )


def _counts_rows(column: NDArray[Any]) -> bool:
    """Return whether in many rows each number is the one before plus 1."""
    return len(column) >= ENOUGH_ROWS and bool((np.diff(np.asarray(column, float)) == 1).all())


def identifiers(cells: Cells) -> list[str]:
    """Warn about columns that could identify rows: distinct integers, distinct texts, or a counter
    that starts anew at each client.
    """
    if len(cells) < ENOUGH_ROWS or not cells.dataset.columns:
        return []
    x, numbers = cells.raw.x, [*cells.columns("number")]
    unique = [repr(name) for k, name in numbers if is_unique(x[:, k])]
    counters = [
        name
        for k, name in numbers
        if repr(name) not in unique
        and any(
            _counts_rows(x[rows[:ENOUGH_ROWS], k]) and _counts_rows(x[rows, k])
            for rows in cells.by_client
        )
    ]
    texts = [
        f"{name} ({len(cells.raw.values[k])} of {len(cells)})"
        for k, name in cells.columns("category")
        if len(cells.raw.values[k]) >= max(ENOUGH_ROWS, DISTINCT * len(cells))
    ]
    return [
        f"{text}: {listed(names)}; if they are identifiers, leave them out by data.drop_columns"
        for text, names in (
            ("columns with a different whole number in every row", unique),
            ("columns that count the rows of a client (1, 2, 3, ...)", counters),
            ("columns of categories with another value in nearly every row", texts),
        )
        if names
    ]


def concepts(cells: Cells) -> list[str]:
    """Warn about codes of OMOP that count as numbers: they name what each row measures."""
    names = [name for _, name in cells.columns("number") if name.casefold().endswith("_concept_id")]
    line = (
        f"columns of OMOP's codes that are read as numbers: {listed(names)}; if a person has a row "
        "for each measurement, make it a column for each, else name them in data.categories"
    )
    return [line] if names else []


def rounded(cells: Cells) -> list[str]:
    """Warn about columns whose numbers are all too large for a double to tell neighbours apart."""
    lowest = np.fmin.reduce(cells.extremes[1])
    names = [name for k, name in cells.columns("number") if lowest[k] >= EXACT]
    line = (
        f"columns of numbers of 16 digits and more, which are rounded: {listed(names)}; if they "
        "are identifiers, leave them out by data.drop_columns, or store them as text"
    )
    return [line] if names else []


def constant(cells: Cells) -> list[str]:
    """Warn about columns with a single value in all rows that have one."""
    if len(cells) < ENOUGH_ROWS:
        return []
    low, high = np.fmin.reduce(cells.extremes[1]), np.fmax.reduce(cells.extremes[2])
    values = {
        k: cells.raw.values[k][int(low[k])] if cells.raw.values[k] else digits(low[k])
        for k in np.flatnonzero(low == high).tolist()
    }
    described = listed([f"{cells.raw.columns[k].name} ({text})" for k, text in values.items()])
    line = (
        f"columns with the same value in all rows: {described}; nothing can be learnt from them: "
        "leave them out by data.drop_columns"
    )
    return [line] if values else []


def flattened(cells: Cells) -> list[str]:
    """Warn about columns in which one cell is so far from the others that they are next to equal
    once the column is standardised.
    """
    low, high = np.fmin.reduce(cells.extremes[1]), np.fmax.reduce(cells.extremes[2])
    lines = []
    for k, name in cells.columns("number"):
        if np.isfinite(low[k]) and (line := _flattened(cells, k, (low[k], high[k]))):
            lines.append((name, f"column {name}: {line}"))
    return capped(lines)


def _flattened(cells: Cells, k: int, limits: tuple[float, float]) -> str:
    """Describe the one cell of a column that flattens it; "" if there is none."""
    sample = without_gaps(np.concatenate([rows[:, k] for rows in cells.samples]))
    extreme = float(max(limits, key=lambda end: abs(end - np.median(sample))))
    remaining = sample[sample != extreme]
    reach = FLAT * len(cells) ** 0.5 * (remaining.std() if len(remaining) else np.inf)
    too_few = len(remaining) < ENOUGH_ROWS or not remaining.std()
    if too_few or abs(extreme - np.median(remaining)) < reach:
        return ""
    column = cells.column(k)
    if (column == extreme).sum() > 1 or extreme in outside(column):
        return ""
    return (
        f"{digits(extreme)} in row {int(np.argmax(column == extreme)) + 1} is so far from the "
        f"others ({digits(remaining.min())} to {digits(remaining.max())}) that they are next to "
        "equal once columns are standardised; correct the cell, or leave it empty"
    )


def totals(cells: Cells) -> list[str]:
    """Warn about last rows, of all or of a client, whose numbers are the sums or the means of the
    other rows.
    """
    numbers = [k for k, _ in cells.columns("number")]
    lines = {
        f"row {rows[-1] + 1} has the {name} of {len(rows) - 1} other rows; leave it out"
        for rows in (np.arange(len(cells)), *cells.by_client)
        if len(rows) > MIN_TOTALLED and (name := _totals(cells.raw.x[rows, k] for k in numbers))
    }
    return sorted(lines)


def _totals(columns: Iterable[NDArray[Any]]) -> str:
    """Return whether the last cells of columns of numbers (n,) are "sums" or "means" of the others
    in all columns, and in ``FEWEST`` of them hardly by chance; else empty.
    """
    fits, counts = np.ones(2, bool), np.zeros(2)
    for column in columns:
        values, last = without_gaps(column[:-1]), column[-1]
        if len(values) and not np.isnan(last):
            total, deviation = values.sum(), values.std()
            distance = abs(last - values.mean())
            fits &= abs(last - total) <= 1e-3 * abs(total), distance <= 0.02 * deviation
            weight = 1.5 if distance <= 0.005 * deviation else 1  # two rounded means are enough
            counts += last > values.max(), weight * (deviation > 0 and last not in values)
        if not fits.any():
            break
    return next(compress(FEWEST, fits & (counts >= [*FEWEST.values()])), "")


def empty(cells: Cells) -> list[str]:
    """Warn about columns without a value in any row, or in hardly any row of some clients."""
    counts, rows = cells.extremes[0], np.array([len(rows) for rows in cells.by_client])
    unfilled = [
        (
            name,
            f"column {name}: no value in any of the {len(cells)} rows that are kept; leave it out "
            "by data.drop_columns, or check which rows were left out",
        )
        for k, name in cells.columns()
        if len(cells) and not counts[:, k].any()
    ]
    described = []
    for k, name in cells.columns():
        share = counts[:, k] / np.maximum(rows, 1)
        usual = np.median(share[share > MOSTLY_EMPTY]) if (share > MOSTLY_EMPTY).any() else 0.0
        sites = np.flatnonzero((usual * rows >= EXPECTED_VALUES) & (share <= MOSTLY_EMPTY))
        if len(sites):
            counts_by_site = [f"{cells.names[i]} ({counts[i, k]} of {rows[i]})" for i in sites]
            described.append(f"{name} at {listed(counts_by_site, 3)}")
    line = (
        f"columns with no value, or hardly any, at some clients: {listed(described, 5)}; gaps that "
        "are filled there say nothing: leave the columns out, or compare with a run without them"
    )
    return [*capped(unfilled), *([line] if described else [])]

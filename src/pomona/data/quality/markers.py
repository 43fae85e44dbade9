"""Numbers and dates that stand for a missing value: -999, 99, 1900-01-01, repeated far outside."""

from collections.abc import Iterator
from datetime import date, timedelta

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import listed
from pomona.data.dataset import Dataset
from pomona.data.quality.cells import Cells, by_size, capped, digits, without_gaps

LISTED = frozenset(
    sign * float(first * 10**k + (first * 10**k - first) // 9)
    for first in (7, 8, 9)
    for k in range(6)
    for sign in (1, -1)
) | {-1.0, 96.0, 97.0, 98.0, 996.0, 997.0, 998.0, -97.0, -98.0, -997.0, -998.0}
BEGINNING = date(2000, 1, 1)
DATES = {
    float((day - BEGINNING).days)
    for day in (
        date(1, 1, 1),
        date(1582, 10, 14),
        date(1753, 1, 1),
        date(1800, 1, 1),
        date(1899, 12, 30),
        date(1899, 12, 31),
        date(1900, 1, 1),
        date(1901, 1, 1),
        date(1960, 1, 1),
        date(1970, 1, 1),
        date(2099, 12, 31),
        date(2999, 12, 31),
        date(9999, 12, 31),
    )
}
MAX_MARKERS = 3  # markers at each end of a column
REPEATED = 3  # rows of a value outside the others that is not listed
ISOLATION = 10.0  # times the others' range
FEW_DISTINCT = 10  # of a column; with more, a single value at one client is a surprise
FREQUENT = 0.01  # share of the rows of a marker that is not far from the others
Values = NDArray[np.float64]


def notes(dataset: Dataset, cells: Cells) -> list[str]:
    """Warn about markers of missing values in the features of a table, and in labels."""
    lines = []
    for k, column in enumerate(cells.columns):
        if column.kind == "category":
            marked = list(_among_names(cells, k))
        else:
            dated = column.kind == "date"
            numbers = markers(cells.column(k), dated) if _suspect(cells, k) else []
            marked = [(_day(v) if dated else digits(v), v) for v in numbers]
        if line := _line(cells, k, marked) if marked else _constant(cells, k):
            lines.append((column.name, line))
    return [*capped(lines), *in_labels(dataset)]


def _suspect(cells: Cells, k: int) -> bool:
    """Return whether the lowest or the highest value may be a marker, by a sample of the rest."""
    low, high = np.fmin.reduce(cells.extremes.low[:, k]), np.fmax.reduce(cells.extremes.high[:, k])
    if cells.columns[k].kind == "date":
        return True
    if not low < high:
        return False
    sample = without_gaps(np.concatenate([own[:, k] for own in cells.samples]))
    inner = sample[(sample > low) & (sample < high)]
    if {low, high} & LISTED or not len(inner) or low == 0:
        return True
    bottom, top = np.quantile(inner, (0.01, 0.99))
    return bool(max(high - top, bottom - low) > ISOLATION / 2 * (top - bottom))


def markers(values: Values, dated: bool = False) -> list[float]:
    """Return the values of a column (N,) that look like markers of missing values."""
    distinct, counts = np.unique(without_gaps(values), return_counts=True)
    if len(distinct) < 2:
        return []
    start, end = 0, len(distinct)
    for _ in range(MAX_MARKERS):
        inner, times = distinct[start:end], counts[start:end]
        if len(inner) < 3:
            break
        start += _outside(inner, times, dated)
        end -= _outside(-inner[::-1], times[::-1], dated, -1.0)
    marked = [*distinct[:start], *distinct[end:]]
    if dated:
        remaining = counts.sum() - counts
        marked += [
            v
            for v, n in zip(distinct[start:end], counts[start:end], strict=True)
            if v in DATES
            and n >= 5
            and n >= 10 * np.median(counts)
            and n >= FREQUENT * remaining.max()
        ]
    return [float(v) for v in marked]


def _outside(values: Values, counts: NDArray[np.int64], dated: bool, sign: float = 1.0) -> bool:
    """Return whether the first of the ascending values (n,), with their counts, is a marker.

    ``sign`` is -1 for values that were mirrored.
    """
    value, count = sign * values[0], counts[0]
    start = next((i for i in range(1, len(values)) if sign * values[i] not in LISTED), 1)
    remaining = values[min(start, MAX_MARKERS) :]
    if not len(remaining):
        return False
    gap, size = float(remaining[0] - values[0]), float(remaining[-1] - remaining[0])
    if dated:
        return bool(value in DATES and count >= 2 and gap > size / 2)
    if count >= REPEATED and len(remaining) >= 5 and gap >= ISOLATION * size:
        return True
    if value == 0 and sign > 0:
        return bool(
            count >= 2 and len(remaining) >= 10 and remaining[0] > 0.3 * np.median(remaining)
        )
    if value not in LISTED or count < 2:
        return bool(value in LISTED and value <= -99 and remaining[0] >= 0 and gap >= size > 0)
    if value < 0 and sign > 0 and remaining[0] >= 0:
        return bool(size >= 5 or gap > size)
    frequent = count >= max(5, FREQUENT * counts.sum()) and count >= 5 * counts[1:].max()
    return gap >= size > 0 or bool(
        abs(value) >= 99 and len(remaining) >= 20 and frequent and gap >= size / 10
    )


def _among_names(cells: Cells, k: int) -> Iterator[tuple[str, float]]:
    """Iterate over categories that are listed numbers, where all others are words."""
    names = cells.values[k]
    numeric = [name for name in names if _number(name) is not None]
    if len(numeric) < len(names) and all(_number(name) in LISTED for name in numeric):
        yield from ((name, float(names.index(name))) for name in numeric)


def _constant(cells: Cells, k: int) -> str:
    """Describe a measurement that has a single value at a client, and many elsewhere; empty if it
    is none.
    """
    counts_by_client, low, high = (
        extreme[:, k]
        for extreme in (cells.extremes.counts, cells.extremes.low, cells.extremes.high)
    )
    constant = (low == high) & (counts_by_client >= FEW_DISTINCT)
    if (
        cells.columns[k].kind == "category"
        or not constant.any()
        or constant.all()
        or not cells.names
    ):
        return ""
    remaining = [sample[:, k] for i, sample in enumerate(cells.samples) if not constant[i]]
    values, counts = np.unique(without_gaps(np.concatenate(remaining)), return_counts=True)
    if len(values) <= FEW_DISTINCT or counts.max() > counts.sum() / 2:
        return ""
    sites = np.flatnonzero(constant).tolist()
    phrases = [
        f"{digits(low[i])} in all {counts_by_client[i]} rows of {cells.names[i]}" for i in sites
    ]
    return (
        f"column {cells.columns[k].name}: {listed(phrases)}, and many values at the other clients; "
        "if "
        "it means that nothing was measured, data.missing_values = "
        f"{{{cells.columns[k].name} = [{digits(low[sites[0]])}]}}"
    )


def _number(name: str) -> float | None:
    try:
        return float(name)
    except ValueError:
        return None


def _line(cells: Cells, k: int, marked: list[tuple[str, float]]) -> str:
    """Describe the markers of a column."""
    column, values = cells.columns[k].name, cells.column(k)
    phrases, clients = [], []
    for text, value in marked:
        hits = values == value
        count = int(hits.sum())
        phrases.append(f"{text} in {count} row{'s' if count > 1 else ''}")
        of_client = np.bincount(cells.client[hits], minlength=len(cells.names))
        clients.append(by_size(list(zip(cells.names, of_client.tolist(), strict=True)), 3))
    clients_text = f" ({'; '.join(filter(None, clients))})" if any(clients) else ""
    remaining = without_gaps(np.where(np.isin(values, [v for _, v in marked]), np.nan, values))
    dated = cells.columns[k].kind == "date"
    written = _day if dated else digits
    remaining_text = (
        "words"
        if cells.values[k]
        else f"{written(float(remaining.min()))} to {written(float(remaining.max()))}"
    )
    quoted = ", ".join(f'"{text}"' if dated or cells.values[k] else text for text, _ in marked)
    return (
        f"column {column}: {listed(phrases)}{clients_text}, outside the others ({remaining_text}); "
        "if it marks a "
        f"missing value, data.missing_values = {{{column} = [{quoted}]}}"
    )


def _day(days: float) -> str:
    return (BEGINNING + timedelta(days=int(np.floor(days)))).isoformat()


def in_labels(dataset: Dataset) -> list[str]:
    """Warn about markers among class names that are numbers, and among measured targets."""
    remedy = 'leave these rows out: data.missing_values = {"*" = [%s]}, data.unlabelled = "drop"'
    if dataset.targets == "classes":
        numbers = [_number(name) for name in dataset.classes]
        if any(number is None for number in numbers):
            return []
        values = np.array(numbers, np.float64)[dataset.y.astype(np.int64)]
        columns = [("the label", values)]
    elif dataset.targets in {"regression", "survival"}:
        y = np.asarray(dataset.y, np.float64)[:, : 1 if dataset.targets == "survival" else None]
        names = dataset.labels or tuple(f"target {k}" for k in range(y.shape[1]))
        columns = [(f"label {name}", y[:, k]) for k, name in enumerate(names[: y.shape[1]])]
    else:
        return []
    lines = []
    for name, values in columns:
        marked = markers(values)
        if marked:
            counts = [f"{digits(v)} in {int((values == v).sum())} rows" for v in marked]
            lines.append(
                f"{name}: {listed(counts)}, far from the others; if it marks a missing value, "
                + remedy % ", ".join(map(digits, marked))
            )
    return lines

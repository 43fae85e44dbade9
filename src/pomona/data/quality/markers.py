"""Numbers and dates that stand for a missing value: -999, 99, 1900-01-01, repeated far outside."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import listed
from pomona.data.cell_values import number
from pomona.data.dataset import Dataset
from pomona.data.quality.cells import Cells, Values, by_size, capped, digits, without_gaps

LISTED = frozenset(
    sign * float(f"{digit}" * length)
    for digit in (7, 8, 9)
    for length in range(1, 7)
    for sign in (1, -1)
) | {-1.0, 96.0, 97.0, 98.0, 996.0, 997.0, 998.0, -97.0, -98.0, -997.0, -998.0}
EPOCH = np.datetime64("2000-01-01")
DATES = (
    "0001-01-01 1582-10-14 1753-01-01 1800-01-01 1899-12-30 1899-12-31 1900-01-01 1901-01-01 "
    "1960-01-01 1970-01-01 2099-12-31 2999-12-31 9999-12-31"
)
DAYS = (np.array(DATES.split(), "datetime64[D]") - EPOCH).astype(float)
MAX_MARKERS = 3  # markers at each end of a column
REPEATED = 3  # rows of a value outside the others that is not listed
MIN_ROWS = 10  # rows of a client with one value, and distinct values of a measurement
ISOLATION = 10.0  # times the others' range
FREQUENT = 0.01  # share of the rows of a marker that is not far from the others


class Marker(NamedTuple):
    """A value that looks like a marker, and the text that stands for it in a file."""

    value: float
    text: str


def in_features(cells: Cells) -> list[str]:
    """Warn about markers of missing values in the features of a table."""
    lines = []
    for k, name in cells.columns():
        markers, values, texts = _of_column(cells, k), cells.column(k), cells.raw.values[k]
        if not markers:
            continue
        remaining = without_gaps(values[~np.isin(values, [marker.value for marker in markers])])
        formatted = _day if cells.raw.columns[k].kind == "date" else digits
        low, high = formatted(remaining.min()), formatted(remaining.max())
        usual = "words" if texts else f"{low} to {high}"
        quote = '"' if texts or formatted is _day else ""
        quoted = ", ".join(f"{quote}{marker.text}{quote}" for marker in markers)
        line = (
            f"column {name}: {_counted(markers, values, cells)}, the others are {usual}; if "
            f"it marks a missing value, data.missing_values = {{{name} = [{quoted}]}}"
        )
        lines.append((name, line))
    return capped(lines)


def in_labels(cells: Cells) -> list[str]:
    """Warn about markers among class names that are numbers, and among measured targets."""
    return [
        f"{name}: {_counted(markers, values, cells)}, far from the others; if it marks a missing "
        'value, leave these rows out: data.missing_values = {"*" = '
        f'[{", ".join(marker.text for marker in markers)}]}}, data.unlabelled = "drop"'
        for name, values in _labels(cells.dataset).items()
        if (markers := [Marker(value, f"{value:.15g}") for value in outside(values)])
    ]


def _labels(dataset: Dataset) -> dict[str, Values]:
    """Return the labels that are numbers, by name: names of classes, or measured targets."""
    y = np.asarray(dataset.y, np.float64)
    if dataset.targets == "classes":
        numbers = np.array([number(name) for name in dataset.classes])
        return {} if np.isnan(numbers).any() else {"the label": numbers[y.astype(np.int64)]}
    if dataset.targets not in {"regression", "survival"}:
        return {}
    measured = y[:, : 1 if dataset.targets == "survival" else None].T
    names = dataset.labels or [f"target {k}" for k in range(len(measured))]
    return {f"label {name}": values for name, values in zip(names, measured, strict=False)}


def _of_column(cells: Cells, k: int) -> list[Marker]:
    """Return the markers of a column of a table."""
    column, names = cells.raw.columns[k], cells.raw.values[k]
    if column.kind == "date":
        return [Marker(days, _day(days)) for days in _dates(cells.column(k))]
    if column.kind == "number":
        marked = outside(cells.column(k)) if _is_suspect(cells, k) else []
        return [Marker(value, f"{value:.15g}") for value in marked or _constant(cells, k)]
    numeric = [name for name in names if not np.isnan(number(name))]
    if len(numeric) < len(names) and all(number(name) in LISTED for name in numeric):
        return [Marker(float(names.index(name)), name) for name in numeric]
    return []


def _counted(markers: Sequence[Marker], values: Values, cells: Cells) -> str:
    """Describe in how many rows markers are, and at which clients."""
    phrases = []
    for value, text in markers:
        count = int((values == value).sum())
        at_client = np.bincount(cells.client[values == value], minlength=len(cells.names))
        clients = f" ({by_size(cells.names, at_client, 3)})" if cells.names else ""
        phrases.append(f"{text} in {count} row{'s' if count > 1 else ''}{clients}")
    return listed(phrases)


def _day(days: float) -> str:
    """Return a date for a message."""
    return str(EPOCH + np.timedelta64(int(np.floor(days)), "D"))


def _dates(values: Values) -> list[float]:
    """Return the listed dates that repeat, and are far from the others or much more frequent."""
    days, counts = np.unique(without_gaps(values), return_counts=True)
    usual = days[~np.isin(days, DAYS)]
    if not len(usual):
        return []
    low, high = usual[0], usual[-1]
    margin = (high - low) / 2
    distant = (days < low - margin) | (days > high + margin)
    often = counts >= max(5, 10 * np.median(counts), FREQUENT * counts.sum())
    marked: list[float] = days[np.isin(days, DAYS) & (counts > 1) & (distant | often)].tolist()
    return marked


def _constant(cells: Cells, k: int) -> list[float]:
    """Return a value that a measurement has in all rows of a client, and many values elsewhere."""
    counts, low, high = (extreme[:, k] for extreme in cells.extremes)
    constant_sites = np.flatnonzero((low == high) & (counts >= MIN_ROWS))
    samples = [sample[:, k] for i, sample in enumerate(cells.samples) if i not in constant_sites]
    if not len(constant_sites) or not samples:
        return []
    repeats = np.unique(without_gaps(np.concatenate(samples)), return_counts=True)[1]
    varies = len(repeats) > MIN_ROWS and 2 * repeats.max() <= repeats.sum()
    return [float(low[constant_sites[0]])] if varies else []


def _is_suspect(cells: Cells, k: int) -> bool:
    """Return whether the lowest or the highest value may be a marker, by a sample of the rest."""
    _, lows, highs = cells.extremes
    low, high = np.fmin.reduce(lows[:, k]), np.fmax.reduce(highs[:, k])
    if not low < high:
        return False
    sample = without_gaps(np.concatenate([sample[:, k] for sample in cells.samples]))
    inner = sample[(sample > low) & (sample < high)]
    if {low, high} & LISTED or not len(inner) or low == 0:
        return True
    bottom, top = np.quantile(inner, (0.01, 0.99))
    return bool(max(high - top, bottom - low) > ISOLATION / 2 * (top - bottom))


def outside(values: Values) -> list[float]:
    """Return the values of a column (N,) that look like markers of missing values: a few at each
    end.
    """
    distinct, counts = np.unique(without_gaps(values), return_counts=True)
    start, end = 0, len(distinct)
    for _ in range(MAX_MARKERS):
        inner, times = distinct[start:end], counts[start:end]
        if len(inner) < 3:
            break
        start += _is_marker(inner, times)
        end -= _is_marker(-inner[::-1], times[::-1], mirrored=True)
    return [float(value) for value in (*distinct[:start], *distinct[end:])]


def _is_marker(values: Values, counts: NDArray[np.int64], mirrored: bool = False) -> bool:
    """Return whether the first of the ascending values (n,), with their counts, is a marker.

    The highest value is judged by values that are ``mirrored``.
    """
    value, count = float(values[0]), counts[0]
    is_listed = [(-v if mirrored else v) in LISTED for v in values[: MAX_MARKERS + 1].tolist()]
    # neighbours that are listed too do not count
    start = next((i for i in range(1, len(is_listed)) if not is_listed[i]), len(is_listed) - 1)
    following = values[min(start, MAX_MARKERS) :]
    gap, size = following[0] - value, following[-1] - following[0]
    if count >= REPEATED and len(following) >= 5 and gap >= ISOLATION * size:
        return True
    if value == 0 and not mirrored:
        return bool(
            count >= 2 and len(following) >= 10 and following[0] > 0.3 * np.median(following)
        )
    return is_listed[0] and _is_apart(value, counts, following, mirrored)


def _is_apart(value: float, counts: NDArray[np.int64], following: Values, mirrored: bool) -> bool:
    """Return whether a listed value is far enough from the rest, or frequent enough."""
    count, gap, size = counts[0], following[0] - value, following[-1] - following[0]
    if not mirrored and value < 0 <= following[0]:
        tenth = following[len(following) // 10] - following[0]  # the span of the lowest of them
        is_extreme = value <= -99 and gap >= size > 0
        single = is_extreme or (value < -1 and len(following) >= 20 and gap >= tenth)
        return bool(single if count < 2 else size >= 5 or gap > size)
    frequent = count >= max(5, FREQUENT * counts.sum(), 5 * counts[1:].max())
    among = abs(value) >= 99 and len(following) >= 20 and frequent and gap >= size / 10
    return bool(count >= 2 and (gap >= size > 0 or among))

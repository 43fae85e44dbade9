"""Conversion of stored labels to targets; times to an event and their intervals."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pomona.core.bounds import Targets
from pomona.core.errors import ConfigError, DataError, refuse, suggestion
from pomona.data import validation
from pomona.data.axes import ColumnData, ImageList
from pomona.data.cell_values import is_gap, is_missing, name, number, plain, quoted
from pomona.data.dataset import Dataset, Learn
from pomona.data.preprocessing import offset
from pomona.data.settings import EventTimes
from pomona.data.table_settings import Features
from pomona.data.tables.strays import CellCount, Strays

MOST_DIGITS = 18  # of a class name that may be a number
Answer = tuple[NDArray[np.generic], tuple[str, ...]]


def timed(dataset: Dataset, settings: EventTimes) -> Dataset:
    """Return survival data with the configured intervals, or ones to be learned from the training
    rows.

    Raises ConfigError for names of targets.
    """
    if settings.classes:
        raise ConfigError(
            "data.classes names classes or targets, and a time to an event is neither; remove it"
        )
    learn = partial(_learnt, settings.time_edges, settings.intervals, dataset.learn)
    return replace(dataset, labels=(), edges=settings.time_edges, learn=learn)


def edges(y: NDArray[np.generic], intervals: int) -> tuple[float, ...]:
    """Return the ends of at most ``intervals`` intervals: quantiles of the observed event times.

    Each end is an event time. Intervals contain about equally many events; the last ends at the
    last event. There are fewer if times repeat.
    """
    times = np.asarray(y, dtype=float)
    event_times = times[times[:, 1] > 0, 0]
    quantiles = np.quantile(
        event_times, np.arange(1, intervals + 1) / intervals, method="inverted_cdf"
    )
    return tuple(np.unique(quantiles).tolist())


def _learnt(
    fixed_edges: tuple[float, ...],
    intervals: int,
    learn_before: Learn | None,
    dataset: Dataset,
    rows: NDArray[np.int64],
    training: NDArray[np.int64] | None = None,
) -> Dataset:
    y = dataset.y[rows]
    if not y[:, 1].any():
        raise DataError(
            f"{dataset.name}: none of the {len(rows)} training rows has an event (1), all are "
            "censored; give rows with events, or look at data.label_columns: time, event"
        )
    learned = learn_before(dataset, rows, training) if learn_before else dataset
    return replace(
        learned,
        edges=fixed_edges or edges(y, intervals),
        learn=dataset.learn if learned.learn else None,
    )


def from_arrays(
    arrays: Sequence[tuple[str, NDArray[Any]]], targets_type: Targets, classes: tuple[str, ...] = ()
) -> Answer:
    """Return targets and class names from one array per part, each with its location.

    Class numbers are unchanged: without names there are as many classes as the largest number
    implies.

    Returns:
        y (N,) int64 and the class names; masks (N, *S) uint8 and the class names; or y (N, K)
        float32 and ().

    Raises:
        DataError: an invalid target of this type, with the location and the row.
    """
    if targets_type == "segmentation":
        return _masks(arrays, classes)
    if targets_type == "classes":
        n_known = len(classes) or None
        numbers = np.concatenate([validation.labels(y, n_known, source) for source, y in arrays])
        return numbers, classes or tuple(map(str, range(int(numbers.max(initial=-1)) + 1)))
    rows = [_real(y, targets_type, source) for source, y in arrays]
    for (source, _), y in zip(arrays, rows, strict=True):
        if y.shape[1] != rows[0].shape[1]:
            first = f"{arrays[0][0]} {rows[0].shape[1]}"
            raise DataError(f"{source} has {y.shape[1]} targets a row, {first}; give all the same")
    return np.concatenate(rows), ()


def _masks(arrays: Sequence[tuple[str, NDArray[Any]]], classes: tuple[str, ...]) -> Answer:
    """Join the masks of all parts, with their classes; without names, every number up to the
    largest must occur.
    """
    for source, y in arrays:
        validation.masks(y, len(classes) or None, source)
        if y.shape[1:] != arrays[0][1].shape[1:]:
            first = f"{arrays[0][0]} {arrays[0][1].shape[1:]}"
            raise DataError(
                f"masks of {source} have shape {y.shape[1:]}, those of {first}; give all the same"
            )
    masks = np.concatenate([y.astype(np.uint8) for _, y in arrays])
    if classes:
        return masks, classes
    values = np.flatnonzero(np.bincount(masks.reshape(-1), minlength=1))
    if len(values) < 2 or values[-1] != len(values) - 1:
        examples = ", ".join(map(str, values[:6])) or "nothing"
        raise DataError(
            f"{arrays[0][0]}: pixels of the masks are {examples}, not 0 (background), 1, 2, ...; "
            "number the classes in this way, or name all of them in data.classes"
        )
    return masks, ("background", *(f"class {k}" for k in values[1:]))


def _real(y: NDArray[Any], targets_type: Targets, source: str) -> NDArray[np.float32]:
    if y.dtype.kind not in "biuf" or y.ndim not in {1, 2}:
        raise DataError(
            f"{source}: y is {y.dtype} {y.shape}; {targets_type} needs numbers (N,) or (N, K)"
        )
    with np.errstate(over="ignore"):
        real = (y if y.ndim == 2 else y[:, None]).astype(np.float32)
    validation.finite(real, source)
    refuse(source, [line for column in y.reshape(real.shape).T for line in _close(column)])
    if targets_type == "multilabel":
        validation.flags(real, source)
    if targets_type == "survival":
        validation.times(real, source)
    return real


def _close(values: NDArray[Any]) -> list[str]:
    """Report numbers (N,) whose differences float32 would lose; NaN does not count."""
    base = offset(values[~np.isnan(values)])
    return [f"targets too close to each other for float32; subtract {base!r}"] if base else []


class LabelColumn(NamedTuple):
    """A label column: its heading, its N cells, a function that locates a row for messages, and
    the cells as numbers (N,), NaN where they are none, if they are already known.
    """

    heading: str
    cells: Sequence[str]
    location: Callable[[int], str]
    values: NDArray[np.float64] | None = None

    def numbers(self) -> NDArray[np.float64]:
        """Return the cells as numbers (N,), NaN where they are none."""
        if self.values is not None:
            return self.values
        return np.array([number(cell) for cell in self.cells], np.float64)

    def unlike(self, expected: str, good: NDArray[np.bool_], remedy: str = "") -> list[str]:
        """Report the cells that are not what they should be (N,); empty if all are."""
        rows = [int(row) for row in np.flatnonzero(~good)]
        if not rows:
            return []
        first = f"first {quoted(self.cells[rows[0]])} in {self.location(rows[0])}"
        hint = _hint(self.cells[row] for row in rows) or remedy
        return [
            f"label column {self.heading}: {len(rows)} of {len(self.cells)} are not {expected}, "
            f"{first}{hint}"
        ]


def from_cells(
    columns: Sequence[LabelColumn], settings: ColumnData | ImageList
) -> tuple[Answer, list[str]]:
    """Return targets and class names from the cells of label columns, and all problems.

    Args:
        columns: one for classes, several for other targets.
        settings: type of the labels, and the classes if known in advance.

    Returns:
        The targets as in ``from_arrays``, and one line per problem; with problems, the targets are
        unusable.
    """
    if settings.label_above is not None:
        return _above(columns[0], settings, settings.label_above)
    if settings.targets == "classes":
        return _classes(columns[0], settings.classes)
    if settings.targets == "survival" and len(columns) != 2:
        raise ConfigError(
            f"data.targets = survival, but there are {len(columns)} label columns; set "
            "data.label_columns to two: time, event"
        )
    real = np.array([column.numbers() for column in columns]).T
    checks = {"multilabel": [_no_flags], "survival": [_no_times, _no_flags]}.get(
        settings.targets, [_no_numbers]
    )
    judged = zip(cycle(checks), columns, real.T, strict=False)
    problems = [problem for check, column, values in judged for problem in check(column, values)]
    problems += [line for values in real.T for line in _close(values)]
    return (real.astype(np.float32), ()), problems


def unlabelled(settings: ColumnData) -> Callable[[str], bool]:
    """Return a function that tells whether a label cell means that its row is unlabelled.

    This includes gaps, and markers in ``data.missing_values`` for all columns unless they are class
    names.
    """
    marks, gap = label_marks(settings), is_missing if _has_names(settings) else is_gap
    names = {*map(plain, settings.classes)} if _has_names(settings) else set()
    return lambda cell: plain(cell) in marks or (gap(cell) and plain(cell) not in names)


def label_marks(settings: ColumnData) -> set[str]:
    """Return the markers of gaps in every column that are no class names."""
    names = map(plain, settings.classes) if _has_names(settings) else ()
    return {*map(plain, markers(settings))}.difference(names)


def _has_names(settings: ColumnData) -> bool:
    """Return whether labels are names of classes."""
    return settings.targets == "classes" and settings.label_above is None


def markers(settings: object) -> tuple[str, ...]:
    """Return the values that stand for a gap in every column."""
    return settings.missing_values.get("*", ()) if isinstance(settings, Features) else ()


def _hint(cells: Iterable[str]) -> str:
    """Return a hint at the setting that drops rows, if some of these cells are gaps."""
    if any(map(is_gap, cells)):
        return "; to leave out rows of a table without a label: data.unlabelled=drop"
    return ""


def _above(
    column: LabelColumn, settings: ColumnData | ImageList, bound: float
) -> tuple[Answer, list[str]]:
    """Return two classes: numbers up to ``data.label_above``, and those above it."""
    names = settings.classes
    if settings.targets != "classes" or len(names) not in {0, 2}:
        raise ConfigError(
            "data.label_above makes two classes of a column; name both or none in data.classes"
        )
    values = column.numbers()
    classes = names or (f"{column.heading} <= {bound:g}", f"{column.heading} > {bound:g}")
    return ((values > bound).astype(np.int64), classes), _no_numbers(column, values)


def _no_flags(column: LabelColumn, values: NDArray[np.float64]) -> list[str]:
    """Report values that are neither 0 nor 1."""
    return column.unlike("flags 0 or 1", np.isin(values, (0, 1)), "; write 1 for yes, 0 for no")


def _no_times(column: LabelColumn, values: NDArray[np.float64]) -> list[str]:
    """Report values that are not finite numbers above 0."""
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float32)
    return column.unlike(
        "times above 0", (rounded > 0) & np.isfinite(rounded), "; leave these rows out"
    )


def _no_numbers(column: LabelColumn, values: NDArray[np.float64]) -> list[str]:
    """Report values that are not finite."""
    cells = column.cells
    rows = np.flatnonzero(np.isnan(values)).tolist()
    readings = ["gap" if is_gap(cells[row]) else "stray" for row in rows]
    unread = [CellCount(cells[row], r, 1, row) for row, r in zip(rows, readings, strict=True)]
    if not unread:
        return []
    strays = Strays(column.heading, unread)
    return [f"label {strays.problem(len(cells), column.location)}{_hint(cells)}"]


def _classes(column: LabelColumn, classes: tuple[str, ...]) -> tuple[Answer, list[str]]:
    cells = _canonical(plain, column.cells)
    index = {plain(name): i for i, name in enumerate(classes)}
    counts = Counter(cells)
    invalid = [cell for cell in counts if (cell not in index if classes else is_missing(cell))]
    names = classes or in_order(cell for cell in counts if cell not in invalid)
    problems = []
    for cell in invalid:
        first, label = column.location(cells.index(cell)), quoted(cell).replace("''", "empty")
        problems.append(
            f"label column {column.heading}: {counts[cell]} of {len(cells)} are {label}, "
            f"first in {first}; {_advice(cell, classes)}"
        )
    index = index or {name: i for i, name in enumerate(names)}
    return (np.array([index.get(cell, -1) for cell in cells], np.int64), names), problems


def _advice(cell: str, classes: tuple[str, ...]) -> str:
    if not classes or is_missing(cell):
        remedy = ", or name it in data.classes" if cell else ""
        return (
            f"every row needs a label; leave these rows out (tables: data.unlabelled=drop){remedy}"
        )
    return f"an unknown class, {suggestion(cell, classes)}"


def numbered(names: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the distinct names in order, in canonical form, and each row's index (N,); gaps are
    one empty name.
    """
    names = _canonical(name, names)
    distinct = in_order(names)
    index = {canonical: i for i, canonical in enumerate(distinct)}
    return distinct, np.array([index[canonical] for canonical in names], np.int64)


def grouped(names: Sequence[str]) -> NDArray[np.int64]:
    """Return each row's group (N,); a row without a name is its own group."""
    index: dict[str | int, int] = {}
    return np.array(
        [index.setdefault(name(text) or row, len(index)) for row, text in enumerate(names)],
        np.int64,
    )


def _canonical(canonical: Callable[[str], str], cells: Sequence[str]) -> list[str]:
    """Return a form of each cell, made once for cells that are the same."""
    forms_by_cell = {cell: canonical(cell) for cell in set(cells)}
    return [forms_by_cell[cell] for cell in cells]


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct names, in numeric order if all are integers, else alphabetically."""
    distinct = set(names)
    digits = [name.removeprefix("-") for name in distinct]
    numeric = all(d.isascii() and d.isdecimal() and len(d) <= MOST_DIGITS for d in digits)
    return tuple(sorted(distinct, key=lambda name: (int(name) if numeric else 0, name)))

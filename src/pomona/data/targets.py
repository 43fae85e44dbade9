"""Conversion of stored labels to targets; times to an event and their intervals."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.bounds import Targets
from pomona.core.errors import ConfigError, DataError, near
from pomona.data import validation
from pomona.data.csv_columns import Strays, is_gap, is_missing, number, plain, short
from pomona.data.dataset import Dataset, Learn
from pomona.data.kinds import ColumnData, ImageManifest
from pomona.data.settings import DataSettings, EventTimes, Features

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
    seen = times[times[:, 1] > 0, 0]
    ends = np.quantile(seen, np.arange(1, intervals + 1) / intervals, method="inverted_cdf")
    return tuple(np.unique(ends).tolist())


def _learnt(
    given: tuple[float, ...],
    intervals: int,
    before: Learn | None,
    dataset: Dataset,
    rows: NDArray[np.int64],
) -> Dataset:
    y = dataset.y[rows]
    if not y[:, 1].any():
        raise DataError(
            f"{dataset.name}: none of the {len(rows)} training rows has an event (1), all are "
            "censored; give rows with "
            "events, or look at the order of data.label_columns: time, event"
        )
    known = before(dataset, rows) if before else dataset
    return replace(
        known, edges=given or edges(y, intervals), learn=dataset.learn if known.learn else None
    )


def from_arrays(
    parts: Sequence[tuple[str, NDArray[Any]]], kind: Targets, classes: tuple[str, ...] = ()
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
    if kind == "segmentation":
        return _masks(parts, classes)
    if kind == "classes":
        known = len(classes) or None
        numbers = np.concatenate([validation.labels(y, known, where) for where, y in parts])
        return numbers, classes or tuple(map(str, range(int(numbers.max(initial=-1)) + 1)))
    rows = [_real(y, kind, where) for where, y in parts]
    for (where, _), y in zip(parts, rows, strict=True):
        if y.shape[1] != rows[0].shape[1]:
            first = f"{parts[0][0]} {rows[0].shape[1]}"
            raise DataError(f"{where} has {y.shape[1]} targets a row, {first}; give all the same")
    return np.concatenate(rows), ()


def _masks(parts: Sequence[tuple[str, NDArray[Any]]], classes: tuple[str, ...]) -> Answer:
    """Join the masks of all parts, with their classes; without names, every number up to the
    largest must occur.
    """
    for where, y in parts:
        validation.masks(y, len(classes) or None, where)
        if y.shape[1:] != parts[0][1].shape[1:]:
            first = f"{parts[0][0]} {parts[0][1].shape[1:]}"
            raise DataError(
                f"masks of {where} have shape {y.shape[1:]}, those of {first}; give all the same"
            )
    masks = np.concatenate([y.astype(np.uint8) for _, y in parts])
    if classes:
        return masks, classes
    found = np.flatnonzero(np.bincount(masks.reshape(-1), minlength=1))
    if len(found) < 2 or found[-1] != len(found) - 1:
        said = ", ".join(map(str, found[:6])) or "nothing"
        raise DataError(
            f"{parts[0][0]}: pixels of the masks are {said}, not 0 (background), 1, 2, ...; number "
            "the classes in this way, or name all of them in data.classes"
        )
    return masks, ("background", *(f"class {k}" for k in found[1:]))


def _real(y: NDArray[Any], kind: Targets, where: str) -> NDArray[np.float32]:
    if y.dtype.kind not in "biuf" or y.ndim not in {1, 2}:
        raise DataError(
            f"{where}: targets are {y.dtype} {y.shape}; {kind} needs numbers (N,) or (N, K)"
        )
    with np.errstate(over="ignore"):
        real = (y if y.ndim == 2 else y[:, None]).astype(np.float32)
    validation.finite(real, where)
    if kind == "multilabel":
        validation.flags(real, where)
    if kind == "survival":
        validation.times(real, where)
    return real


def from_cells(
    columns: Sequence[Sequence[str]],
    headings: Sequence[str],
    settings: ColumnData | ImageManifest,
    where: Callable[[int], str],
) -> tuple[Answer, list[str]]:
    """Return targets and class names from the cells of label columns, and all problems.

    Args:
        columns: one sequence of N cells per column; one column for classes.
        headings: names of these columns.
        settings: type of the labels, and the classes if known in advance.
        where: returns the file and line of a row.

    Returns:
        The targets as in ``from_arrays``, and one line per problem; with problems, the targets are
        unusable.
    """
    if settings.label_above is not None:
        return _above(columns[0], headings[0], settings, where)
    if settings.targets == "classes":
        return _classes(columns[0], headings[0], settings.classes, where)
    if settings.targets == "survival" and len(columns) != 2:
        raise ConfigError(
            f"data.targets = survival, but {len(columns)} label columns; set data.label_columns "
            "to two: time, event"
        )
    real = np.array([[number(cell) for cell in column] for column in columns], np.float64).T
    tells = {"multilabel": [_no_flags], "survival": [_no_times, _no_flags]}.get(
        settings.targets, [_no_numbers]
    )
    judged = zip(cycle(tells), headings, columns, real.T, strict=False)
    problems = [tell(heading, cells, values, where) for tell, heading, cells, values in judged]
    return (real.astype(np.float32), ()), [problem for problem in problems if problem]


def unlabelled(settings: ColumnData) -> Callable[[str], bool]:
    """Return a function that tells whether a label cell means that its row is unlabelled.

    This includes gaps, and markers in ``data.missing_values`` for all columns unless they are class
    names.
    """
    marks = {*map(plain, _markers(settings))}
    named = settings.targets == "classes" and settings.label_above is None
    names = {*map(plain, settings.classes)} if named else set()
    gap = is_missing if named else is_gap
    return lambda cell: (gap(cell) or plain(cell) in marks) and plain(cell) not in names


def _markers(settings: DataSettings) -> tuple[str, ...]:
    """Return the values that stand for a gap in every column."""
    return settings.missing_values.get("*", ()) if isinstance(settings, Features) else ()


def _hint(cells: Iterable[str]) -> str:
    """Return a hint at the setting that drops rows, if some of these cells are gaps."""
    return (
        "; to leave out rows without a label: data.unlabelled=drop"
        if any(map(is_gap, cells))
        else ""
    )


def _above(
    cells: Sequence[str],
    heading: str,
    settings: ColumnData | ImageManifest,
    where: Callable[[int], str],
) -> tuple[Answer, list[str]]:
    """Return two classes: numbers up to ``data.label_above``, and those above it."""
    bound, names = settings.label_above, settings.classes
    assert bound is not None
    if settings.targets != "classes" or len(names) not in {0, 2}:
        raise ConfigError(
            "data.label_above makes two classes of a label column; name both or none in "
            "data.classes"
        )
    values = np.array([number(cell) for cell in cells], np.float64)
    problem = _no_numbers(heading, cells, values, where)
    classes = names or (f"{heading} <= {bound:g}", f"{heading} > {bound:g}")
    return ((values > bound).astype(np.int64), classes), [problem] if problem else []


def _no_flags(
    heading: str, cells: Sequence[str], values: NDArray[np.float64], where: Callable[[int], str]
) -> str:
    """Report values that are neither 0 nor 1."""
    return _not("flags 0 or 1", np.isin(values, (0, 1)), "", heading, cells, where)


def _no_times(
    heading: str, cells: Sequence[str], values: NDArray[np.float64], where: Callable[[int], str]
) -> str:
    """Report values that are not finite numbers above 0."""
    with np.errstate(over="ignore"):
        held = values.astype(np.float32)
    good = (held > 0) & np.isfinite(held)
    return _not("times above 0", good, "; leave these rows out", heading, cells, where)


def _not(
    what: str,
    good: NDArray[np.bool_],
    remedy: str,
    heading: str,
    cells: Sequence[str],
    where: Callable[[int], str],
) -> str:
    """Report cells that are not what they should be; empty if all are."""
    rows = [int(row) for row in np.flatnonzero(~good)]
    if not rows:
        return ""
    first = f"first {short(cells[rows[0]])} in {where(rows[0])}"
    hint = _hint(cells[row] for row in rows) or remedy
    return f"label column {heading}: {len(rows)} of {len(cells)} are not {what}, {first}{hint}"


def _no_numbers(
    heading: str, cells: Sequence[str], values: NDArray[np.float64], where: Callable[[int], str]
) -> str:
    """Report values that are not finite; empty if all are."""
    strays = Strays(heading)
    for row in np.flatnonzero(np.isnan(values)):
        strays.add(cells[int(row)], lambda cell: where(cells.index(cell)))
    return f"label {strays.problem(len(cells))}{_hint(cells)}" if strays.first else ""


def _classes(
    cells: Sequence[str], heading: str, classes: tuple[str, ...], where: Callable[[int], str]
) -> tuple[Answer, list[str]]:
    cells = list(map(plain, cells))
    index = {plain(name): i for i, name in enumerate(classes)}
    counts = Counter(cells)
    wrong = [cell for cell in counts if (cell not in index if classes else is_missing(cell))]
    names = classes or in_order(cell for cell in counts if cell not in wrong)
    problems = []
    for cell in wrong:
        first = (
            f"{counts[cell]} of {len(cells)} say {short(cell)}, first in {where(cells.index(cell))}"
        )
        problems.append(f"label column {heading}: {first}; {_advice(cell, classes)}")
    index = index or {name: i for i, name in enumerate(names)}
    return (np.array([index.get(cell, -1) for cell in cells], np.int64), names), problems


def _advice(cell: str, classes: tuple[str, ...]) -> str:
    if not classes or is_missing(cell):
        named = ", or name it in data.classes" if cell else ""
        return f"every row needs a label; leave these rows out by data.unlabelled=drop{named}"
    return f"an unknown class, {near(cell, classes)}"


def numbered(names: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the distinct names in order, in canonical form, and each row's index (N,)."""
    names = list(map(plain, names))
    distinct = in_order(names)
    index = {name: i for i, name in enumerate(distinct)}
    return distinct, np.array([index[name] for name in names], np.int64)


def grouped(names: Sequence[str]) -> NDArray[np.int64]:
    """Return each row's group (N,); a row without a name is its own group."""
    index: dict[str | int, int] = {}
    return np.array(
        [index.setdefault(plain(name) or row, len(index)) for row, name in enumerate(names)],
        np.int64,
    )


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct names, in numeric order if all are integers, else alphabetically."""
    distinct = set(names)
    digits = [name.removeprefix("-") for name in distinct]
    numeric = all(d.isascii() and d.isdecimal() and len(d) <= MOST_DIGITS for d in digits)
    return tuple(sorted(distinct, key=lambda name: (int(name) if numeric else 0, name)))

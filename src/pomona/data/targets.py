"""From what a source stores as labels to the targets of a data set."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.data import check
from pomona.data.settings import Targets
from pomona.errors import ConfigError, DataError, near

LARGEST = float(np.finfo(np.float32).max)
Answer = tuple[NDArray[np.generic], tuple[str, ...]]


def from_arrays(parts: Sequence[tuple[str, NDArray[Any]]], kind: Targets, classes: tuple[str, ...] = ()) -> Answer:
    """Targets and class names from one array a part, each with the place it came from.

    Class numbers stay as they are: without names there are as many classes as the largest number says.

    Returns:
        y (N,) int64 and the class names, or y (N, K) float32 and ().

    Raises:
        DataError: anything that is no target of this kind, with the place and the row.
    """
    if kind == "classes":
        known = len(classes) or None
        numbers = np.concatenate([check.labels(y, known, where) for where, y in parts])
        return numbers, classes or tuple(map(str, range(int(numbers.max(initial=-1)) + 1)))
    return np.concatenate([_real(y, kind, where) for where, y in parts]), ()


def _real(y: NDArray[Any], kind: Targets, where: str) -> NDArray[np.float32]:
    if y.dtype.kind not in "biuf" or y.ndim not in {1, 2}:
        raise DataError(f"{where}: targets are {y.dtype} {y.shape}; {kind} needs numbers (N,) or (N, K)")
    with np.errstate(over="ignore"):
        real = (y if y.ndim == 2 else y[:, None]).astype(np.float32)
    check.finite(real, where)
    if kind == "multilabel":
        check.flags(real, where)
    return real


def from_cells(cells: Sequence[str], kind: Targets, classes: tuple[str, ...], where: Callable[[int], str]) -> Answer:
    """Targets and class names from one text a row; ``where(row)`` is its file and line.

    Raises:
        DataError: a class that is not among ``classes``, or a target that is not a finite number.
        ConfigError: several flags do not fit one column.
    """
    if kind == "multilabel":
        raise ConfigError("data.targets = multilabel needs several labels a row; store x and y (N, K) in an .npz")
    if kind == "regression":
        return np.array(numbers(cells, where), np.float32)[:, None], ()
    names = classes or in_order(cells)
    index = {name: i for i, name in enumerate(names)}
    for row, cell in enumerate(cells):
        if cell not in index or not cell:
            hint = near(cell, names) if cell else "every row needs a label"
            raise DataError(f"{where(row)}: unknown class {cell!r}; {hint}")
    return np.array([index[cell] for cell in cells], np.int64), names


def numbers(cells: Iterable[str], where: Callable[[int], str]) -> list[float]:
    """The numbers in cells, finite in float32. Raises DataError for anything else; ``where(i)`` places cell i."""
    values = []
    for i, cell in enumerate(cells):
        try:
            values.append(float(cell))
        except ValueError:
            values.append(math.nan)
        if not abs(values[-1]) <= LARGEST:
            raise DataError(f"{where(i)}: {cell!r} is not a finite number; correct it or drop the row")
    return values


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """The distinct names, as numbers if all are whole numbers, else by the alphabet."""
    distinct = set(names)
    numeric = all(name.removeprefix("-").isdecimal() for name in distinct)
    return tuple(sorted(distinct, key=lambda name: (int(name) if numeric else 0, name)))

"""From what a source stores as labels to the targets of a data set."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.data import check
from pomona.data.settings import Targets
from pomona.errors import ConfigError, DataError, near

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
        return np.array([[number(c, lambda row=r: where(row))] for r, c in enumerate(cells)], np.float32), ()
    names = classes or in_order(cells)
    index = {name: i for i, name in enumerate(names)}
    for row, cell in enumerate(cells):
        if cell not in index or not cell:
            hint = near(cell, names) if cell else "every row needs a label"
            raise DataError(f"{where(row)}: unknown class {cell!r}; {hint}")
    return np.array([index[cell] for cell in cells], np.int64), names


def number(cell: str, where: Callable[[], str]) -> float:
    """The finite float32-sized number in a cell. Raises DataError naming the place for anything else."""
    try:
        value = float(cell)
    except ValueError:
        value = float("nan")
    if not abs(value) <= float(np.finfo(np.float32).max):
        raise DataError(f"{where()}: {cell!r} is not a finite number; correct it or drop the row")
    return value


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """The distinct names, as numbers if all are whole numbers, else by the alphabet."""
    distinct = set(names)
    numeric = all(name.removeprefix("-").isdecimal() for name in distinct)
    return tuple(sorted(distinct, key=lambda name: (int(name) if numeric else 0, name)))

"""Validation of everything that readers return; messages name the file, row and remedy."""

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.bounds import LARGEST
from pomona.core.errors import DataError
from pomona.data.dataset import FORMS, Dataset, Kind, Owners
from pomona.data.preprocessing import LONGEST_NAME

MOST_CLASSES = 100_000
BLOCK = 1 << 16  # rows
BLOCK_VALUES = 1 << 24  # fewer for images or volumes


def blocks(array: NDArray[Any], rows: int | None = None) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield (first row, view of the next rows), to avoid temporaries as large as the array."""
    rows = rows or min(BLOCK, max(1, BLOCK_VALUES // max(1, prod(array.shape[1:]))))
    for start in range(0, len(array), rows):
        yield start, array[start : start + rows]


def labels(y: NDArray[Any], n_classes: int | None, where: str) -> NDArray[np.int64]:
    """Validate class numbers (N,) or (N, 1) as (N,) int64, also 1.0 for 1; any below 100,000 if
    ``n_classes`` is None.

    Raises:
        DataError: not integers, not one per row, or out of range (with the count and the first
            row).
    """
    if y.dtype.kind not in "biu" and not _whole(y):
        raise DataError(
            f"{where}: labels are {y.dtype.newbyteorder('=')}, not whole numbers{_between(y)}; "
            'give numbers or names of classes, or set data.targets = "regression"'
        )
    if y.ndim != 1 and y.shape[1:] != (1,):
        raise DataError(
            f"{where}: labels have shape {y.shape}, not one a row; give class numbers, or set "
            'data.targets = "multilabel" or "regression"'
        )
    flat = y.reshape(-1)
    end = MOST_CLASSES if n_classes is None else n_classes
    bad = np.flatnonzero((flat < 0) | (flat >= end))
    if bad.size:
        raise DataError(
            f"{where}: {bad.size} labels are not class numbers from 0 to {end - 1}, "
            f"first {flat[bad[0]]} in row {bad[0]}; correct them"
        )
    return flat.astype(np.int64)


def _whole(y: NDArray[Any]) -> bool:
    """Return whether all are whole numbers with a decimal point."""
    return y.dtype.kind == "f" and bool((y == np.floor(y)).all() and np.isfinite(y).all())


MOST_MASK_CLASSES = 256


def masks(y: NDArray[Any], n_classes: int | None, where: str) -> None:
    """Raise DataError unless ``y`` has class numbers (N, *S) of pixels, also 1.0 for 1; any 8-bit
    value if ``n_classes`` is None.
    """
    if (y.dtype.kind not in "biu" and not _whole(y)) or y.ndim not in {3, 4}:
        raise DataError(
            f"{where}: masks are {y.dtype} {y.shape}; store whole numbers (N, H, W), or (N, D, H, "
            "W) of volumes"
        )
    end = min(n_classes or MOST_MASK_CLASSES, MOST_MASK_CLASSES)
    for start, block in blocks(y, max(1, BLOCK // max(1, y[0].size if len(y) else 1))):
        wrong = (block < 0) | (block >= end)
        if wrong.any():
            row = int(wrong.reshape(len(block), -1).any(axis=1).argmax())
            raise DataError(
                f"{where}: the mask in row {start + row} has the value "
                f"{block[row][wrong[row]][0]}, the classes are 0 "
                f"to {end - 1}; correct it, or name all classes in data.classes"
            )


def _between(y: NDArray[Any]) -> str:
    """Describe the first label that is not an integer; empty if there is none or labels are not
    numbers.
    """
    if y.dtype.kind != "f" or not len(y):
        return ""
    rows = np.flatnonzero((y != np.floor(y)).reshape(len(y), -1).any(axis=1))
    return f" (first {y[rows[0]]} in row {rows[0]})" if rows.size else ""


def finite(x: NDArray[Any], where: str) -> None:
    """Raise DataError with the count and the first row if values are NaN, infinite, or too large to
    be measurements.
    """
    wrong = lambda block: ~(np.abs(block) <= LARGEST)  # noqa: E731
    _none_bad(x, wrong, where, "hold NaN, infinite or too large numbers")


def _none_bad(x: NDArray[Any], wrong: Any, where: str, what: str) -> None:
    """Raise DataError if ``wrong`` is true anywhere in (N, ...) ``x``."""
    count, first = 0, -1
    for start, block in blocks(x):
        rows = np.flatnonzero(wrong(block).reshape(len(block), -1).any(axis=1))
        if rows.size and not count:
            first = start + int(rows[0])
        count += rows.size
    if count:
        raise DataError(f"{where}: {count} rows {what}, first row {first}; correct or drop them")


def flags(y: NDArray[Any], where: str) -> None:
    """Raise DataError with the count and the first row if multi-label targets are neither 0 nor
    1.
    """
    _none_bad(y, lambda block: (block != 0) & (block != 1), where, "hold flags other than 0 and 1")


def times(y: NDArray[Any], where: str) -> None:
    """Raise DataError unless targets (N, 2) are times above 0 and event flags 0 or 1."""
    if y.ndim != 2 or y.shape[1] != 2:
        raise DataError(
            f"{where}: targets are {y.shape}; survival needs (N, 2), the time and the event (0 or "
            "1)"
        )
    _none_bad(y[:, :1], lambda block: ~(block > 0), where, "hold times that are not above 0")
    _none_bad(
        y[:, 1:], lambda block: (block != 0) & (block != 1), where, "hold events other than 0 and 1"
    )


def checked(dataset: Dataset) -> Dataset:
    """Return the data set after checking everything that ``Dataset`` promises.

    Raises:
        DataError: invalid counts, shapes, dtypes, labels, numbers, normalisation or owners.
    """
    _counts(dataset)
    name, n = dataset.name, len(dataset.y)
    inputs(dataset.x, dataset.kind, dataset.vocabulary, name)
    _targets(dataset)
    _normalisation(dataset)
    if dataset.owners is not None:
        _owners(dataset.owners, n, name)
    for what, numbers in (
        ("groups", dataset.groups and dataset.groups.number),
        ("times", dataset.times),
    ):
        if numbers is not None and (numbers.shape != (n,) or not np.isfinite(numbers).all()):
            raise DataError(
                f"{name}: {what} are {numbers.dtype} {numbers.shape}; give each row one finite "
                "number"
            )
    _names(dataset)
    return dataset


def _counts(dataset: Dataset) -> None:
    """Raise DataError unless x and y are arrays of as many rows, of which some are for training."""
    name = dataset.name
    _array(dataset.x, f"{name}: x")
    _array(dataset.y, f"{name}: y")
    n = len(dataset.y)
    if len(dataset.x) != n:
        raise DataError(f"{name}: {len(dataset.x)} inputs but {n} labels; give each row one label")
    if not n:
        raise DataError(f"{name} has no rows; give some")
    if not 1 <= dataset.n_train <= n:
        raise DataError(f"{name}: {dataset.n_train} of {n} rows are for training; give 1 to {n}")


def _array(array: object, where: str) -> None:
    """Raise DataError unless it is a plain array with rows: one with masked cells hides values."""
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray) or not array.ndim:
        raise DataError(
            f"{where} is a {type(array).__name__}; give a NumPy array with a row for each sample, "
            "NaN where a value is missing"
        )


def _normalisation(dataset: Dataset) -> None:
    for values in (dataset.shift, dataset.scale):
        if len(values) not in {1, dataset.x.shape[-1]} or not np.isfinite(values).all():
            raise DataError(
                f"{dataset.name}: shift and scale need one finite value, or one for each entry of "
                "the last axis"
            )
    if min(dataset.scale) <= 0:
        raise DataError(f"{dataset.name}: scale must be positive")


def inputs(x: NDArray[Any], kind: Kind, vocabulary: int, name: str) -> None:
    """Raise DataError unless ``x`` has the form that ``Dataset`` defines for its kind: dtype, axes,
    values, tokens.
    """
    form = FORMS[kind]
    if x.dtype not in form.dtypes or x.ndim - 1 not in form.ranks or 0 in x.shape[1:]:
        dtypes = " or ".join(filter(None, (", ".join(form.dtypes[:-1]), form.dtypes[-1])))
        raise DataError(
            f"{name}: x is {x.dtype} {x.shape}; {kind} data is {dtypes} {form.axes} with no empty "
            "axis"
        )
    if x.dtype.kind == "f":
        finite(x, f"{name}: x")
    if kind == "text":
        what = f"hold token numbers outside 0 to {vocabulary - 1}"
        _none_bad(x, lambda block: (block < 0) | (block >= vocabulary), f"{name}: x", what)


def _targets(dataset: Dataset) -> None:
    name, y, classes = dataset.name, dataset.y, dataset.classes
    if dataset.targets == "segmentation":
        _masks(dataset)
        return
    if classes:
        if y.dtype != np.int64 or y.ndim != 1:
            raise DataError(f"{name}: y is {y.dtype} {y.shape}; class numbers are int64 (N,)")
        if len(set(classes)) < len(classes):
            raise DataError(f"{name}: two classes have the same name; name each once")
        labels(y, len(classes), f"{name}: y")
        return
    if y.dtype != np.float32 or y.ndim != 2 or not y.shape[1]:
        raise DataError(
            f"{name}: y is {y.dtype} {y.shape}; targets without classes are float32 (N, K), K at "
            "least 1"
        )
    finite(y, f"{name}: y")
    if dataset.target_kind == "survival":
        times(y, f"{name}: y")
    if dataset.target_kind == "multilabel":
        flags(y, f"{name}: y")


def _masks(dataset: Dataset) -> None:
    """Raise DataError unless images have masks of their size, and two or more classes with distinct
    names.
    """
    name, y, classes = dataset.name, dataset.y, dataset.classes
    if dataset.kind != "image":
        raise DataError(
            f"{name}: masks are for images, this is a {dataset.kind}; set data.targets to another"
        )
    if y.dtype != np.uint8:
        raise DataError(f"{name}: masks are {y.dtype}; store uint8 class numbers")
    if y.shape[1:] != dataset.x.shape[1:-1]:
        raise DataError(
            f"{name}: images have {dataset.x.shape[1:-1]} pixels, masks {y.shape[1:]}; give each "
            "pixel its class"
        )
    if not 2 <= len(classes) <= MOST_MASK_CLASSES or len(set(classes)) < len(classes):
        raise DataError(
            f"{name}: {len(classes)} names of classes; name each of 2 to {MOST_MASK_CLASSES} once"
        )
    masks(y, len(classes), f"{name}: masks")


def _names(dataset: Dataset) -> None:
    """Raise DataError unless there is one name for each column, target and word."""
    features = dataset.x.shape[1] if dataset.kind == "table" else len(dataset.columns)
    targets = 0 if dataset.classes else dataset.y.shape[1]
    for what, names, count in (
        ("columns", dataset.columns, features),
        ("targets", dataset.labels, targets),
        (
            "words",
            dataset.words,
            min(len(dataset.words), dataset.vocabulary - 2),
        ),  # some tokens may not have a word
    ):
        if names and (len(names) != count or len(set(names)) < count):
            shown = ", ".join(map(repr, names[:6]))
            raise DataError(
                f"{dataset.name}: {count} {what}, but the names {shown}; give each its own name"
            )
        if what != "words" and any(not 1 <= len(name) <= LONGEST_NAME for name in names):
            raise DataError(
                f"{dataset.name}: the name of one of the {what} is empty or longer than "
                f"{LONGEST_NAME} characters; give another"
            )


def _owners(owners: Owners, n: int, name: str) -> None:
    if len(set(owners.names)) < len(owners.names) or "" in owners.names:
        raise DataError(f"{name}: two clients have the same name, or one has none; name each once")
    for what, array, dtype, end in (
        ("client", owners.client, np.int64, len(owners.names)),
        ("role", owners.role, np.int8, 3),
    ):
        _array(array, f"{name}: {what} of the owners")
        if array.dtype != dtype or array.shape != (n,):
            raise DataError(
                f"{name}: {what} of the owners is {array.dtype} {array.shape}, not "
                f"{np.dtype(dtype)} ({n},)"
            )
        labels(array, end, f"{name}: {what} of the owners")

"""Validation of everything that readers return; messages name the file, row and remedy."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.bounds import LARGEST
from pomona.core.errors import DataError, listed
from pomona.data.dataset import INPUT_FORMS, Dataset, InputKind, Owners
from pomona.data.preprocessing import LONGEST_NAME

MOST_CLASSES = 100_000
MOST_MASK_CLASSES = 256
BLOCK = 1 << 16  # rows
BLOCK_VALUES = 1 << 24  # fewer for images or volumes


def blocks(array: NDArray[Any], rows: int | None = None) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield (first row, view of the next rows), to avoid temporaries as large as the array."""
    rows = rows or min(BLOCK, max(1, BLOCK_VALUES // max(1, prod(array.shape[1:]))))
    for start in range(0, len(array), rows):
        yield start, array[start : start + rows]


def labels(y: NDArray[Any], n_classes: int | None, source: str) -> NDArray[np.int64]:
    """Validate class numbers (N,) or (N, 1) as (N,) int64, also 1.0 for 1; any below 100,000 if
    ``n_classes`` is None.

    Raises:
        DataError: not integers, not one per row, or out of range (with the count and the first
            row).
    """
    if not _integral(y):
        raise DataError(
            f"{source}: labels are {y.dtype.newbyteorder('=')}, not whole numbers{_between(y)}; "
            'give numbers or names of classes, or set data.targets = "regression"'
        )
    if y.ndim != 1 and y.shape[1:] != (1,):
        raise DataError(
            f"{source}: labels have shape {y.shape}, not one per row; give class numbers, or set "
            'data.targets = "multilabel", "regression" or "segmentation"'
        )
    flat = y.reshape(-1)
    end = MOST_CLASSES if n_classes is None else n_classes
    bad = np.flatnonzero((flat < 0) | (flat >= end))
    if bad.size:
        raise DataError(
            f"{source}: {bad.size} labels are not class numbers from 0 to {end - 1}, "
            f"first {flat[bad[0]]} in row {bad[0]}; correct them"
        )
    return flat.astype(np.int64)


def _integral(y: NDArray[Any]) -> bool:
    """Return whether all are whole numbers, with or without a decimal point."""
    floats = y.dtype.kind == "f" and bool((np.isfinite(y) & (y == np.floor(y))).all())
    return floats or y.dtype.kind in "biu"


def _between(y: NDArray[Any]) -> str:
    """Describe the first number that is not whole; empty if they are not numbers."""
    rows: Any = np.argwhere(y != np.floor(y)) if y.dtype.kind == "f" else ()
    return f" (first {y[rows[0][0]]} in row {rows[0][0]})" if len(rows) else ""


def masks(y: NDArray[Any], n_classes: int | None, source: str) -> None:
    """Raise DataError unless ``y`` has class numbers (N, *S) of pixels, also 1.0 for 1; any 8-bit
    value if ``n_classes`` is None.
    """
    if not _integral(y) or y.ndim not in {3, 4}:
        raise DataError(
            f"{source}: masks are {y.dtype} {y.shape}; store whole numbers (N, H, W), or (N, D, H, "
            "W) of volumes"
        )
    end = min(n_classes or MOST_MASK_CLASSES, MOST_MASK_CLASSES)
    for start, block in blocks(y, max(1, BLOCK // max(1, y[0].size if len(y) else 1))):
        invalid = (block < 0) | (block >= end)
        if invalid.any():
            row = int(np.argwhere(invalid)[0, 0])
            raise DataError(
                f"{source}: the mask in row {start + row} has the value "
                f"{block[row][invalid[row]][0]}, the classes are 0 "
                f"to {end - 1}; correct it, or name all classes in data.classes"
            )


def finite(x: NDArray[Any], source: str) -> None:
    """Raise DataError with the count and the first row if values are NaN, infinite, or too large to
    be measurements.
    """
    invalid = lambda block: ~(np.abs(block) <= LARGEST)  # noqa: E731
    _refuse_rows(x, invalid, source, "hold NaN, infinite or too large numbers")


def flags(y: NDArray[Any], source: str, name: str = "flags") -> None:
    """Raise DataError with the count and the first row if flags are neither 0 nor 1."""
    _refuse_rows(
        y, lambda block: (block != 0) & (block != 1), source, f"hold {name} other than 0 and 1"
    )


def times(y: NDArray[Any], source: str) -> None:
    """Raise DataError unless targets (N, 2) are times above 0 and event flags 0 or 1."""
    if y.ndim != 2 or y.shape[1] != 2:
        raise DataError(
            f"{source}: targets are {y.shape}; survival needs (N, 2), time and event (0, 1)"
        )
    _refuse_rows(y[:, :1], lambda block: ~(block > 0), source, "hold times that are not above 0")
    flags(y[:, 1:], source, "events")


def _refuse_rows(
    x: NDArray[Any], invalid: Callable[[NDArray[Any]], Any], source: str, problem: str
) -> None:
    """Raise DataError if ``invalid`` is true anywhere in (N, ...) ``x``."""
    count, first = 0, -1
    for start, block in blocks(x):
        rows = np.flatnonzero(invalid(block).reshape(len(block), -1).any(axis=1))
        if rows.size and not count:
            first = start + int(rows[0])
        count += rows.size
    if count:
        raise DataError(
            f"{source}: {count} rows {problem}, first row {first}; correct or drop them"
        )


def checked(dataset: Dataset) -> Dataset:
    """Return the data set after checking everything that ``Dataset`` promises.

    Raises:
        DataError: invalid counts, shapes, dtypes, labels, numbers, normalisation or owners.
    """
    name = dataset.name
    _refuse_first(name, _counts(dataset))
    inputs(dataset.x, dataset.kind, dataset.vocabulary, name)
    _targets(dataset)
    _refuse_first(name, _columns(dataset))
    if dataset.owners is not None:
        _owners(dataset.owners, len(dataset.y), name)
    _refuse_first(name, _names(dataset))
    return dataset


def _refuse_first(name: str, problems: Iterator[str]) -> None:
    """Raise DataError for the first problem; later checks may rest on it."""
    for problem in problems:
        raise DataError(f"{name}: {problem}")


def _counts(dataset: Dataset) -> Iterator[str]:
    """Yield a problem unless x and y are arrays of as many rows, of which some are for training."""
    yield from _unlike_arrays({"x": dataset.x, "y": dataset.y})
    n = len(dataset.y)
    if len(dataset.x) != n:
        yield f"{len(dataset.x)} inputs but {n} labels; give each row one label"
    if not n:
        yield "it has no rows; give some"
    if not 1 <= dataset.n_train <= n:
        yield f"{dataset.n_train} of {n} rows are for training; give 1 to {n}"


def _unlike_arrays(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a problem for values that are not plain arrays with rows; masked cells hide values."""
    for name, array in values.items():
        plain = isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray)
        if not plain or not np.ndim(array):
            yield (
                f"{name} is a {type(array).__name__}; give a NumPy array with a row for each "
                "sample, NaN where a value is missing"
            )


def _columns(dataset: Dataset) -> Iterator[str]:
    """Yield the problems of the normalisation, and of the groups and times of rows."""
    for values in (dataset.shift, dataset.scale):
        if len(values) not in {1, dataset.x.shape[-1]} or not np.isfinite(values).all():
            yield ("shift and scale need one finite value, or one for each entry of the last axis")
    if min(dataset.scale) <= 0:
        yield "scale must be positive"
    groups = dataset.groups and dataset.groups.number
    for name, numbers in (("groups", groups), ("times", dataset.times)):
        n = len(dataset.y)
        if numbers is not None and (numbers.shape != (n,) or not np.isfinite(numbers).all()):
            yield f"{name} are {numbers.dtype} {numbers.shape}; give each row one finite number"


def inputs(x: NDArray[Any], data_kind: InputKind, vocabulary: int, name: str) -> None:
    """Raise DataError unless ``x`` has the form that ``Dataset`` defines for its kind: dtype, axes,
    values, tokens.
    """
    allowed = INPUT_FORMS[data_kind]
    if x.dtype not in allowed.dtypes or x.ndim - 1 not in allowed.ranks or 0 in x.shape[1:]:
        dtypes = " or ".join(filter(None, (", ".join(allowed.dtypes[:-1]), allowed.dtypes[-1])))
        raise DataError(
            f"{name}: x is {x.dtype} {x.shape}; {data_kind} data is {dtypes} {allowed.axes} with "
            "no empty axis"
        )
    if x.dtype.kind == "f":
        finite(x, f"{name}: x")
    if data_kind == "text":
        problem = f"hold token numbers outside 0 to {vocabulary - 1}"
        _refuse_rows(x, lambda block: (block < 0) | (block >= vocabulary), f"{name}: x", problem)


def _targets(dataset: Dataset) -> None:
    """Raise DataError unless the targets have the form of their type."""
    source = f"{dataset.name}: y"
    if dataset.targets == "segmentation":
        _refuse_first(dataset.name, _masks(dataset))
        masks(dataset.y, len(dataset.classes), f"{dataset.name}: masks")
    elif dataset.classes:
        _refuse_first(dataset.name, _classes(dataset))
        labels(dataset.y, len(dataset.classes), source)
    else:
        _refuse_first(dataset.name, _numbers(dataset))
        finite(dataset.y, source)
        if dataset.target_kind == "survival":
            times(dataset.y, source)
        if dataset.target_kind == "multilabel":
            flags(dataset.y, source)


def _classes(dataset: Dataset) -> Iterator[str]:
    y, classes = dataset.y, dataset.classes
    if y.dtype != np.int64 or y.ndim != 1:
        yield f"y is {y.dtype} {y.shape}; class numbers are int64 (N,)"
    if len(set(classes)) < len(classes):
        yield "two classes have the same name; name each once"


def _numbers(dataset: Dataset) -> Iterator[str]:
    y = dataset.y
    if y.dtype != np.float32 or y.ndim != 2 or not y.shape[1]:
        yield (
            f"y is {y.dtype} {y.shape}; targets without classes are float32 (N, K), K at least 1"
        )


def _masks(dataset: Dataset) -> Iterator[str]:
    """Yield a problem unless images have masks of their size, and two or more classes with distinct
    names.
    """
    x, y, classes = dataset.x, dataset.y, dataset.classes
    if dataset.kind != "image":
        yield f"masks are for images, this is a {dataset.kind}; set data.targets to another"
    if y.dtype != np.uint8:
        yield f"masks are {y.dtype}; store uint8 class numbers"
    if y.shape[1:] != x.shape[1:-1]:
        yield f"images have {x.shape[1:-1]} pixels, masks {y.shape[1:]}; give each pixel its class"
    if not 2 <= len(classes) <= MOST_MASK_CLASSES or len(set(classes)) < len(classes):
        yield f"{len(classes)} names of classes; name each of 2 to {MOST_MASK_CLASSES} once"


def _names(dataset: Dataset) -> Iterator[str]:
    """Yield a problem unless there is one name for each column, target and word."""
    features = dataset.x.shape[1] if dataset.kind == "table" else len(dataset.columns)
    targets = 0 if dataset.classes else dataset.y.shape[1]
    n_words = min(len(dataset.words), dataset.vocabulary - 2)  # some tokens may not have a word
    for title, names, count in (
        ("columns", dataset.columns, features),
        ("targets", dataset.labels, targets),
        ("words", dataset.words, n_words),
    ):
        if names and (len(names) != count or len(set(names)) < count):
            listing = ", ".join(map(repr, names[:6]))
            yield f"{count} {title}, but the names {listing}; give each its own name"
        if title != "words" and any(not 1 <= len(name) <= LONGEST_NAME for name in names):
            yield f"one of the {title} has an empty name or one over {LONGEST_NAME} characters"


def _owners(owners: Owners, n: int, name: str) -> None:
    counts = Counter(owners.names)
    if unnamed := [repr(client) for client in counts if not client or counts[client] > 1]:
        raise DataError(f"{name}: clients without a name of their own: {listed(unnamed)}; add one")
    for title, array, dtype, end in (
        ("client", owners.client, np.dtype(np.int64), len(owners.names)),
        ("role", owners.role, np.dtype(np.int8), 3),
    ):
        source = f"{title} of the owners"
        _refuse_first(name, _unlike_arrays({source: array}))
        if array.dtype != dtype or array.shape != (n,):
            raise DataError(f"{name}: {source} is {array.dtype} {array.shape}, not {dtype} ({n},)")
        labels(array, end, f"{name}: {source}")

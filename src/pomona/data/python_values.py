"""Values of a Python program as arrays: those of NumPy and PyTorch, lists, data sets of pairs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError
from pomona.data import cell_values
from pomona.data.array_file import StoredArray


def stored(values: NDArray[Any], where: str) -> StoredArray:
    """Return an array in memory in the form of one in a file, for the same readers.

    Raises DataError unless it holds numbers.
    """
    if values.dtype.kind not in "biuf":
        raise DataError(f"{where} is {values.dtype}; give numbers, or names of classes as y")
    return StoredArray(where, values.shape, values.dtype, partial(_bytes, values))


@contextmanager
def _bytes(values: NDArray[Any]) -> Iterator[IO[bytes]]:
    yield BytesIO(np.ascontiguousarray(values).data)


def array(values: Any, where: str) -> NDArray[Any]:
    """Return values (n, ...) as an array. Raises DataError."""
    if isinstance(values, np.ma.MaskedArray):
        raise DataError(f"{where} has masked cells; give NaN where a value is missing")
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    try:
        found = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as fault:
        raise DataError(
            f"{where}: {type(values).__name__} is no array ({fault}); give one"
        ) from None
    if not found.ndim:
        raise DataError(f"{where} is a {type(values).__name__}; give an array with one entry a row")
    return found


def names(values: Any, where: str) -> list[str]:
    """Return names (n,) as texts. Raises DataError for other shapes."""
    found = array(values, where)
    if found.ndim != 1:
        raise DataError(f"{where} has shape {found.shape}; give one name a row")
    return ["" if one is None else cell_values.name(str(one)) for one in found.tolist()]


def pair(values: Any, where: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the x and y of a client's pair of arrays, or of all items of its data set."""
    if isinstance(values, tuple) and len(values) == 2:
        return array(values[0], f"{where}, x"), array(values[1], f"{where}, y")
    try:
        items = [values[k] for k in range(len(values))]
        x, y = zip(*items, strict=True)
    except (TypeError, ValueError, KeyError, AttributeError) as fault:
        raise DataError(
            f"{where}: {type(values).__name__} gives no pairs (x, y) ({fault}); give two arrays, "
            "or a torch.utils.data.Dataset with a length"
        ) from None
    return _stacked(x, f"{where}, x"), _stacked(y, f"{where}, y", channels=False)


def _stacked(items: Sequence[Any], where: str, channels: bool = True) -> NDArray[Any]:
    """Return items as one array (n, ...), tensors of images with their channels last.

    Raises DataError for items of different shapes.
    """
    last = [channels and hasattr(item, "detach") and item.ndim > 2 for item in items]
    each = [
        np.moveaxis(found, 0, -1) if move else found
        for move, found in (
            (move, np.asarray(item.detach().cpu() if hasattr(item, "detach") else item))
            for move, item in zip(last, items, strict=True)
        )
    ]
    odd = next((k for k, item in enumerate(each) if item.shape != each[0].shape), None)
    if odd is not None:
        raise DataError(
            f"{where}: row {odd} has shape {each[odd].shape}, row 0 {each[0].shape}; give all the "
            "same"
        )
    return np.stack(each)

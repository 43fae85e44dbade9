"""Values of a Python program as arrays: those of NumPy and PyTorch, lists, data sets of pairs."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pomona.core.bounds import plain
from pomona.core.errors import DataError, listed
from pomona.data import cell_values
from pomona.data.array_file import NamedArray
from pomona.data.formats import image_formats
from pomona.data.formats.frame import is_frame


def stored(values: NDArray[Any], source: str) -> NamedArray:
    """Return an array in memory in the form of one of a file, for the same readers.

    Raises DataError unless it holds numbers.
    """
    if values.dtype.names:
        raise DataError(
            f"{source} has the fields {listed(values.dtype.names, 8)}; give pandas.DataFrame(x), "
            "which keeps their names"
        )
    if values.dtype.kind not in "biuf":
        first = f" (first {plain(repr(values.flat[:1].tolist()[0]), 80)})" if values.size else ""
        raise DataError(f"{source} is {values.dtype}{first}; give numbers, or class names as y")
    return NamedArray(source, values)


def array(values: Any, source: str) -> NDArray[Any]:
    """Return values (n, ...) as an array. Raises DataError."""
    if isinstance(values, Mapping):
        raise DataError(f"{source} is a dictionary; give a frame: pandas.DataFrame({source})")
    if isinstance(values, np.ma.MaskedArray):
        raise DataError(f"{source} has masked cells; give NaN where a value is missing")
    converted = _converted(values, source)
    if not converted.ndim:
        raise DataError(f"{source} is a {type(values).__name__}; give an array, one entry per row")
    return converted


def _converted(values: Any, source: str) -> NDArray[Any]:
    """Return values, or a single one, as an array. Raises DataError."""
    try:
        return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    except (ValueError, TypeError, RuntimeError) as fault:
        raise DataError(
            f"{source}: {type(values).__name__} is not an array ({fault}); give one"
        ) from None


def names(values: Any, source: str) -> list[str]:
    """Return names (n,) as texts. Raises DataError for other shapes."""
    converted = array(values, source)
    if converted.ndim != 1:
        raise DataError(f"{source} has shape {converted.shape}; give one name per row")
    return ["" if value is None else cell_values.name(str(value)) for value in converted.tolist()]


class Pair(NamedTuple):
    """The x and y of a client: arrays, or x a frame and y as it came; with remarks for display."""

    x: Any
    y: Any
    notes: tuple[str, ...] = ()


INPUTS = ("x", "image", "images", "img", "pixel_values", "input", "inputs", "features")
LABELS = ("y", "label", "labels", "target", "targets", "mask", "seg", "class")
"""Keys of dictionaries: the words that MONAI, Hugging Face and PyTorch use."""


def pair(values: Any, source: str) -> Pair:
    """Return the x and y of a client's pair of arrays, or of all items of its data set: pairs, or
    dictionaries with one key of ``INPUTS`` and one of ``LABELS``.

    Raises DataError for anything else.
    """
    if isinstance(values, Mapping):
        (x_key, y_key), unused = _keys(values, source)
        return _pair_of(values[x_key], values[y_key], source, unused)
    if is_frame(values) and not isinstance(values, Sequence):
        raise DataError(f"{source}: a frame alone has no labels; give (frame, y), or label_column")
    if _is_pair(values):
        return _pair_of(values[0], values[1], source)
    return _pair_of_items(values, source)


def _pair_of_items(values: Any, source: str) -> Pair:
    """Return the x and y of all items of a data set. Raises DataError unless they are pairs."""
    keys: tuple[Any, ...] = ()
    notes: list[str] = []
    try:
        items = [values[k] for k in range(len(values))]
        if items and isinstance(items[0], Mapping):
            keys, notes = _keys(items[0], source)
            items = [tuple(item[key] for key in keys) for item in items]
        x, y = zip(*items, strict=True)
    except (TypeError, ValueError, KeyError, AttributeError) as fault:
        raise DataError(
            f"{source}: {type(values).__name__} does not give pairs (x, y) ({fault}); give two "
            "arrays, or a torch.utils.data.Dataset with a length (of a loader: loader.dataset)"
        ) from None
    refuse_files(x, y, source)
    inputs, remarks = _stacked(x, f"{source}, x")
    notes += _random(values, lambda i: i[keys[0]] if keys else next(iter(i)), x, source)
    labels, _ = _stacked(y, f"{source}, y", channels=False)
    return Pair(inputs, labels, (*notes, *remarks))


REREAD = 8  # first items of a data set that are read twice


def _random(
    values: Any, input_of: Callable[[Any], Any], items: Sequence[Any], source: str
) -> list[str]:
    """Return a note if the first inputs (n, ...) of a data set are others when read again."""
    repeated = (input_of(values[k]) for k in range(min(len(items), REREAD)))
    pairs = zip(repeated, items, strict=False)
    arrays = ((_converted(a, source), _converted(b, source)) for a, b in pairs)
    # bytes of objects are addresses
    if all(a.dtype.kind == "O" or a.tobytes() == b.tobytes() for a, b in arrays):
        return []
    return [
        f"{source}: items differ each time that they are read (a random transform?); each is read "
        "once, also for tests; leave the transform out, and set augment"
    ]


def inputs(values: Any, source: str) -> tuple[Any, list[str]]:
    """Return the x of a dictionary, or of all items of a data set, as ``pair`` reads them, and
    remarks; labels are not needed, and other values are returned unchanged.

    Raises DataError for dictionaries without a clear input, and items of different shapes.
    """
    if isinstance(values, Mapping):
        return values[_input_key(values, source)], []
    if not _has_items(values):
        return values, []
    items = [values[k] for k in range(len(values))]
    if not items:
        return np.empty(0), []
    key = _input_key(items[0], source) if isinstance(items[0], Mapping) else None

    def input_of(item: Any) -> Any:
        if key is None:
            return item[0] if isinstance(item, tuple | list) else item
        return item[key]

    x = [*map(input_of, items)]
    stacked, remarks = _stacked(x, source)
    return stacked, [*remarks, *_random(values, input_of, x, source)]


def _has_items(values: Any) -> bool:
    """Return whether values are items of a data set: no array, frame, or lists of numbers."""
    if isinstance(values, Sequence):
        return len(values) > 0 and isinstance(values[0], Mapping)
    indexed = hasattr(values, "__getitem__") and hasattr(values, "__len__")
    return indexed and not (hasattr(values, "__array__") or is_frame(values))


def _input_key(item: Mapping[Any, Any], source: str) -> Any:
    """Return the key of a dictionary's x. Raises DataError unless there is one."""
    keys = [key for key in item if str(key).lower() in INPUTS]
    if len(keys) != 1:
        raise DataError(
            f"{source} is a dictionary with the keys {listed([str(key) for key in item], 8)}; name "
            f"the input one of {listed(INPUTS, 8)}, or give a frame: pandas.DataFrame({source})"
        )
    return keys[0]


def refuse_files(x: Any, y: Any, source: str) -> None:
    """Raise DataError for names of image files in place of values, as MONAI's lists have them."""
    if not len(x) or not isinstance(x[0], str | PathLike):
        return
    path = Path(x[0])
    if isinstance(x[0], PathLike) or image_formats.by_suffix(path):
        label = "mask" if isinstance(y[0], PathLike) or Path(str(y[0])).suffix else "label"
        raise DataError(
            f"{source}: names of files (first {plain(str(path), 80)}); write them to a CSV file "
            f"with the columns path and {label} (and client, split), and give that file: "
            "pomona.data.data_settings(name='images', path='FILE.csv')"
        )


def _is_pair(values: Any) -> bool:
    """Return whether values are an x and a y, not a data set of two items."""
    if not isinstance(values, tuple | list) or len(values) != 2:
        return False
    if isinstance(values, tuple):
        return True
    x, y = values
    if is_frame(x):
        return True
    try:
        arrays = (v.detach().cpu() if hasattr(v, "detach") else v for v in values)
        shapes = [*map(np.shape, arrays)]
    except (ValueError, TypeError):
        return False  # an item [x, y] of its own
    return not isinstance(x, tuple) and min(map(len, shapes)) > 0 and len(x) == len(y)


def _pair_of(x: Any, y: Any, source: str, notes: Sequence[str] = ()) -> Pair:
    if is_frame(x):
        return Pair(x, y, tuple(notes))
    values = array(x, f"{source}, x")
    refuse_files(values, y, source)
    inputs, remarks = channels_last(values, f"{source}, x")
    return Pair(inputs, array(y, f"{source}, y"), (*notes, *remarks))


def _keys(item: Mapping[Any, Any], source: str) -> tuple[tuple[Any, Any], list[str]]:
    """Return the keys of a dictionary's x and y, and a remark on the others.

    Raises DataError unless one key is an input and one a label.
    """
    every = listed([str(key) for key in item], 8)
    chosen = [[key for key in item if str(key).lower() in names] for names in (INPUTS, LABELS)]
    if [len(keys) for keys in chosen] != [1, 1]:
        raise DataError(
            f"{source}: dictionaries with the keys {every}, so that input and label are unclear; "
            "give pairs (item[KEY], item[KEY]), or rename the keys to x and y"
        )
    x, y = (keys[0] for keys in chosen)
    unused_keys = [str(key) for key in item if key not in (x, y)]
    note = f"{source}: x is {x!r}, y is {y!r}; not used: {listed(unused_keys, 8)}"
    return (x, y), [note] if unused_keys else []


FEW = 4  # channels of usual images


def channels_last(x: NDArray[Any], source: str) -> tuple[NDArray[Any], list[str]]:
    """Return images (n, C, H, W) and volumes (n, C, D, H, W), whose form is certain because they
    have few channels and more pixels on each side, with their channels last; and a remark on it.
    """
    if x.ndim not in {4, 5} or not x.shape[1] <= FEW < min(x.shape[2:]):
        return x, []
    note = f"{source} {x.shape}: axis 1 has the channels, as in PyTorch; they are moved to the end"
    return np.moveaxis(x, 1, -1), [note]


def _stacked(
    items: Sequence[Any], source: str, channels: bool = True
) -> tuple[NDArray[Any], list[str]]:
    """Return items as one array (n, ...), images with their channels last, and a remark on it.

    Raises DataError for items of different shapes.
    """
    pairs = [_item(item, channels, source) for item in items]
    arrays = [np.moveaxis(values, 0, -1) if move else values for move, values in pairs]
    unequal = next((k for k, item in enumerate(arrays) if item.shape != arrays[0].shape), None)
    if unequal is not None:
        raise DataError(
            f"{source}: row {unequal} has shape {arrays[unequal].shape}, row 0 "
            f"{arrays[0].shape}; give all the same"
        )
    if not channels or not arrays or not pairs[0][0]:
        return channels_last(np.stack(arrays), source) if channels else (np.stack(arrays), [])
    shape = pairs[0][1].shape
    note = f"{source}: items {shape} have channels first, as in PyTorch; they are moved to the end"
    return np.stack(arrays), [note]


def _item(item: Any, channels: bool, source: str) -> tuple[bool, NDArray[Any]]:
    """Return an item as an array, and whether its channels are first: those of a tensor are,
    unless only its last axis is as short as channels are.
    """
    tensor = hasattr(item, "detach")
    values = _converted(item, source)
    last = values.ndim > 2 and values.shape[-1] <= FEW < min(values.shape[:-1])
    return channels and tensor and values.ndim > 2 and not last, values

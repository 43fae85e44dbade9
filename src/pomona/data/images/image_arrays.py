"""Images (N, H, W, C) and volumes (N, D, H, W, C): joined from arrays, converted to one dtype, and
resized.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.bounds import Targets
from pomona.core.errors import ConfigError, DataError
from pomona.data import targets
from pomona.data.array_file import NamedArray, concatenated
from pomona.data.dataset import INPUT_FORMS, Dataset
from pomona.data.validation import blocks
from pomona.storage.mapped_array import allocate

Values = tuple[float, ...]

# (x / 255 - 0.5) / 0.5, as in the published code of APPLE and of FedALA.
SHIFT = SCALE = (127.5,)
DTYPES = tuple(map(np.dtype, INPUT_FORMS["image"].dtypes))
WINDOW = (
    "convert all images of all clients by one window, in which values from low to high become 0 to "
    "255 (docs/guides/own-data.md)"
)


def usual(x: NDArray[Any]) -> tuple[Values, Values]:
    """Return the default shift and scale for 8 bits; other images learn theirs from training
    rows.
    """
    return (SHIFT, SCALE) if x.dtype == np.uint8 else ((0.0,), (1.0,))


def sample_type(dtypes: Iterable[np.dtype[Any]], location: object = "x") -> np.dtype[Any]:
    """Return the first image dtype that holds all values of these; float64 is treated as float32.

    Raises DataError.
    """
    dtypes = {np.dtype(np.float32) if dtype.kind == "f" else dtype for dtype in dtypes}
    for dtype in DTYPES:
        if all(stored.kind in "iuf" and np.can_cast(stored, dtype) for stored in dtypes):
            return dtype
    supported, stored = ", ".join(map(str, DTYPES)), " and ".join(map(str, dtypes))
    raise DataError(f"{location}: images are {supported}, not {stored}; store one of these")


def require(shape: tuple[int, ...], dtype: np.dtype[Any], location: str) -> None:
    """Raise DataError unless the shape is (n, H, W), (n, H, W, C) or (n, D, H, W, C) and the dtype
    is supported.

    More than four channels are accepted only if they are fewer than rows and columns, to reject
    volumes without a channel axis and arrays with channels first.
    """
    row = shape[1:]
    channels = (*row, 1)[2] if len(row) in {2, 3} else 1
    if len(row) not in {2, 3, 4} or not (channels in range(1, 5) or channels < min(row[:2])):
        raise DataError(
            f"{location} is {dtype} {shape}; images are (N, H, W) or (N, H, W, C), volumes (N, D, "
            "H, W, C) with channels last (1 if gray)"
        )
    sample_type([dtype], location)


def gathered(arrays: Sequence[NamedArray], memory_share: float) -> NDArray[np.generic]:
    """Join the images or volumes of all arrays, with a channel axis, in the first dtype that holds
    all values.

    Raises:
        DataError: unsupported dtype or shape, or a damaged file.
    """
    for array in arrays:
        require(array.shape, array.dtype, array.source)
    row = arrays[0].shape[1:]
    dtype = sample_type(array.dtype for array in arrays)
    return concatenated(arrays, row if len(row) > 2 else (*row, 1), dtype, memory_share)


def dataset(
    name: str,
    pairs: Sequence[tuple[NamedArray, NamedArray]],
    training: int,
    memory_share: float,
    target_kind: Targets = "classes",
    classes: tuple[str, ...] = (),
    first: int = 0,
) -> Dataset:
    """Read parts of images and targets, the first ``training`` of them for training.

    Args:
        name: of the data.
        pairs: inputs and targets as stored.
        training: number of pairs for training.
        memory_share: see ``allocate``.
        target_kind: see ``targets.from_arrays``.
        classes: see ``targets.from_arrays``.
        first: number that the first class has in the files.

    Raises:
        DataError: as ``gathered`` and ``targets.from_arrays``.
    """
    numbers = [(y.source, y.values) for _, y in pairs]
    if first:
        numbers = [(location, y - np.int64(first)) for location, y in numbers]
    y, classes = targets.from_arrays(numbers, target_kind, classes)
    x = gathered([x for x, _ in pairs], memory_share)
    n_train = sum(len(x) for x, _ in pairs[:training])
    return Dataset(name, "image", x, y, classes, n_train, *usual(x))


def as_type(x: NDArray[Any], dtype: str, location: str) -> NDArray[Any]:
    """Convert values to another dtype: a copy (on disk if they are), or the input if nothing
    changes.

    Raises:
        DataError: values that this dtype cannot hold, with the count and the first row.
    """
    if x.dtype == dtype:
        return x
    converted = allocate(x.shape, dtype, memory_share=float(not isinstance(x, np.memmap)))
    for start, block in blocks(x):
        with np.errstate(invalid="ignore"):
            converted[start : start + len(block)] = block.astype(dtype)
        misfits = np.flatnonzero(
            (converted[start : start + len(block)] != block).reshape(len(block), -1).any(axis=1)
        )
        if misfits.size:
            raise DataError(
                f"{location}: row {start + misfits[0]} is {x.dtype} and does not fit into {dtype}; "
                f"store {dtype}"
            )
    return converted


def resized(dataset: Dataset, side: int | None, memory_share: float) -> Dataset:
    """Resize the images to ``side`` x ``side`` pixels (bilinear, antialiased); unchanged if they
    already fit.

    Masks take the class of the nearest pixel.

    Raises:
        ConfigError: the data are not images, or are volumes.
    """
    if side is None or dataset.x.shape[1:-1] == (side, side):
        return dataset
    if dataset.kind != "image" or dataset.x.ndim != 4:
        content = "volumes" if dataset.kind == "image" else f"a {dataset.kind}"
        raise ConfigError(f"data.resize is for images, and {dataset.name} is {content}; drop it")
    x = _resize(dataset.x, plane_resized, side, memory_share)
    if dataset.targets != "segmentation":
        return replace(dataset, x=x)
    return replace(dataset, x=x, y=_resize(dataset.y, nearest, side, memory_share))


def _resize(
    x: NDArray[Any], resize: Callable[..., NDArray[Any]], side: int, memory_share: float
) -> NDArray[np.generic]:
    converted = allocate((len(x), side, side, *x.shape[3:]), x.dtype, memory_share)
    for image, small in zip(x, converted, strict=True):
        small[...] = resize(image, (side, side))
    return converted


def plane_resized(image: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """Resize an image (H, W, C) to (width, height), in its own dtype."""
    from PIL import Image

    # Pillow's integer arithmetic gives the same bytes on every machine, and so the same
    # fingerprint.
    plane_type = np.dtype(np.uint8 if image.dtype == np.uint8 else np.float32)
    if image.shape[2] == 3 and image.dtype == np.uint8:
        return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR))
    converted = np.empty((size[1], size[0], image.shape[2]), image.dtype)
    for channel in range(image.shape[2]):
        plane = Image.fromarray(np.ascontiguousarray(image[..., channel], plane_type))
        values = np.asarray(plane.resize(size, Image.Resampling.BILINEAR))
        converted[..., channel] = values if image.dtype == plane_type else np.rint(values)
    return converted


def in_channels(image: NDArray[np.uint8], channels: int) -> NDArray[np.uint8]:
    """Return a gray or RGB image (H, W, 1 or 3) as RGB, or as gray if ``channels`` is 1."""
    from PIL import Image

    colours = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    values = np.asarray(colours.convert("L" if channels == 1 else "RGB"))
    return values.reshape(*image.shape[:2], -1)


def nearest(mask: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """Resize a mask (H, W) to (width, height): each new pixel is the old one at its centre."""
    sides = zip(size[::-1], mask.shape, strict=True)
    rows, columns = ((2 * np.arange(n) + 1) * old // (2 * n) for n, old in sides)
    converted: NDArray[Any] = mask[rows[:, None], columns]
    return converted

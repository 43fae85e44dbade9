"""Predictions on the test samples by each client's evaluated model, in ``predictions.npz``.

    outputs-I  (n, K) float32, outputs of the network
    of masks   (n, 3C) float32, true positive, false positive and false negative pixels, by class
    targets-I  (n,) int64 or (n, K) float32; of masks (n, C) int64, true pixels by class

    groups-I   (n,) int64, if rows belong together: the same number for the rows of one patient

of client I, in the order of its test rows. Two runs on one partition predict the same samples, so
that their difference can be evaluated sample by sample.

Example masks of a few clients are in ``mask_examples.npz``: the test images with the best and the
worst Dice.

    image-I (2, H, W, c) uint8   truth-I, predicted-I (2, H, W) uint8   dice-I (2,) float64

of client I, the best first. They are samples of the data: a simulation writes them, a federation
does not.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError
from pomona.core.files import publish

PREDICTIONS = "predictions.npz"
EXAMPLES = "mask_examples.npz"
_FIELDS = ("outputs", "targets")
_EXAMPLE_FIELDS = ("image", "truth", "predicted", "dice")
MAX_EXAMPLE_CLIENTS = 6
MAX_SIDE = 256  # pixels; larger images are subsampled
Answers = tuple[NDArray[np.float32], NDArray[Any]]  # (outputs, targets)


def save(
    folder: Path,
    answers: Mapping[int, Answers],
    groups: Mapping[int, NDArray[np.int64]] | None = None,
) -> None:
    """Write the predictions of some clients, and the groups of their rows; deterministic to the
    byte.
    """
    packed = io.BytesIO()
    arrays = {
        f"{field}-{i}": a
        for i, pair in answers.items()
        for field, a in zip(_FIELDS, pair, strict=True)
    }
    arrays |= {f"groups-{i}": numbers for i, numbers in (groups or {}).items()}
    np.savez(packed, allow_pickle=False, **arrays)
    publish(folder / PREDICTIONS, [packed.getvalue()])


class StoredPredictions:
    """The predictions in a record's folder.

    They are read once, for all clients.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / PREDICTIONS

    @cached_property
    def _arrays(self) -> Mapping[str, NDArray[Any]]:
        return _arrays(self._path)

    def answers(self, client: int, target_type: str = "classes") -> Answers | None:
        """Return a client's predictions; None if the record has none.

        Raises DataError for a damaged file, or targets that do not match the record: a class count
        would allocate memory for the largest number among them.
        """
        if f"{_FIELDS[0]}-{client}" not in self._arrays:
            return None
        outputs, targets = (self._arrays.get(f"{field}-{client}", np.zeros(0)) for field in _FIELDS)
        if (
            outputs.ndim != 2
            or outputs.dtype != np.float32
            or len(outputs) != len(targets)
            or targets.dtype.kind not in "if"
            or not (
                _are_classes(outputs, targets) if target_type == "classes" else targets.ndim == 2
            )
        ):
            raise DataError(
                f"{self._path} has no answers of client {client} that fit their targets; run the "
                "federation again"
            )
        return outputs, targets

    def groups(self, client: int) -> NDArray[np.int64] | None:
        """Return (n,) int64 the group of each of a client's test rows; None if the record has none.

        Raises DataError for a damaged file.
        """
        if f"groups-{client}" not in self._arrays:
            return None
        groups = self._arrays[f"groups-{client}"]
        if groups.dtype != np.int64 or groups.ndim != 1:
            raise DataError(
                f"{self._path} has no groups of client {client} that are numbers; run the "
                "federation again"
            )
        return groups


def _arrays(path: Path) -> Mapping[str, NDArray[Any]]:
    """Return the arrays of a record's file by name; none if there is no file."""
    from pomona.data import npz  # imported late: it loads the image readers

    archive = npz.archive(path).arrays if path.exists() else {}
    return {name: array.values for name, array in archive.items()}


def _are_classes(outputs: NDArray[Any], targets: NDArray[Any]) -> bool:
    """Return whether targets (n,) are valid class numbers for outputs (n, K)."""
    valid = targets.ndim == 1 and targets.dtype.kind == "i"
    return valid and bool(np.all((targets >= 0) & (targets < outputs.shape[1])))


@dataclass(frozen=True)
class MaskExamples:
    """Images (k, H, W, c) uint8, c 1 or 3; true and predicted class numbers (k, H, W) uint8; and
    their Dice (k,).
    """

    image: NDArray[np.uint8]
    truth: NDArray[np.uint8]
    predicted: NDArray[np.uint8]
    dice: NDArray[np.float64]


Uint8 = NDArray[np.uint8]


def example(
    x: NDArray[Any], truth: NDArray[Any], predicted: NDArray[Any]
) -> tuple[Uint8, Uint8, Uint8]:
    """Return a sample's image, truth and prediction for display.

    For a volume (D, H, W, C), the slice with the most foreground pixels; grey values scaled from
    minimum to maximum; only the first channel unless there are three.
    """
    if x.ndim == 4:
        index = int((truth > 0).sum(axis=(1, 2)).argmax())
        x, truth, predicted = x[index], truth[index], predicted[index]
    step = -(-max(truth.shape) // MAX_SIDE)
    x, truth, predicted = (a[::step, ::step] for a in (x, truth, predicted))
    values = x[..., : 3 if x.shape[-1] == 3 else 1].astype(np.float64)
    low, high = values.min(), values.max()
    grey = np.zeros_like(values) if low == high else 255 * (values - low) / (high - low)
    return grey.astype(np.uint8), truth.astype(np.uint8), predicted.astype(np.uint8)


def save_examples(folder: Path, examples: Mapping[int, MaskExamples]) -> None:
    """Write the examples of some clients; deterministic to the byte. Raises OSError."""
    packed = io.BytesIO()
    np.savez(
        packed,
        allow_pickle=False,
        **{
            f"{field}-{i}": getattr(e, field)
            for i, e in examples.items()
            for field in _EXAMPLE_FIELDS
        },
    )
    publish(folder / EXAMPLES, [packed.getvalue()])


def read_examples(folder: Path, client: int) -> MaskExamples | None:
    """Read a client's examples; None if a record has none. Raises DataError for a damaged file."""
    path = folder / EXAMPLES
    arrays = _arrays(path)
    if f"image-{client}" not in arrays:
        return None
    names = [f"{field}-{client}" for field in _EXAMPLE_FIELDS]
    examples = MaskExamples(*(arrays.get(name, np.zeros(0)) for name in names))
    if not _valid(examples):
        raise DataError(f"{path} has no examples of client {client}; run the federation again")
    return examples


def _valid(examples: MaskExamples) -> bool:
    """Return whether arrays from a file have the shapes and types of examples."""
    image, masks = examples.image, (examples.truth, examples.predicted)
    return (
        image.ndim == 4
        and image.shape[-1] in {1, 3}
        and max(image.shape[:3]) <= MAX_SIDE
        and all(mask.shape == image.shape[:3] for mask in masks)
        and examples.dice.shape == image.shape[:1]
        and all(array.dtype == np.uint8 for array in (image, *masks))
        and examples.dice.dtype == np.float64
    )

"""An image or volume as input for a model: read in a child process, and compared with the model's
training.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError, listed
from pomona.data.formats import image_formats
from pomona.data.formats.dicom_header import is_dicom
from pomona.data.images import file_notes, folders, image_arrays, image_stack, patients
from pomona.data.images.grid import Grid, dimensions
from pomona.data.images.image_file import ImageFile, NoPixelsError
from pomona.data.reader_process import Reply, read_in_child
from pomona.record.model_metadata import ModelMetadata

SPACING_TOLERANCE = 0.02  # of a voxel's side: more is another spacing than the training's


class ImageInput(NamedTuple):
    """An image or volume for a model.

    Attributes:
        x: (1, H, W, C) or (1, D, H, W, C), of the training's dtype.
        notes: remarks.
        grid: of a volume as its file stores it.
        sides: rows and columns of an image in its file.
    """

    x: NDArray[Any]
    notes: tuple[str, ...]
    grid: Grid | None
    sides: tuple[int, ...]


def files(path: Path, volumes: bool) -> tuple[list[Path], list[str]]:
    """Return the images of a folder and of the folders in it, in the order of their names, and
    remarks on other files; any other path as it is. Which they are is as in training.

    For a model of ``volumes`` a folder with DICOM files is one image, a series.

    Raises DataError for a folder that cannot be read.
    """
    if not path.is_dir():
        return [path], []
    images, remarks = list[Path](), list[str]()
    for names, single in folders.walk(path):
        folder = path.joinpath(*names)
        if volumes and any(map(is_dicom, single)):
            images.append(folder)
            continue
        readable = dict.fromkeys(filter(image_formats.is_image, single))
        images += readable
        unread = [file for file in single if file not in readable]
        if other_names := [x.name for x in unread if not image_formats.is_companion(x)]:
            remark = f"files that are not images are left out ({listed(other_names, 3)})"
            remarks.append(f"{folder}: {remark}")
    return images, [*remarks, *patients.several_of_one(path, images)]


def read(path: Path, metadata: ModelMetadata) -> ImageInput:
    """Read a file, or a folder with a DICOM series.

    Raises:
        DataError: it cannot be read, or does not fit the model.
        NoPixelsError: it holds no image, as a report.
        ConfigError: a package is missing.
    """
    if metadata.kind != "image":
        raise DataError(
            f"{path}: the model takes {metadata.kind}s of shape {metadata.sample_shape}; give "
            ".npz, .csv or .parquet files"
        )

    def work() -> Reply:
        try:
            file = image_formats.opened(path)
        except NoPixelsError as fault:
            return Reply({"no pixels": str(fault)}, [])
        x = _decoded(file, metadata)
        facts = {
            "notes": [*file.notes, *_differences(file, metadata)],
            "grid": file.grid and (file.grid.shape, file.grid.affine, file.grid.oriented),
            "sides": file.shape[:-1],
        }
        return Reply(facts, [x])

    facts, arrays = read_in_child(work, path, image_stack.stored_bytes(path))
    if "no pixels" in facts:
        raise NoPixelsError(facts["no pixels"])
    (x,) = arrays
    grid = Grid.from_affine(path, *facts["grid"]) if facts["grid"] else None
    fitting, notes = _as_trained(x[np.newaxis], metadata, path)
    remarks = tuple(f"{path}: {note}" for note in (*facts["notes"], *notes))
    return ImageInput(fitting, remarks, grid, tuple(facts["sides"]))


def _decoded(file: ImageFile, metadata: ModelMetadata) -> NDArray[Any]:
    """Decode a file in the form that the model takes. Raises DataError if it does not fit."""
    channels, sides = metadata.sample_shape[-1], metadata.sample_shape[:-1]
    if file.picture and channels not in {1, 3}:
        raise DataError(
            f"{file.path}: the model takes images of shape {metadata.sample_shape}; give .npz files"
        )
    if len(file.shape[:-1]) != len(sides) or (len(sides) == 3 and file.shape[:-1] != sides):
        raise DataError(
            f"{file.path} has shape {file.shape}, the model takes {metadata.sample_shape}"
        )
    x = file.decoded(channels, (sides[1], sides[0]) if len(sides) == 2 else None, metadata.window)
    if (x.dtype == np.uint8) != (metadata.dtype == "uint8"):
        raise DataError(
            f"{file.path} has {x.dtype} values, but the model takes {metadata.dtype}; give files "
            "like those in training"
        )
    return x


def _differences(file: ImageFile, metadata: ModelMetadata) -> list[str]:
    """Return how an image differs from those of the training, and what is converted for it."""
    notes = [
        f"{name} {text}, but the model was trained on {listed(trained, 3)}"
        for name, values in file_notes.traits([file]).items()
        for text in values.values()
        if (trained := metadata.traits.get(name)) and not file_notes.is_among(name, text, trained)
    ]
    if metadata.window and file.dtype == np.uint8 and not file.is_measured:
        notes.append("8 bits are kept as stored; the window of the training is for other values")
    compared = _conversions if len(file.shape) == 3 else _grid_differences
    return [*notes, *compared(file, metadata)]


def _conversions(file: ImageFile, metadata: ModelMetadata) -> list[str]:
    """Return how an image is converted to the form of those of the training."""
    rows, columns, channels = metadata.sample_shape
    notes = ["colours are converted to gray, as the model takes it"] * (channels < file.shape[2])
    notes += ["gray is read as RGB, as the model takes it"] * (channels > file.shape[2])
    if metadata.resize is None and (rows, columns) != file.shape[:2]:
        notes.append(
            f"resized from {file_notes.times(file.shape[1::-1])} to {columns} x {rows} pixels, "
            "which all images of the training had"
        )
    return notes


def _grid_differences(file: ImageFile, metadata: ModelMetadata) -> list[str]:
    """Return how a volume's grid differs from those of the training."""
    notes = []
    oriented = file.grid is not None and file.grid.oriented
    if metadata.orientation and not oriented:
        notes.append(
            "the model was trained on volumes with an orientation in the patient, this one has "
            "none: it may be mirrored"
        )
    if oriented and not metadata.orientation:
        notes.append(
            "the model was trained on volumes without an orientation in the patient (arrays, or "
            "files that do not state it); this one has one and is turned (z to the head, y to the "
            "front, x to the right): the answer is wrong unless training volumes had these axes"
        )
    if not metadata.spacings or not file.spacing:
        return notes
    shares = np.abs(np.divide(metadata.spacings, file.spacing) - 1).max(axis=1)
    nearest = metadata.spacings[int(shares.argmin())]
    if shares.min() > SPACING_TOLERANCE:
        notes.append(
            f"voxels of {dimensions(file.spacing)} mm (z, y, x), but the model was trained on "
            f"{dimensions(nearest)} mm: resample the volume first, or the answer may be wrong"
        )
    return notes


def _as_trained(
    x: NDArray[Any], metadata: ModelMetadata, path: Path
) -> tuple[NDArray[Any], list[str]]:
    """Return values in the training's dtype, real ones rounded if that is of whole numbers, and
    remarks.

    Raises DataError for values that it cannot hold.
    """
    notes = []
    if x.dtype.kind == "f" and metadata.dtype != "float32":
        rounded = np.rint(x)
        if (largest := float(np.abs(rounded - x).max(initial=0))) > 0:
            notes.append(
                f"real numbers, rounded by up to {largest:.2g} to {metadata.dtype}, as in training"
            )
        x = rounded
    return image_arrays.as_type(x, metadata.dtype, str(path)), notes

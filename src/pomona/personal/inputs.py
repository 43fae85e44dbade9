"""Samples for a model from files, read by the readers of training data, with the same rules and errors."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError
from pomona.core.files import LONG, content
from pomona.data import client_files, csv_records, image_arrays, image_stack, npz, parquet, text, validation
from pomona.data.array_file import file, joined, reading
from pomona.personal import csv_matching
from pomona.record.model_metadata import ModelMetadata

MEMORY_SHARE = 0.25  # of the machine's memory, above which arrays are kept on disk; the default of data.memory_share


TABLES = {*client_files.TABLES, parquet.SUFFIX}


class Samples(NamedTuple):
    """Samples as in a data set: x (n, H, W, C), (n, D, H, W, C), (n, F) or (n, T) of the training dtype.

    ``note`` has assumptions made in reading, for display; empty if none. ``ids`` has a name for each sample, from the
    requested column; empty if none was requested.
    """

    x: NDArray[Any]
    note: str = ""
    ids: Sequence[str] = ()


def read(path: Path, about: ModelMetadata, id_column: str | None = None) -> Samples:
    """Read the samples of a file as input for the model described by ``about``.

    An ``.npz`` archive has them as its array ``x``; a table (``TABLES``) is read like the training table, with its
    columns in any order if they have names; for a text model, a ``.txt`` file has one text per line; any other file is
    an image or a volume, and a folder a DICOM series. Images are resized to the model's size and, if they have 8 bits
    and the model takes gray images, converted to gray.

    ``id_column``: the column of a table with the samples' names; the model need not know it.

    Raises:
        DataError: as the readers of training data, for samples that do not fit the model, and for a missing
            ``id_column``.
        ConfigError: a package needed to read them is missing.
    """
    suffix = path.suffix.lower()
    if id_column is not None and suffix not in TABLES:
        raise DataError(f"{path} has no columns; leave out the column {id_column!r} that names each sample")
    match suffix:
        case ".npz":
            return Samples(_array(path, about))
        case ".txt" if about.kind == "text":
            with reading(path):
                lines = content(file(path), LONG)
            try:
                return Samples(encoded(lines.decode(csv_records.encoding(lines, about.form)).splitlines(), about))
            except UnicodeError as fault:
                raise DataError(f"{path}: {csv_records.misread(fault, about.form)}") from None
        case _ if suffix in TABLES:
            return _records(path, about, id_column)
        case _:
            return Samples(_image(path, about))


def encoded(texts: Sequence[str], about: ModelMetadata) -> NDArray[Any]:
    """Encode texts as token ids (n, T) int32, by the training vocabulary. Raises DataError if the model has none."""
    if not about.words:
        raise DataError("this model was not trained on words; give it arrays of what it was trained on")
    index = {word: number for number, word in enumerate(about.words, start=2)}
    return text.encode(texts, index, about.input_shape[0], MEMORY_SHARE)


def _array(path: Path, about: ModelMetadata) -> NDArray[Any]:
    stored = npz.stored(path, "x")
    row = (*stored.shape[1:], 1) if about.kind == "image" and len(stored.shape) == 3 else stored.shape[1:]
    if row != about.sample_shape:
        raise DataError(f"{stored.where}: samples have shape {row}, the model takes {about.sample_shape}")
    if about.kind == "image":
        return image_arrays.as_type(image_arrays.gathered([stored], MEMORY_SHARE), about.dtype, stored.where)
    if about.kind == "table":
        x = npz.rows([stored], MEMORY_SHARE)
        return (x - np.array(about.preprocessing.offsets) if about.preprocessing else x).astype(np.float32)
    if stored.dtype.kind not in "iu":
        raise DataError(f"{stored.where} is {stored.dtype}; tokens are whole numbers from 0 to {about.vocabulary - 1}")
    tokens = joined([stored], row, np.int64, MEMORY_SHARE).clip(-1, about.vocabulary).astype(np.int32)
    validation.inputs(tokens, about.kind, about.vocabulary, str(path))
    return tokens


def _image(path: Path, about: ModelMetadata) -> NDArray[Any]:
    channels, sides = about.sample_shape[-1], about.sample_shape[:-1]
    if about.kind != "image":
        raise DataError(f"{path}: the model takes {about.kind}s of shape {about.sample_shape}; give .npz or .csv files")
    file = image_stack.opened(path)
    if file.picture and channels not in {1, 3}:
        raise DataError(f"{path}: the model takes images of shape {about.sample_shape}; give .npz files")
    if len(file.shape) != len(about.sample_shape) or (len(sides) == 3 and file.shape[:-1] != sides):
        raise DataError(f"{path} has shape {file.shape}, the model takes {about.sample_shape}; bring it into that form")
    x = file.decoded(channels, (sides[1], sides[0]) if len(sides) == 2 else None, about.window)
    if (x.dtype == np.uint8) != (about.dtype == "uint8"):
        raise DataError(
            f"{path} has {x.dtype} values, the model takes {about.dtype}; give files as those of the training"
        )
    return image_arrays.as_type(x[np.newaxis], about.dtype, str(path))


def _records(path: Path, about: ModelMetadata, id_column: str | None) -> Samples:
    if about.kind == "image":
        raise DataError(f"{path}: the model takes images of shape {about.sample_shape}; give image or .npz files")
    sheet = csv_matching.opened(path, about, id_column)
    ids = sheet.cells(id_column) if id_column is not None else ()
    if about.kind == "text":
        return Samples(encoded(sheet.texts(), about), sheet.note, ids)
    x, notes = sheet.numbers(about, MEMORY_SHARE)
    return Samples(x, "; ".join([*filter(None, [sheet.note]), *(f"{path}: {note}" for note in notes)]), ids)

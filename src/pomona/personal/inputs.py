"""Samples for a model, of files or in memory, read by the readers of training data, with the same
rules and errors.

The columns of a table are matched to the model's by name if both have names, else by order.
"""

from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError, listed, refuse, suggestion
from pomona.core.files import MAX_LOG_BYTES, content
from pomona.core.table import reads_as_number
from pomona.data import formats, npz, python_values, text, validation
from pomona.data.array_file import NamedArray, concatenated, file, reading
from pomona.data.cell_values import alike_notes
from pomona.data.formats import csv
from pomona.data.formats.frame import Frame, is_frame
from pomona.data.images import image_arrays
from pomona.data.images.grid import Grid
from pomona.data.preprocessing import TableColumn
from pomona.data.tables import cells, features, source, tabular
from pomona.data.tables.roles import require_cells
from pomona.data.tables.source import Source, TableSource
from pomona.personal import distant_inputs, image_inputs
from pomona.record.model_metadata import ModelMetadata

# of the machine's memory, above which arrays are kept on disk; the default of data.memory_share
MEMORY_SHARE = 0.25
AXES = "arrays are taken on the training's axes: z to the head, y to the front, x to the right"


class Samples(NamedTuple):
    """Samples as in a data set: x (n, H, W, C), (n, D, H, W, C), (n, F) or (n, T) of the training
    dtype.

    ``note`` has assumptions made in reading, for display; empty if none. ``ids`` has a name for
    each sample, and ``clients`` its client, from the requested columns; empty if none was
    requested. ``grid`` is that of a volume in a file, ``sides`` the size of an image or volume in a
    file.
    """

    x: NDArray[Any]
    note: str = ""
    ids: Sequence[str] = ()
    clients: Sequence[str] = ()
    grid: Grid | None = None
    sides: tuple[int, ...] = ()


def read(
    samples: Any,
    metadata: ModelMetadata,
    id_column: str | None = None,
    client_column: str | int | None = None,
) -> Samples:
    """Read samples as input for the model described by ``metadata``: of a file, by its path; or in
    memory: an array, tensor or list x (n, ...) as of ``.npz``, a frame of pandas, polars or pyarrow
    as of a table, texts, a dictionary with such an x, or a data set.

    An ``.npz`` archive has them as its array ``x``; a table (``formats``) is read like the training
    table, with its columns in any order if they have names; for a text model, a ``.txt`` file has
    one text per line; any other file is an image or a volume, and a folder a DICOM series. Images
    are resized to the model's size and, if they have 8 bits and the model takes gray images,
    converted to gray.

    ``id_column``: the column of a table with the samples' names; ``client_column``: that of their
    clients, by name or number. The model need not know them.

    Raises:
        DataError: as the readers of training data, for samples that do not fit the model, and for a
            missing ``id_column`` or ``client_column``.
        ConfigError: a package needed to read them is missing.
    """
    extra = ExtraColumns(id_column, client_column)
    if in_memory := not isinstance(samples, str | Path):
        answer = _in_memory(samples, metadata, extra)
    else:
        answer = _of_file(Path(samples), metadata, extra)
    if metadata.kind == "text" or client_column is not None:
        return answer
    is_table = metadata.kind == "table"
    remarks_of_kind = distant_inputs.remarks if is_table else distant_inputs.of_images
    distant = remarks_of_kind(answer.x, metadata)
    notes = distant if in_memory else [f"{samples}: {line}" for line in distant]
    return answer._replace(note="; ".join(filter(None, [answer.note, *notes])))


def _of_file(path: Path, metadata: ModelMetadata, extra: "ExtraColumns") -> Samples:
    """Read the samples of a file. Raises as ``read``."""
    suffix = path.suffix.lower()
    table = formats.format_of(path) or (path.is_dir() and formats.part_files(path))
    if extra != ExtraColumns() and not table:
        column = extra.id if extra.client is None else extra.client
        raise DataError(f"{path} has no columns; leave out the column {column!r}")
    if suffix == ".npz":
        x = _array(npz.archive(path, ["x"])["x"], metadata)
        return Samples(x, f"{path}: {AXES}" * bool(metadata.orientation))
    if suffix == ".txt" and metadata.kind == "text":
        return Samples(encoded(_lines(path, metadata), metadata))
    if table:
        return _records(path, metadata, extra)
    image = image_inputs.read(path, metadata)
    return Samples(image.x, "; ".join(image.notes), grid=image.grid, sides=image.sides)


def _lines(path: Path, metadata: ModelMetadata) -> list[str]:
    """Return the lines of a text file."""
    with reading(path):
        texts = content(file(path), MAX_LOG_BYTES)
    codec = csv.encoding(texts, metadata.form)
    try:
        stream = StringIO(texts.decode(codec), None)
    except UnicodeError as fault:
        raise DataError(f"{path}: {csv.misread(fault, codec)}") from None
    return [line.rstrip("\n") for line in stream]


def encoded(texts: Sequence[str], metadata: ModelMetadata) -> NDArray[Any]:
    """Encode texts as token ids (n, T) int32, by the training vocabulary or tokenizer.

    Raises DataError if the model has neither, ConfigError if the tokenizer cannot be used.
    """
    if tokenizer := metadata.tokenizer:
        if tokenizer.vocabulary > metadata.vocabulary:
            raise DataError("the model's tokenizer has other tokens than the model; take another")
        return tokenizer.encode(texts, metadata.input_shape[0], MEMORY_SHARE)
    if not metadata.words:
        raise DataError(
            "this model was not trained on words; give it arrays like those it was trained on"
        )
    index = {w: number for number, w in enumerate(metadata.words, start=2)}
    return text.encode(texts, index, metadata.input_shape[0], MEMORY_SHARE)


class ExtraColumns(NamedTuple):
    """Columns of a table that are not features: of the samples' names, and of their clients."""

    id: str | None = None
    client: str | int | None = None


def _in_memory(values: Any, metadata: ModelMetadata, extra: ExtraColumns) -> Samples:
    if is_frame(values) and metadata.kind != "image":
        return _records(Frame.from_table(values, "frame"), metadata, extra)
    values, notes = python_values.inputs(values, "x")
    x = python_values.array(values, "x")
    if metadata.kind == "text" and x.ndim == 1 and x.dtype.kind in "UTO":
        return Samples(encoded([str(value) for value in x], metadata))
    if metadata.kind == "image" and x.shape[1:] == metadata.input_shape != metadata.sample_shape:
        notes = [f"x {x.shape}: channels in axis 1, as in PyTorch, are moved to the end"]
        x = np.moveaxis(x, 1, -1)
    return Samples(_array(python_values.stored(x, "x"), metadata), "; ".join(notes))


def _array(stored: NamedArray, metadata: ModelMetadata) -> NDArray[Any]:
    is_gray = metadata.kind == "image" and len(stored.shape) == 3
    row = (*stored.shape[1:], 1) if is_gray else stored.shape[1:]
    if row != metadata.sample_shape:
        is_sample = stored.shape == metadata.sample_shape
        hint = "; give an array with one row for each sample" * is_sample
        raise DataError(
            f"{stored.source}: samples have shape {row}, but the model takes "
            f"{metadata.sample_shape}{hint}"
        )
    if metadata.kind == "image":
        x = image_arrays.gathered([stored], MEMORY_SHARE)
        return image_arrays.as_type(x, metadata.dtype, stored.source)
    if metadata.kind == "table":
        x = npz.rows([stored], MEMORY_SHARE)
        offsets = metadata.preprocessing.offsets if metadata.preprocessing else 0.0
        return np.asarray(x - np.array(offsets), np.float32)
    if stored.dtype.kind not in "iu":
        raise DataError(
            f"{stored.source} is {stored.dtype}; tokens are whole numbers < {metadata.vocabulary}"
        )
    numbers = concatenated([stored], row, np.int64, MEMORY_SHARE)
    tokens = numbers.clip(-1, metadata.vocabulary).astype(np.int32)
    validation.inputs(tokens, metadata.kind, metadata.vocabulary, stored.source)
    return tokens


def _records(path: Source, metadata: ModelMetadata, extra: ExtraColumns) -> Samples:
    if metadata.kind == "image":
        raise DataError(
            f"{path}: the model takes images of shape {metadata.sample_shape}; give images or .npz"
        )
    table = opened(path, metadata)
    columns, note = _matched(table, metadata, extra)
    if not len(table):
        raise DataError(f"{path} has no rows below its header; add one for each answer")
    ids, clients = (() if column is None else cells_of(table, column) for column in extra)
    if metadata.kind == "text":
        return Samples(encoded(text.row_texts(table, columns), metadata), note, ids, clients)
    x, remarks = _numbers(table, columns, metadata)
    notes = [*filter(None, [note]), *table.columns.notes]
    notes += [note if note.startswith(str(path)) else f"{path}: {note}" for note in remarks]
    return Samples(x, "; ".join(notes), ids, clients)


def opened(path: Source, metadata: ModelMetadata) -> TableSource:
    """Open a file or frame with its format as in training. Raises as ``tables.source.opened``."""
    columns = metadata.preprocessing.columns if metadata.preprocessing else ()
    settings = metadata.form.for_model(columns)
    return source.opened([path], settings, lambda names: _names_columns(names, metadata))[0]


def _numbers(
    table: TableSource, indices: Sequence[int], metadata: ModelMetadata
) -> tuple[NDArray[Any], list[str]]:
    """Return the model's features (n, F) float32 of these columns, and remarks on cells unlike
    those in training.

    Raises DataError for all columns with unreadable cells.
    """
    plain = tuple(TableColumn(name=table.names[i]) for i in indices)
    columns = metadata.preprocessing.columns if metadata.preprocessing else plain
    numeric = [i for i, column in zip(indices, columns, strict=True) if column.kind == "number"]
    decimal, notes = cells.decimal_mark(table, numeric, metadata.form)
    require_cells(table, indices)
    raw, unread = cells.read([table], [decimal], indices, columns, MEMORY_SHARE)
    problems = [column.problem(len(table), table.location) for column in unread]
    remedy = "use values like those in training; gaps are filled only if they were in training"
    refuse(table.path, problems, [remedy])
    notes += tabular.notes(raw)
    if metadata.preprocessing is None:
        return raw.x.astype(np.float32), notes
    x = features.features(raw, metadata.preprocessing, MEMORY_SHARE)
    return x, [*notes, *features.strangers(raw, metadata.preprocessing)]


def cells_of(table: TableSource, column: str | int) -> list[str]:
    """Return the cells of a column by name or number, as in the file.

    Raises DataError if there is none.
    """
    names, number = table.names, column
    if str(column) in names:
        number = names.index(str(column))
    if isinstance(number, str) or not -len(names) <= number < len(names):
        hint = suggestion(str(column), names)
        raise DataError(f"{table.path} has no column {column!r}; {hint}")
    return cells.texts(table.cells(number % len(names)))


def _matched(
    table: TableSource, metadata: ModelMetadata, extra: ExtraColumns
) -> tuple[tuple[int, ...], str]:
    """Return the indices of the model's columns, in the model's order, and what was assumed.

    Other columns of the training file (label, client) are ignored, so that the training file itself
    is accepted, as are the ``extra`` columns; for texts all other columns are ignored, as in
    training.

    Raises DataError for missing or unknown columns, or the wrong number of columns.
    """
    layout = metadata.preprocessing.layout if metadata.preprocessing else ()
    if table.header and metadata.read_columns:
        return _by_name(table, metadata, extra), ""
    if not table.header and len(layout) == len(table.names):
        return tuple(layout.index(name) for name in metadata.read_columns), ""
    return _by_order(table, metadata)


def _names_columns(cells: Sequence[str], metadata: ModelMetadata) -> bool:
    """Return whether a first line is a header: it contains a name that the model knows, or no
    number.
    """
    names = {cell.casefold() for cell in cells if not reads_as_number(cell)}
    is_text = len(names) == len(cells) and not metadata.preprocessing
    if is_text or names & {*map(str.casefold, (*metadata.read_columns, *metadata.others))}:
        return True
    # names that are numbers
    return bool(metadata.read_columns) and {*metadata.read_columns} <= {*cells}


def _by_name(table: TableSource, metadata: ModelMetadata, extra: ExtraColumns) -> tuple[int, ...]:
    missing = [name for name in metadata.read_columns if name not in table.names]
    expected = {*metadata.read_columns, *metadata.others, *map(str, extra), ""}  # "": row names
    unknown = [name for name in table.names if metadata.kind == "table" and name not in expected]
    if missing or unknown:
        lists = {"missing": missing, "unknown": unknown}
        problems = [f"{reason} {listed(names, 8)}" for reason, names in lists.items() if names]
        problems += alike_notes("names", (*missing, *unknown))
        remedy = "; name a column of identifiers with --id, leave out others" if unknown else ""
        raise DataError(
            f"{table.path} has other columns than the model: {'; '.join(problems)}; "
            f"the model takes {listed(metadata.read_columns, 12)}{remedy}"
        )
    return tuple(table.names.index(name) for name in metadata.read_columns)


def _by_order(table: TableSource, metadata: ModelMetadata) -> tuple[tuple[int, ...], str]:
    columns = metadata.read_columns
    count = len(columns) or (metadata.input_shape[0] if metadata.kind == "table" else 1)
    names = f" ({listed(columns, 12)})" if columns else ""
    if len(table.names) != count:
        remedy = f"give {'a header with their names' if columns else 'these, in training order'}"
        raise DataError(
            f"{table.path} has {len(table.names)} columns, the model takes {count}{names}; {remedy}"
        )
    reason = "the model has no names of columns" if table.header else "the file has no header"
    note = f"{table.path}: {reason}; its columns are taken in the order of the training{names}"
    return tuple(range(count)), note

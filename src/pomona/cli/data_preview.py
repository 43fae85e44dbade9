"""A scenario's first rows as its model will see them, next to the cells that they come from."""

from collections.abc import Sequence
from datetime import date, timedelta
from itertools import compress, count, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.table import PLACEHOLDER, Table
from pomona.data.dataset import Dataset
from pomona.data.preprocessing import RawTable
from pomona.scenario import Scenario

ROWS = 5
MAX_FEATURES = 40  # shown
MAX_TOKENS = 24  # of a text
MAX_CELL = 24
EPOCH = date(2000, 1, 1)  # of a RawTable's days


def training_rows(scenario: Scenario, limit: int = ROWS) -> list[tuple[int, int]]:
    """Return (client, row) of the first training rows: one of each client, then a second, ..."""
    clients = [client.train for client in scenario.partition.clients]
    turns = range(max(map(len, clients), default=0))
    rows = ((i, int(train[k])) for k in turns for i, train in enumerate(clients) if k < len(train))
    return [*islice(rows, limit)]


def preview(scenario: Scenario, source: Dataset | None = None) -> Table:
    """Return a table of training rows as the model will see them.

    Args:
        scenario: prepared.
        source: the data as read, for the cells of a table before their encoding.
    """
    picked = training_rows(scenario)
    inputs = [_model_input(scenario, row) for _, row in picked]
    heads = [scenario.names[client] for client, _ in picked]
    if scenario.dataset.kind == "table":
        return _features(scenario, source, [row for _, row in picked], heads, inputs)
    describe = _text if scenario.dataset.kind == "text" else _image
    fields = [
        {"client": head, "label": _label(scenario, row), **describe(scenario.dataset, row, values)}
        for head, (_, row), values in zip(heads, picked, inputs, strict=True)
    ]
    header = [*fields[0]] if fields else []
    lines = [[*field.values()] for field in fields]
    return Table("rows", _title(len(picked)), [], header, lines, range(len(header)))


def _title(rows: int) -> str:
    return f"{rows} training rows as the model will see them"


def _model_input(scenario: Scenario, row: int) -> NDArray[Any]:
    """Return a row as the network's input, before a change of axes."""
    data = scenario.dataset
    x = np.asarray(data.x[row])
    if data.kind == "text":
        return x
    shift, scale = np.array(data.shift, np.float32), np.array(data.scale, np.float32)
    standardised: NDArray[Any] = (x.astype(np.float32) - shift) / scale
    return standardised


def _features(
    scenario: Scenario,
    source: Dataset | None,
    rows: Sequence[int],
    heads: Sequence[str],
    inputs: Sequence[NDArray[Any]],
) -> Table:
    """Return a line for each feature: its cell in the file, and the number that the model sees."""
    width = len(inputs[0]) if inputs else 0
    features = _feature_columns(scenario.dataset, width)
    columns = [column for _, column in features]
    cells = [_cells(source or scenario.dataset, row, columns) for row in rows]
    lines = [["label", *(_label(scenario, row) for row in rows)]]
    for k, (name, _) in enumerate(features[:MAX_FEATURES]):
        pairs = zip(cells, inputs, strict=True)
        lines.append([name, *(f"{row[k]} -> {float(x[k]):.4g}" for row, x in pairs)])
    notes = ["Each cell as it was read -> the number that the model gets."]
    if width > MAX_FEATURES:
        notes.append(f"The first {MAX_FEATURES} of {width} features.")
    return Table("rows", _title(len(rows)), notes, ["feature", *heads], lines, range(len(rows) + 1))


def _feature_columns(data: Dataset, width: int) -> list[tuple[str, str]]:
    """Return the name of each of the model's inputs, and that of the column that it comes from."""
    for steps in data.preprocessing[:1]:
        if steps.width == width:
            return [(name, column.name) for column in steps.columns for name in column.features]
    names = data.columns if len(data.columns) == width else [f"column {k}" for k in range(width)]
    return [(name, name) for name in names]


def _cells(source: Dataset, row: int, columns: Sequence[str]) -> list[str]:
    """Return the cell of each of these columns in a row."""
    raw = source.raw
    if raw is None:
        return [f"{float(value):.6g}" for value in np.asarray(source.x[row])]
    by_name = {column.name: k for k, column in enumerate(raw.columns)}
    positions = [by_name.get(name) for name in columns]
    if len(columns) == len(raw.columns) and by_name.keys().isdisjoint(columns):
        positions = [*range(len(columns))]  # columns without names
    return [_cell(raw, row, position) for position in positions]


def _cell(raw: RawTable, row: int, k: int | None) -> str:
    if k is None:
        return PLACEHOLDER
    value = float(raw.x[row, k])
    if np.isnan(value):
        return "(gap)"
    if raw.columns[k].kind == "category":
        return _shortened(raw.values[k][int(value)])
    if raw.columns[k].kind == "date":
        return str(EPOCH + timedelta(days=value))
    return f"{value:.6g}"


def _text(data: Dataset, _row: int, tokens: NDArray[Any]) -> dict[str, str]:
    """Describe a text: its tokens, as words where they are known; 0 is padding."""
    vocabulary = dict(zip(count(2), data.words, strict=False))
    numbers = [int(token) for token in tokens if token]
    texts = [
        vocabulary.get(token, "?") if vocabulary else str(token) for token in numbers[:MAX_TOKENS]
    ]
    suffix = f" ... ({len(numbers)} of them)" if len(numbers) > MAX_TOKENS else ""
    return {"tokens" if not vocabulary else "words, ? for unknown": " ".join(texts) + suffix}


def _image(data: Dataset, row: int, values: NDArray[Any]) -> dict[str, str]:
    """Describe an image or a volume, as read and as the model gets it."""
    x = np.asarray(data.x[row])
    return {
        "shape": " x ".join(map(str, x.shape)),
        "dtype": str(x.dtype),
        "min, mean, max": _spread(x),
        "for the model": _spread(values),
    }


def _spread(x: NDArray[Any]) -> str:
    return ", ".join(f"{float(v):.4g}" for v in (x.min(), x.mean(dtype=np.float64), x.max()))


def _label(scenario: Scenario, row: int) -> str:
    """Return a row's target in words."""
    data, y = scenario.dataset, np.asarray(scenario.dataset.y[row])
    match scenario.targets:
        case "classes":
            return _shortened(data.classes[int(y)])
        case "segmentation":
            pixels = np.bincount(y.reshape(-1), minlength=len(data.classes))
            counts = zip(map(_shortened, data.classes), pixels, strict=False)
            return ", ".join(f"{name} {count}" for name, count in counts)
        case "survival":
            return f"{y[0]:.6g}, {'event' if y[1] else 'censored'}"
        case "multilabel":
            names = data.labels or tuple(f"target {k}" for k in range(len(y)))
            return ", ".join(map(_shortened, compress(names, y))) or "none"
    return _numbers(data, y)


def _numbers(data: Dataset, y: NDArray[Any]) -> str:
    """Return targets (K,) -> as the model learns them."""
    learned = np.broadcast_to((y - np.array(data.target_shift)) / data.target_scale, y.shape)
    return ", ".join(f"{v:.6g} -> {n:.4g}" for v, n in zip(y.tolist(), learned, strict=True))


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_CELL else f"{text[: MAX_CELL - 3]}..."

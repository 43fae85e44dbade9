"""Data of a Python program as data of a run: arrays, data sets of PyTorch, frames of pandas.

What the functions here return is a section ``data``: ``Config(data=from_arrays(x, y, client))``.
It has the settings of such data, by the same names as in a file, and takes the way of ``.npz``
archives and of Parquet: the same checks, features and numbers. A record keeps the settings and the
data's fingerprint, not the data; who resumes the run gives them again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from pomona.core.bounds import SPLITS, WITH_CLASS_NAMES, Targets
from pomona.core.errors import DataError, suggestion
from pomona.data import cell_values, npz, targets
from pomona.data.array_file import paired
from pomona.data.axes import Arrays, InMemory, Table
from pomona.data.dataset import Dataset
from pomona.data.formats.frame import Frame, is_frame
from pomona.data.memory_tables import (
    Frames,
    Rows,
    of_clients,
    require_aligned,
    require_all_frames,
    with_labels,
)
from pomona.data.python_values import array, channels_last, pair, refuse_files, stored
from pomona.data.python_values import names as names_of
from pomona.data.section import data_settings


def from_arrays(
    x: Any, y: Any, client: Any = None, group: Any = None, **settings: Any
) -> Arrays | Table:
    """Return arrays of NumPy, PyTorch or anything that NumPy converts, as data of a run.

    Args:
        x: (n, F) numbers of a table; images (n, H, W) or (n, H, W, C), volumes (n, D, H, W, C); or
            a frame of pandas, polars or pyarrow, whose columns keep their names and are read as by
            ``from_frame``.
        y: (n,) class numbers from 0, or names of classes; (n, K) numbers or flags; masks
            ``(n, *sides)``; see ``targets``.
        client: (n,) the name of each row's owner, who becomes a client. Without it, the rows are
            dealt to clients by ``partition``.
        group: (n,) names of rows that belong together, such as a patient's.
        settings: of section ``data``: targets, classes, test_share, resize, normalise and others;
            for a frame as for ``from_frame``.

    Raises:
        ConfigError: a setting that arrays do not have.
        DataError: arrays of different lengths. All else is checked when a run reads them; rows in
            messages are counted within the client.

    >>> import numpy as np
    >>> x, y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 2
    >>> data = from_arrays(x, y, client=np.repeat(["Aachen", "Bergen"], 30))
    >>> data.name
    'arrays'
    """
    owners = None if client is None else names_of(client, "client")
    groups = None if group is None else names_of(group, "group")
    for name, values in (("client", client), ("group", group)):
        require_aligned(x, values, name)
    if is_frame(x):
        if isinstance(y, str):
            raise DataError(
                f"y is the text {y!r}; if it names a column: from_frame(x, label_column=y)"
            )
        _require_lengths(x, y, owners, groups)
        columns = {"client_column": owners, "group_column": groups}
        added = {key: names for key, names in columns.items() if names is not None}
        frame, roles = with_labels(Rows("", 0, x, y), settings, added)
        return _settings("table", Frames((frame,)), settings | roles)
    y = array(y, "y")
    x = array(x, "x")
    refuse_files(x, y, "x")
    x, notes = channels_last(x, "x")
    _require_lengths(x, y, owners, groups)
    rows = Rows("", 0, x, y, groups)
    by_client = {"": rows} if owners is None else _by_client(rows, owners)
    names = () if owners is None else tuple(by_client)
    return _settings("arrays", _Arrays(tuple(by_client.values()), names, tuple(notes)), settings)


def _require_lengths(x: Any, y: Any, owners: list[str] | None, groups: list[str] | None) -> None:
    """Raise DataError unless each row has a label, and a named owner and a group if any has."""
    for name, values in (("y", y), ("client", owners), ("group", groups)):
        if values is not None and len(values) != len(x):
            raise DataError(f"x has {len(x)} rows but {name} has {len(values)}; give each row one")
    if owners is not None and "" in owners:
        raise DataError(f"client: row {owners.index('')} names no client; name it")


def _by_client(rows: Rows, owners: list[str]) -> dict[str, Rows]:
    """Return the rows of each owner, sorted by its name."""
    names, number = targets.numbered(owners)
    indices = {name: np.flatnonzero(number == i) for i, name in enumerate(names)}
    groups = rows.groups
    return {
        name: Rows(name, 0, rows.x[k], rows.y[k], groups and [groups[i] for i in k.tolist()])
        for name, k in indices.items()
    }


def from_clients(
    train: Mapping[str, Any],
    validation: Mapping[str, Any] | None = None,
    test: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Arrays | Table:
    """Return each client's arrays (x, y), or its ``torch.utils.data.Dataset``, as data of a run.

    Args:
        train: by the client's name: a tuple (x, y) as for ``from_arrays``; a frame, with
            ``label_column`` among the settings; or a data set with a length, whose items are pairs
            (x, y) or dictionaries with the keys of such a pair, such as image and label. An item's
            x is a tensor with its channels first, (C, H, W) or (C, D, H, W), or (F,); or anything
            else with its channels last. Columns of frames meet by name, in any order.
        validation: a client's own, where it has some; else drawn from its training rows.
        test: likewise.
        settings: as for ``from_arrays``.

    Raises as ``from_arrays``.
    """
    splits = [_by_name(split) for split in (train, validation or {}, test or {})]
    names = tuple(splits[0])
    if untrained := [name for name in chain(*splits) if name not in names]:
        raise DataError(f"{untrained[0]!r} has no training rows; {suggestion(untrained[0], names)}")
    if not names:
        raise DataError("no client is given; give at least one")
    labelled = any(map(settings.get, ("label_column", "label_columns")))
    rows, notes = list[Rows](), list[str]()
    for role, split in enumerate(splits):
        for name in filter(split.__contains__, names):
            client_rows, remarks = _rows_of(name, role, split[name], labelled)
            rows.append(client_rows)
            notes += remarks
    if require_all_frames(rows):
        content, columns = of_clients(rows, names, settings)
        return _settings("table", content, settings | columns)
    return _settings("arrays", _Arrays(tuple(rows), names, tuple(notes)), settings)


def _rows_of(name: str, role: int, values: Any, labelled: bool) -> tuple[Rows, Sequence[str]]:
    """Return a client's rows of a split, and remarks; frames have their labels if ``labelled``."""
    if labelled and is_frame(values):
        return Rows(name, role, values), ()
    x, y, remarks = pair(values, f"client {name}, {SPLITS[role]}")
    return Rows(name, role, x, y), remarks


def from_frame(frame: Any, test: Any = None, **settings: Any) -> Table:
    """Return a pandas DataFrame as data of a run.

    Args:
        frame: a row for each sample; its columns are found by their names. Cells are read as those
            of a Parquet file: numbers, texts, dates, truth values, and gaps (NaN, None, NaT).
        test: further rows, for testing, with the same columns.
        settings: of section ``data``, as for a file: ``label_column``, ``client_column``,
            ``group_column``, ``categories``, ``missing``, ``drop_columns`` and others.

    Raises:
        ConfigError: a setting that tables do not have.
        DataError: not a DataFrame. All else is checked when a run reads it; rows in messages are
            counted from 0.
    """
    named_frames = {"frame": frame} | ({} if test is None else {"test frame": test})
    frames = tuple(Frame.from_table(values, name) for name, values in named_frames.items())
    table = _settings("table", Frames(frames), settings)
    assert isinstance(table, Table)
    return table


def _settings(name: str, content: Any, settings: Mapping[str, Any]) -> Arrays | Table:
    """Return settings with the data next to them."""
    section = data_settings(**{"name": name, "memory": True, **settings})
    assert isinstance(section, InMemory)
    section._content = content
    return cast("Arrays | Table", section)


def _by_name(split: Mapping[str, Any]) -> dict[str, Any]:
    """Return clients' data by name. Raises DataError for names that are missing or the same."""
    if not isinstance(split, Mapping):
        raise DataError(f"clients is a {type(split).__name__}; give a mapping from their names")
    named_frames = {
        cell_values.normalized_name(str(name)): values for name, values in split.items()
    }
    if "" in named_frames or len(named_frames) < len(split):
        raise DataError(f"clients have no name, or share one: {list(split)}; give each its own")
    return named_frames


def read(settings: InMemory) -> Dataset:
    """Return the data separately from the settings.

    Raises DataError if there are none, as in another process than the one that made them.
    """
    if (content := settings._content) is None:
        raise DataError(
            f"data.name = {settings.name}: the data of this run were in a Python program's memory; "
            "give them again there: pomona.run(..., out=FOLDER, resume=True) with data of "
            "pomona.data.from_arrays, from_clients or from_frame"
        )
    dataset: Dataset = content.read(settings)
    return dataset


@dataclass(frozen=True, eq=False)
class _Arrays:
    """Arrays: training rows first; ``names`` of the clients, empty for rows without owners; and
    remarks for display.
    """

    rows: tuple[Rows, ...]
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def read(self, settings: Arrays) -> Dataset:
        """Return the data set."""
        labels, classes = self._labels(settings.targets, settings.classes)
        pairs = [
            paired(stored(rows.x, rows.location("x")), stored(y, rows.location("y")))
            for rows, y in zip(self.rows, labels, strict=True)
        ]
        roles = [rows.role for rows in self.rows]
        dataset = npz.assembled(settings.name, pairs, roles.count(0), settings, classes)
        groups = [name for rows in self.rows for name in rows.groups or ()]
        dataset = npz.grouped(dataset, groups or None)
        dataset = replace(dataset, notes=(*dataset.notes, *self.notes))
        if not self.names:
            return dataset
        clients = [self.names.index(rows.client) for rows in self.rows]
        return dataset.with_owners(self.names, clients, roles, [len(x) for x, _ in pairs])

    def _labels(
        self, targets_type: Targets, names: tuple[str, ...]
    ) -> tuple[list[NDArray[Any]], tuple[str, ...]]:
        """Return the targets of all rows, names of classes as their numbers, and the classes.

        Raises DataError for a name that is not among those given, and for names next to numbers.
        """
        if targets_type == "segmentation":
            return [_masks(rows) for rows in self.rows], names
        if targets_type not in WITH_CLASS_NAMES or not _are_names(self.rows):
            return [rows.y for rows in self.rows], names
        cells = [[cell_values.plain(str(name)) for name in rows.y] for rows in self.rows]
        classes = names or targets.in_order(chain.from_iterable(cells))
        return [
            _numbers(values, classes, rows.location("y"))
            for rows, values in zip(self.rows, cells, strict=True)
        ], classes


def _are_names(every_rows: Sequence[Rows]) -> bool:
    """Return whether targets are texts. Raises DataError if only some are."""
    texts = [rows for rows in every_rows if _is_text(rows.y)]
    numbers = [rows for rows in every_rows if len(rows.y) and not _is_text(rows.y)]
    if texts and numbers:
        raise DataError(
            f"{texts[0].location('y')} has names (first {str(texts[0].y[0])!r}), "
            f"{numbers[0].location('y')} numbers (first {numbers[0].y.flat[0]}); give the same "
            "names of classes everywhere"
        )
    return bool(texts)


def _masks(rows: Rows) -> NDArray[Any]:
    """Return masks without a channel axis, which MONAI gives them."""
    masks: NDArray[Any] = rows.y
    if rows.x.ndim != masks.ndim or masks.ndim < 4:
        return masks
    axis = next((axis for axis in (1, -1) if masks.shape[axis] == 1), None)
    return masks if axis is None else masks.squeeze(axis)


def _numbers(names: Sequence[str], classes: Sequence[str], location: str) -> NDArray[np.int64]:
    """Return the number of each row's class (n,). Raises DataError for a name of none."""
    number = {cell_values.plain(name): k for k, name in enumerate(classes)}
    if unknown := [row for row, name in enumerate(names) if name not in number or not name]:
        first = names[unknown[0]]
        raise DataError(
            f"{location}: {len(unknown)} labels are not classes, first {first!r} in row "
            f"{unknown[0]}; {suggestion(first, classes)}"
        )
    return np.array([number[name] for name in names], np.int64)


def _is_text(y: NDArray[Any]) -> bool:
    return y.ndim == 1 and y.dtype.kind in "UTO" and all(isinstance(name, str) for name in y)

"""Frames of a Python program with their labels next to them, as tables of a run.

Columns of several frames meet by name, as those of several files do; so do rows: labels, clients
and groups that are columns of pandas have the index of their frame.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from numpy.typing import NDArray

from pomona.core.bounds import SPLITS, WITH_CLASS_NAMES
from pomona.core.errors import ConfigError, DataError, listed, refuse
from pomona.data import cell_values
from pomona.data.axes import Source, Table, settings_class
from pomona.data.dataset import Dataset
from pomona.data.formats.columns import cell_text
from pomona.data.formats.frame import Frame, column_cells, is_frame
from pomona.data.python_values import array
from pomona.data.settings import DataSettings
from pomona.data.tables import tabular

Cells = dict[str, list[str]]


class Rows(NamedTuple):
    """Rows of one client and split, of one without a name if rows have no owners.

    ``y`` is None where ``x`` has the labels among its columns; ``groups`` names that of each row.
    """

    client: str
    role: int
    x: Any
    y: Any = None
    groups: Sequence[str] | None = None

    def location(self, array: str = "") -> str:
        """Return the location of the rows, or of one of their arrays, for messages."""
        client = self.client and f"client {self.client}"
        split = SPLITS[self.role] if self.role else ""
        return ", ".join(filter(None, [client, split, array]))


def require_all_frames(every_rows: Sequence[Rows]) -> bool:
    """Return whether the rows are frames. Raises DataError if only some are."""
    framed = [is_frame(rows.x) for rows in every_rows]
    if all(framed) or not any(framed):
        return all(framed)
    framed_rows, nameless = every_rows[framed.index(True)], every_rows[framed.index(False)]
    columns = Frame.from_table(framed_rows.x, framed_rows.location()).names
    raise DataError(
        f"{nameless.location()}: x is a {type(nameless.x).__name__} without column names, but that "
        f"of {framed_rows.location()} has {listed(columns, 8)}; give frames with these"
    )


def with_labels(
    rows: Rows, settings: Mapping[str, Any], extra: Mapping[str, Sequence[str]] | None = None
) -> tuple[Frame, dict[str, Any]]:
    """Return a frame with its labels as further columns, and the settings that name them.

    Args:
        rows: x is a frame.
        settings: of section ``data``, for names of classes and the type of targets.
        extra: cells of further columns, by the setting that names each.

    Raises:
        ConfigError: a setting that names a label column, although labels are given apart.
        DataError: labels of another length, or with another index.
    """
    frame = Frame.from_table(rows.x, rows.location() or "x")
    if rows.y is None:
        return frame, {}
    if with_names := [key for key in ("label_column", "label_columns") if settings.get(key)]:
        raise ConfigError(f"data.{with_names[0]} names labels, but y has them; give one")
    labels = _aligned_labels(rows, len(frame), settings)
    names_in_use = {*frame.names}
    columns: Cells = {_free(name, names_in_use): cells for name, cells in labels.items()}
    names = [*columns]
    added: dict[str, Any] = (
        {"label_columns": names} if len(names) > 1 else {"label_column": names[0]}
    )
    for key, names_of_rows in (extra or {}).items():
        added[key] = _free(key.removesuffix("_column"), names_in_use)
        columns[added[key]] = [*names_of_rows]
    return replace(frame, added=columns), added


def _aligned_labels(rows: Rows, count: int, settings: Mapping[str, Any]) -> Cells:
    """Return the cells of each label column by its name. Raises DataError unless each of ``count``
    rows has one.
    """
    location = rows.location("y")
    require_aligned(rows.x, rows.y, location)
    labels = _labels(rows.y, location, settings)
    for name, cells in labels.items():
        if len(cells) != count:
            raise DataError(
                f"{location} has {len(cells)} rows, but x has {count}; give each row one"
                + f" ({name})" * (len(labels) > 1)
            )
    return labels


def require_aligned(x: Any, values: Any, location: str) -> None:
    """Raise DataError if both are of pandas and have different indices: rows meet by their names,
    and the same rows in another order would be mixed up.
    """
    left: Any = getattr(x, "index", None)
    right: Any = getattr(values, "index", None)
    if not (hasattr(left, "equals") and hasattr(right, "equals")) or left.equals(right):
        return
    if len(left) != len(right):
        return  # reported with both numbers
    row = next((k for k, (a, b) in enumerate(zip(left, right, strict=True)) if a != b), 0)
    raise DataError(
        f"{location} has a different index from x (row {row}: {right[row]!r} and {left[row]!r}); "
        "give y.loc[x.index], or y.to_numpy() if the rows are in the same order"
    )


def _free(name: str, names_in_use: set[str]) -> str:
    """Return the name, or a variant that no column has, and take it."""
    while name in names_in_use:
        name += "'"
    names_in_use.add(name)
    return name


def _labels(y: Any, location: str, settings: Mapping[str, Any]) -> Cells:
    """Return the cells of each label column by its name."""
    if is_frame(y):
        frame = Frame.from_table(y, location)
        return {
            name: _class_names([*cells], settings)
            for name, cells in zip(frame.names, frame.cells(), strict=True)
        }
    if hasattr(y, "isna") or hasattr(y, "to_pylist") or hasattr(y, "to_list"):
        name = str(getattr(y, "name", None) or getattr(y, "_name", None) or "label")
        return {name: _class_names(column_cells(y), settings)}
    values = array(y, location)
    if values.ndim == 1 or values.shape[1:] == (1,):
        return {"label": _class_names(_texts(values.reshape(len(values))), settings)}
    if values.ndim != 2:
        raise DataError(f"{location} has shape {values.shape}; a table has labels (n,) or (n, K)")
    return {f"target {k}": _texts(column) for k, column in enumerate(values.T)}


def _texts(values: NDArray[Any]) -> list[str]:
    if values.dtype.kind in "mM":
        values = values.astype(str)
    return [cell_text(value) for value in values.tolist()]


def _class_names(cells: list[str], settings: Mapping[str, Any]) -> list[str]:
    """Return the names of classes of which the cells are numbers, if ``classes`` names them."""
    classes = [str(name) for name in settings.get("classes", ())]
    if not classes or settings.get("targets", "classes") not in WITH_CLASS_NAMES:
        return cells
    numbers = {str(k): name for k, name in enumerate(classes)}
    if {cell_values.plain(name) for name in classes} & numbers.keys():
        return cells  # names that are numbers
    return [numbers.get(cell_values.plain(cell), cell) for cell in cells]


@dataclass(frozen=True, eq=False)
class Frames:
    """Frames, those for training first; each with its client's index and its split, if ``names``
    has clients.
    """

    frames: tuple[Frame, ...]
    names: tuple[str, ...] = ()
    client: tuple[int, ...] = ()
    role: tuple[int, ...] = (0,)

    def read(self, settings: Table) -> Dataset:
        """Return the data set."""
        training = sum(role == 0 for role in self.role)
        dataset, counts = tabular.read_parts(self.frames, training, settings)
        if not self.names:
            return dataset
        return dataset.with_owners(self.names, self.client, self.role, counts)


def of_clients(
    every_rows: Sequence[Rows], names: tuple[str, ...], settings: Mapping[str, Any]
) -> tuple[Frames, dict[str, Any]]:
    """Return clients' frames with the same columns, and the settings that name their labels.

    Raises:
        ConfigError: a column of clients, which have names already.
        DataError: frames or labels with other columns than the first.
    """
    if settings.get("client_column") is not None:
        raise ConfigError("data.client_column: the clients are named already; remove it")
    labelled = [with_labels(rows, settings) for rows in every_rows]
    first, settings_added = labelled[0]
    problems = [
        f"{frame.name}: several columns are named {listed(twice, 8)}, which do not meet by name"
        for frame, _ in labelled
        if len(labelled) > 1
        and (twice := [name for name, count in Counter(frame.names).items() if count > 1])
    ]
    problems += [
        f"{frame.name} has other columns than {first.name}: {difference}"
        for frame, _ in labelled[1:]
        if (difference := _difference(frame, first))
    ]
    refuse("frames", problems, ["give all the same columns, in any order"])
    # the added columns have the names of the first frame
    frames = [
        replace(frame, added=dict(zip(first.added, frame.added.values(), strict=True)))
        for frame, _ in labelled
    ]
    clients = tuple(names.index(rows.client) for rows in every_rows)
    return Frames(
        tuple(frames), names, clients, tuple(rows.role for rows in every_rows)
    ), settings_added


def _difference(frame: Frame, first: Frame) -> str:
    """Return what a frame has other than the first; empty if nothing."""
    ours, theirs = {*frame.names}, {*first.names}
    texts = [
        f"{verb} {listed(sorted(names), 8)}"
        for verb, names in (("lacks", theirs - ours), ("only it has", ours - theirs))
        if names
    ]
    if len(frame.added) != len(first.added):
        texts.append(f"has {len(frame.added)} labels per row, {first.name} has {len(first.added)}")
    return ", ".join(texts)


def own_table(x: Any, y: Any, location: str, settings: DataSettings) -> Dataset:
    """Return a frame and its labels, as a user's own reader returns them, as a data set."""
    frame, added = with_labels(Rows("", 0, x, y), settings.model_dump(exclude_unset=True))
    in_memory: Any = settings_class(Source("table", "memory"))
    keys = in_memory.model_fields.keys() & settings.model_fields_set - {"name"}
    table = in_memory(**{key: getattr(settings, key) for key in keys}, **added)
    return tabular.read_parts([replace(frame, name=location)], 1, table)[0]

"""Frames of a Python program with their labels beside them, as tables of a run.

Columns of several frames meet by name, as those of several files do; so do rows: labels, clients
and groups that are columns of pandas have the index of their frame.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pomona.core.bounds import NAMED, SPLITS
from pomona.core.errors import ConfigError, DataError, listed, refuse
from pomona.data import cell_values
from pomona.data.axes import Source, Table, settings_class
from pomona.data.dataset import Dataset, Owners
from pomona.data.formats.columns import cell_text
from pomona.data.formats.frame import Frame, column_cells, is_frame
from pomona.data.python_values import array
from pomona.data.settings import DataSettings
from pomona.data.tables import tabular

Cells = dict[str, list[str]]


class Rows(NamedTuple):
    """Rows of one client and split; ``y`` is None where ``x`` has the labels among its columns."""

    client: str
    role: int
    x: Any
    y: Any = None

    @property
    def where(self) -> str:
        """The location of the rows, for messages."""
        split = f", {SPLITS[self.role]}" if self.role else ""
        return f"client {self.client}{split}" if self.client else ""


def require_all_frames(parts: Sequence[Rows]) -> bool:
    """Return whether the rows are frames. Raises DataError if only some are."""
    framed = [is_frame(part.x) for part in parts]
    if all(framed) or not any(framed):
        return all(framed)
    named, nameless = parts[framed.index(True)], parts[framed.index(False)]
    raise DataError(
        f"{nameless.where}: x is a {type(nameless.x).__name__}, whose columns have no names, that "
        f"of {named.where} has the columns {listed(Frame.of(named.x, named.where).names, 8)}; give "
        "frames with these columns for all"
    )


def with_labels(
    part: Rows, settings: Mapping[str, Any], beside: Mapping[str, Sequence[str]] | None = None
) -> tuple[Frame, dict[str, Any]]:
    """Return a frame with its labels as further columns, and the settings that name them.

    Args:
        part: the rows.
        settings: of section ``data``, for names of classes and the type of targets.
        beside: cells of further columns, by the setting that names each.

    Raises:
        ConfigError: a setting that names a label column, although labels are given apart.
        DataError: labels of another length, or with another index.
    """
    frame = Frame.of(part.x, part.where or "x")
    if part.y is None:
        return frame, {}
    if named := [key for key in ("label_column", "label_columns") if settings.get(key)]:
        raise ConfigError(f"data.{named[0]} names labels in the frame, but y has them; give one")
    where = f"{part.where}, y" if part.where else "y"
    require_aligned(part.x, part.y, where)
    labels = _labels(part.y, where, settings)
    for name, cells in labels.items():
        if len(cells) != len(frame):
            raise DataError(
                f"{where} has {len(cells)} rows, x {len(frame)}; give each row one"
                + f" ({name})" * (len(labels) > 1)
            )
    taken = {*frame.names}
    columns: Cells = {_free(name, taken): cells for name, cells in labels.items()}
    names = [*columns]
    said: dict[str, Any] = (
        {"label_columns": names} if len(names) > 1 else {"label_column": names[0]}
    )
    for key, names_of_rows in (beside or {}).items():
        said[key] = _free(key.removesuffix("_column"), taken)
        columns[said[key]] = [*names_of_rows]
    return Frame.of(part.x, part.where or "x", columns), said


def require_aligned(x: Any, values: Any, where: str) -> None:
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
        f"{where} has another index than x (row {row}: {right[row]!r} and {left[row]!r}); give "
        "y.loc[x.index], or y.to_numpy() if the rows are in the same order"
    )


def _free(name: str, taken: set[str]) -> str:
    """Return the name, or a variant that no column has, and take it."""
    while name in taken:
        name += "'"
    taken.add(name)
    return name


def _labels(y: Any, where: str, settings: Mapping[str, Any]) -> Cells:
    """Return the cells of each label column by its name."""
    if is_frame(y):
        frame = Frame.of(y, where)
        return {
            name: _named([*cells], settings)
            for name, cells in zip(frame.names, frame.cells(), strict=True)
        }
    if hasattr(y, "isna") or hasattr(y, "to_pylist") or hasattr(y, "to_list"):
        name = str(getattr(y, "name", None) or getattr(y, "_name", None) or "label")
        return {name: _named(column_cells(y), settings)}
    values = array(y, where)
    if values.ndim == 1 or values.shape[1:] == (1,):
        return {"label": _named(_texts(values.reshape(len(values))), settings)}
    if values.ndim != 2:
        raise DataError(f"{where} has shape {values.shape}; a table has labels (n,) or (n, K)")
    return {f"target {k}": _texts(column) for k, column in enumerate(values.T)}


def _texts(values: NDArray[Any]) -> list[str]:
    if values.dtype.kind in "mM":
        values = values.astype(str)
    return [cell_text(value) for value in values.tolist()]


def _named(cells: list[str], settings: Mapping[str, Any]) -> list[str]:
    """Return the names of classes of which the cells are numbers, if ``classes`` names them."""
    classes = [str(name) for name in settings.get("classes", ())]
    if not classes or settings.get("targets", "classes") not in NAMED:
        return cells
    numbers = {str(k): name for k, name in enumerate(classes)}
    if {cell_values.plain(name) for name in classes} & numbers.keys():
        return cells  # names that are numbers
    return [numbers.get(cell_values.plain(cell), cell) for cell in cells]


@dataclass(frozen=True, eq=False)
class ClientFrames:
    """Frames of clients: training rows first, each with its client's index and its split."""

    frames: tuple[Frame, ...]
    owner: tuple[int, ...]
    role: tuple[int, ...]
    names: tuple[str, ...]

    def read(self, settings: Table) -> Dataset:
        """Return the data set."""
        training = sum(role == 0 for role in self.role)
        dataset, counts = tabular.read_parts(self.frames, training, settings)
        role = np.repeat(np.array(self.role, np.int8), counts)
        owners = Owners(self.names, np.repeat(np.array(self.owner, np.int64), counts), role)
        return replace(dataset, n_train=int((role < 2).sum()), owners=owners)


def of_clients(
    parts: Sequence[Rows], names: tuple[str, ...], settings: Mapping[str, Any]
) -> tuple[ClientFrames, dict[str, Any]]:
    """Return clients' frames with the same columns, and the settings that name their labels.

    Raises:
        ConfigError: a column of clients, which have names already.
        DataError: frames or labels with other columns than the first.
    """
    if settings.get("client_column") is not None:
        raise ConfigError("data.client_column: the clients are named already; remove it")
    labelled = [with_labels(part, settings) for part in parts]
    first, said = labelled[0]
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
    frames = [replace(frame, added=_renamed(frame, first)) for frame, _ in labelled]
    owner = tuple(names.index(part.client) for part in parts)
    roles = tuple(part.role for part in parts)
    return ClientFrames(tuple(frames), owner, roles, names), said


def _difference(frame: Frame, first: Frame) -> str:
    """Return what a frame has other than the first; empty if nothing."""
    ours, theirs = {*frame.names}, {*first.names}
    texts = [
        f"{verb} {listed(sorted(names), 8)}"
        for verb, names in (("lacks", theirs - ours), ("only it has", ours - theirs))
        if names
    ]
    if len(frame.added) != len(first.added):
        texts.append(f"has {len(frame.added)} labels a row, {first.name} has {len(first.added)}")
    return ", ".join(texts)


def _renamed(frame: Frame, first: Frame) -> dict[str, Sequence[str]]:
    """Return the added columns under the names that they have in the first frame."""
    return dict(zip(first.added, frame.added.values(), strict=True))


def own_table(x: Any, y: Any, where: str, settings: DataSettings) -> Dataset:
    """Return a frame and its labels, as a user's own reader returns them, as a data set."""
    frame, said = with_labels(Rows("", 0, x, y), settings.model_dump(exclude_unset=True))
    in_memory: Any = settings_class(Source("table", "memory"))
    keys = in_memory.model_fields.keys() & settings.model_fields_set - {"name"}
    table = in_memory(**{key: getattr(settings, key) for key in keys}, **said)
    return tabular.read_parts([replace(frame, name=where)], 1, table)[0]

"""What the columns of a table are for, and how they are read, from the settings."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pomona.core.errors import ConfigError, DataError, refuse
from pomona.data import cell_values
from pomona.data.axes import ColumnData, Table
from pomona.data.preprocessing import LONGEST_NAME, TableColumn
from pomona.data.settings import DataSettings
from pomona.data.table_settings import CsvHeading, Features, as_column
from pomona.data.tables import source
from pomona.data.tables.cells import distinct, unreadable
from pomona.data.tables.source import Source, TableSource


class Roles(NamedTuple):
    """What columns are for, by their indices.

    Attributes:
        label: the label columns.
        purposes: other columns with a purpose, by the setting that names them.
        dropped: columns that are left out.
        features: the other columns, without labels, owners, groups, and times that are no
            ``data.dates``.
        notes: what was assumed.
    """

    label: tuple[int, ...]
    purposes: Mapping[str, int]
    dropped: tuple[int, ...]
    features: tuple[int, ...]
    notes: tuple[str, ...]


def roles(first: TableSource, settings: ColumnData) -> Roles:
    """Return what the columns are for.

    Raises ConfigError if a column does not exist, has a name that repeats, or is dropped although
    it is kept, the label or the client.
    """
    key = "label_columns" if settings.label_columns else "label_column"
    label = tuple(_index(first, column, key) for column in settings.labels)
    purposes = {key: _index(first, column, key) for key, column in settings.purposes.items()}
    used = {*label, *purposes.values()}
    dropped, dates = tuple[int, ...](), tuple[int, ...]()
    if table := as_features(settings):
        dropped = _dropped(first, table, {*label, purposes.get("client_column", -1)}, used)
        dates = first.indices(table.dates, "dates")
    unused = {*label, *dropped, purposes.get("client_column"), purposes.get("group_column")}
    unused |= {purposes.get("time_column")}.difference(dates)
    features = tuple(i for i in range(len(first.names)) if i not in unused)
    notes = _names_like_numbers(first, settings)
    if settings.targets == "survival":
        notes += _inverted(first.names[label[-1]])
    if table and features[:1] == (0,) and _has_row_names(first):
        features, dropped = features[1:], (*dropped, 0)
        notes.append(
            f"{first.path}: the first column has no name and no repeated cell (row names written "
            "by R or pandas?); it is left out"
        )
    return Roles(label, purposes, dropped, features, tuple(notes))


def _names_like_numbers(first: TableSource, settings: ColumnData) -> list[str]:
    """Report the settings' numbers of columns that are names of others."""
    names = first.names if first.columns.has_names else ()
    return [
        f"{column} is the column named {str(column)!r}, which has number {i}"
        for column in dict.fromkeys(settings.mentioned)
        if isinstance(column, int)
        and str(column) in names
        and (i := names.index(str(column))) != column
    ]


def _inverted(name: str) -> list[str]:
    """Warn about flags of an event whose name says that 1 is none."""
    line = "1 is read as an event, 0 as censored: if it says the opposite, write 1 - value"
    return [f"label column {name}: {line}"] * name.lower().startswith("cens")


def as_features(settings: DataSettings) -> Features | None:
    """Return the settings if columns without another purpose become features."""
    return settings if isinstance(settings, Features) else None


def _index(first: TableSource, column: str | int, key: str) -> int:
    """Return the index of a column that has a purpose. Raises ConfigError for a repeated name."""
    if isinstance(column, str) and f"{column} (2)" in first.names:
        raise ConfigError(
            f"data.{key}: {first.path} has several columns named {column!r}; give the number of "
            f"one, or its name if it is not the first: {f'{column} (2)'!r}"
        )
    return first.index(column, key)


def _has_row_names(first: TableSource) -> bool:
    """Return whether the first column has no name, and a different cell in every row."""
    array = first.columns.arrays[0]
    is_nameless = first.columns.has_names and not first.names[0]
    return is_nameless and not unreadable(array) and len(distinct(array).cells) == len(array)


def _dropped(
    first: TableSource, settings: Features, needed: set[int], used: set[int]
) -> tuple[int, ...]:
    """Return the columns that are left out, by name or because others are kept."""
    dropped = first.indices(settings.drop_columns, "drop_columns")
    selected = first.indices(settings.keep_columns, "keep_columns")
    for indices, reason in ((needed, "the label or the client"), (selected, "in keep_columns too")):
        if repeated := [first.names[i] for i in dropped if i in indices]:
            raise ConfigError(
                f"data.drop_columns: column {repeated[0]} of {first.path} is {reason}; keep it"
            )
    unselected = range(len(first.names)) if selected else ()
    return tuple(dict.fromkeys((*dropped, *(i for i in unselected if i not in {*selected, *used}))))


def opened(paths: Sequence[Source], settings: ColumnData) -> list[TableSource]:
    """Open files with the names of their columns: those of ``data.columns``, or of the first line.

    The first line names them if ``data.header`` says so, or if that is unset and some setting gives
    a column by name.
    """
    header, names = heading(settings)
    if header is None and not names:
        header = settings.gives_names
    sources = source.opened(paths, settings, bool(header))
    return [table.with_names(names) for table in sources] if names else sources


def heading(settings: DataSettings) -> tuple[bool | None, tuple[str, ...]]:
    """Return what is set about a header, and the names that the settings give to columns."""
    if isinstance(settings, CsvHeading):
        return settings.header, settings.columns
    return None, ()


def require(path: Source, settings: ColumnData) -> None:
    """Raise ConfigError unless the settings name labels and columns once, and labels in a way that
    fits their kind.
    """
    if settings.label_column is not None and settings.label_columns:
        raise ConfigError("data.label_column and data.label_columns both name labels; keep one")
    if settings.label_columns and settings.targets == "classes":
        raise ConfigError(
            "data.label_columns is for several flags or targets per row: set data.targets = "
            "multilabel or regression; for one class per row use data.label_column"
        )
    if not settings.labels:
        raise ConfigError(f"{path} needs a label: set data.label_column to its name or number")
    names = heading(settings)[1]
    if repeated := [name for name, times in Counter(names).items() if times > 1]:
        raise ConfigError(f"data.columns names {repeated[0]!r} twice; name each column once")
    if problem := _misnamed(names, range(len(names))):
        raise ConfigError(f"data.columns: {problem}")


def _misnamed(names: Sequence[str], indices: Iterable[int]) -> str:
    """Describe the first of these columns whose name cannot be recorded; empty if there is none."""
    for i in indices:
        if not 1 <= len(names[i]) <= LONGEST_NAME:
            length = f"a name of {len(names[i])} characters" if names[i] else "no name"
            return f"column {i} (from 0) has {length}; give one of 1 to {LONGEST_NAME} characters"
    return ""


def planned(
    sources: Sequence[TableSource], features: Sequence[int], settings: Table
) -> list[TableColumn]:
    """Return how to read each feature column, from the settings.

    Raises:
        ConfigError: a column does not exist, is a label or client column or dropped, or has two
            types.
        DataError: a column has no name, one that is too long, or cells that are neither text nor
            numbers.
    """
    first = sources[0]
    if problem := _misnamed(first.names, features):
        raise DataError(f"{first.path}: {problem}, or drop it by data.drop_columns")
    for table in sources:
        require_cells(table, features)
    encoded = () if isinstance(settings.categories, str) else settings.categories
    categories = _features(first, features, "categories", encoded)
    dates = _features(first, features, "dates", settings.dates)
    if overlap := {*categories} & {*dates}:
        raise ConfigError(
            f"column {first.names[min(overlap)]} is in data.categories and in data.dates; keep one"
        )
    by_column = {name: marks for name, marks in settings.missing_values.items() if name != "*"}
    indices = _features(first, features, "missing_values", [*by_column])
    markers = dict(zip(indices, by_column.values(), strict=True))
    everywhere = settings.missing_values.get("*", ())
    plan = []
    for i in features:
        reading = "category" if i in categories else "date" if i in dates else "number"
        missing = tuple(dict.fromkeys(map(cell_values.plain, (*markers.get(i, ()), *everywhere))))
        plan.append(column_plan(first.names[i], reading, missing, settings))
    return plan


def _features(
    first: TableSource, features: Sequence[int], key: str, columns: Sequence[str | int]
) -> tuple[int, ...]:
    """Return the indices of columns that a setting names. Raises ConfigError for one that is no
    feature.
    """
    indices = first.indices(map(as_column, columns), key)
    if unused := [first.names[i] for i in indices if i not in features]:
        raise ConfigError(
            f"data.{key}: column {unused[0]} of {first.path} is not a feature; remove it"
        )
    return indices


def require_cells(table: TableSource, indices: Iterable[int]) -> None:
    """Raise DataError if cells of these columns are neither text nor numbers."""
    problems = [
        f"column {table.names[i]} {reason}; leave it out, by data.drop_columns"
        for i in indices
        if (reason := unreadable(table.columns.arrays[i]))
    ]
    refuse(table.path, problems)


def column_plan(
    name: str, column_type: str, missing: tuple[str, ...], settings: Features
) -> TableColumn:
    """Return a column before training rows are known; the fill only states that there will be
    one.
    """
    fill = None if settings.missing == "refuse" else "" if column_type == "category" else 0.0
    censored = column_type == "number" and settings.censored == "limit"
    gaps = {"missing": missing, "censored": censored, "fill": fill}
    return TableColumn.model_validate({"name": name, "kind": column_type} | gaps)

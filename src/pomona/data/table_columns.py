"""What the columns of a table are for, and how they are read, from the settings."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pomona.core.errors import ConfigError, DataError
from pomona.data import cell_values, table_file
from pomona.data.frame import Source
from pomona.data.kinds import ColumnData, Table
from pomona.data.preprocessing import LONGEST_NAME, TableColumn
from pomona.data.settings import CsvHeading, DataSettings, Features, as_column, csv_form
from pomona.data.table_file import TableFile


class Roles(NamedTuple):
    """What columns are for, by their indices.

    Attributes:
        label: the label columns.
        places: other columns with a purpose, by the setting that names them.
        dropped: columns that are left out.
        features: the other columns, without labels, owners, groups, and times that are no
            ``data.dates``.
    """

    label: tuple[int, ...]
    places: Mapping[str, int]
    dropped: tuple[int, ...]
    features: tuple[int, ...]


def roles(first: TableFile, settings: ColumnData) -> Roles:
    """Return what the columns are for.

    Raises ConfigError if a column does not exist, or is dropped although it is kept, the label or
    the client.
    """
    key = "label_columns" if settings.label_columns else "label_column"
    label = first.indices(settings.labels, key)
    places = {key: first.index(which, key) for key, which in settings.purposes.items()}
    dropped, dated = _dropped(first, settings, label, places)
    out = {*label, *dropped, places.get("client_column"), places.get("group_column")}
    out |= {places.get("time_column")}.difference(dated)
    features = tuple(i for i in range(len(first.columns)) if i not in out)
    return Roles(label, places, dropped, features)


def _dropped(
    first: TableFile, settings: DataSettings, label: Sequence[int], places: Mapping[str, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the columns that are left out, by name or because others are kept, and the dates."""
    if not isinstance(settings, Features):
        return (), ()
    dropped = first.indices(settings.drop_columns, "drop_columns")
    wanted = first.indices(settings.keep_columns, "keep_columns")
    for i in dropped:
        name = first.columns[i]
        if i in {*label, places.get("client_column")}:
            raise ConfigError(
                f"data.drop_columns: column {name} of {first.path} is the label or the client; "
                "keep it"
            )
        if i in wanted:
            raise ConfigError(
                f"column {name} of {first.path} is in data.keep_columns and in data.drop_columns; "
                "keep one"
            )
    kept = {*wanted, *label, *places.values()}
    others = [i for i in range(len(first.columns)) if wanted and i not in kept]
    return tuple(dict.fromkeys((*dropped, *others))), first.indices(settings.dates, "dates")


def opened(path: Source, settings: ColumnData) -> TableFile:
    """Open a file with the names of its columns: those of ``data.columns``, or of its first line.

    The first line names them if ``data.header`` says so, or if that is unset and some setting gives
    a column by name.
    """
    header, names = heading(settings)
    if header is None and not names:
        header = any(isinstance(which, str) for which in settings.mentioned)
    found = table_file.opened(path, csv_form(settings), bool(header))
    return found.with_names(names) if names else found


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
        raise ConfigError(
            "data.label_column and data.label_columns both say where labels are; keep one"
        )
    if settings.label_columns and settings.targets == "classes":
        raise ConfigError(
            "data.label_columns are several flags or targets a row: set data.targets = multilabel "
            "or regression; one class a row is data.label_column"
        )
    if not settings.labels:
        raise ConfigError(
            f"{path} needs a label: set data.label_column to a column's name or number"
        )
    _, names = heading(settings)
    if twice := table_file.repeated(names):
        raise ConfigError(f"data.columns names {twice[0]!r} twice; name each column once")
    if odd := _misnamed(names, range(len(names))):
        raise ConfigError(f"data.columns: {odd}")


def _misnamed(names: Sequence[str], which: Iterable[int]) -> str:
    """Describe the first of these columns whose name cannot be recorded; empty if there is none."""
    for i in which:
        if not 1 <= len(names[i]) <= LONGEST_NAME:
            what = f"a name of {len(names[i])} characters" if names[i] else "no name"
            return f"column {i} (from 0) has {what}; give it one of 1 to {LONGEST_NAME} characters"
    return ""


def planned(first: TableFile, features: Sequence[int], settings: Table) -> list[TableColumn]:
    """Return how to read each feature column, from the settings.

    Raises:
        ConfigError: a column does not exist, is a label or client column or dropped, or has two
            types.
        DataError: a column has no name, or one that is too long.
    """
    if odd := _misnamed(first.columns, features):
        raise DataError(f"{first.path}: {odd}, or drop it by data.drop_columns")

    def asked(key: str, which: Sequence[str | int]) -> Sequence[int]:
        places = first.indices(map(as_column, which), key)
        if odd := [first.columns[i] for i in places if i not in features]:
            raise ConfigError(
                f"data.{key}: column {odd[0]} of {first.path} is not a feature; remove it"
            )
        return places

    listed = (
        [] if isinstance(settings.categories, str) else asked("categories", settings.categories)
    )
    dates = asked("dates", settings.dates)
    if both := {*listed} & {*dates}:
        raise ConfigError(
            f"column {first.columns[min(both)]} is in data.categories and in data.dates; keep one"
        )
    own = {name: marks for name, marks in settings.missing_values.items() if name != "*"}
    markers = dict(zip(asked("missing_values", [*own]), own.values(), strict=True))
    everywhere = settings.missing_values.get("*", ())
    plan = []
    for i in features:
        kind = "category" if i in listed else "date" if i in dates else "number"
        missing = tuple(dict.fromkeys(map(cell_values.plain, (*markers.get(i, ()), *everywhere))))
        plan.append(read_as(first.columns[i], kind, missing, settings))
    return plan


def read_as(name: str, kind: str, missing: tuple[str, ...], settings: Features) -> TableColumn:
    """Return a column before training rows are known; the fill only states that there will be
    one.
    """
    fill = None if settings.missing == "refuse" else "" if kind == "category" else 0.0
    censored = kind == "number" and settings.censored == "limit"
    known = {"name": name, "kind": kind, "missing": missing, "censored": censored, "fill": fill}
    return TableColumn.model_validate(known)

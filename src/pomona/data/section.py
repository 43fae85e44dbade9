"""Which settings a data set has: by its name and, for own tables, texts and arrays, by the files
named.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny

from pomona.core.settings import Settings, of_kind, require_name
from pomona.core.toml import Choices, validated
from pomona.data.catalogue import CATALOGUE
from pomona.data.kinds import (
    ClientArrays,
    ClientCsvTables,
    ClientCsvTexts,
    ClientParquetTables,
    ClientParquetTexts,
    CsvTable,
    CsvTexts,
    HubImages,
    HubTable,
    HubTexts,
    OwnReader,
    ParquetTable,
    ParquetTexts,
)
from pomona.data.settings import DEFAULT, DataSettings

PARQUET, ARCHIVE = ".parquet", ".npz"
IN_PARQUET: dict[type[DataSettings], type[DataSettings]] = {
    CsvTable: ParquetTable,
    CsvTexts: ParquetTexts,
    ClientCsvTables: ClientParquetTables,
    ClientCsvTexts: ClientParquetTexts,
}
VARIANTS: dict[type[DataSettings], tuple[type[DataSettings], ...]] = {
    ClientCsvTables: (ClientArrays, ClientCsvTexts),
    HubTable: (HubTexts, HubImages),
}
# a mistyped key is compared with those of all kinds
CHOICES: Choices = {"data": dict.fromkeys(CATALOGUE, OwnReader)}


def kind_of(section: Mapping[str, Any]) -> type[DataSettings]:
    """Return the class of settings that a section data has.

    Raises PydanticKnownError for an unknown name.
    """
    if isinstance(name := section["name"], str) and ":" in name:
        return OwnReader
    kind, suffix = CATALOGUE[require_name(section, CATALOGUE)].settings, _suffix(section)
    if kind is ClientCsvTables:
        kind = (
            ClientArrays
            if suffix == ARCHIVE
            else ClientCsvTexts
            if section.get("text_columns")
            else kind
        )
    if kind is HubTable:
        images = section.get("image_column") is not None
        kind = HubImages if images else HubTexts if section.get("text_columns") else kind
    if kind is ParquetTable and suffix not in {"", PARQUET}:
        kind = CsvTable
    return IN_PARQUET.get(kind, kind) if suffix == PARQUET else kind


def _suffix(section: Mapping[str, Any]) -> str:
    """Return the suffix of the first file that a section names; empty if there is none."""
    path, clients = section.get("path"), section.get("clients")
    if isinstance(clients, list | tuple) and clients:
        first = clients[0]
        path = first.get("train") if isinstance(first, Mapping) else getattr(first, "train", None)
    return Path(path).suffix.lower() if isinstance(path, str | Path) else ""


@cache
def groups() -> tuple[type[DataSettings], ...]:
    """Return the groups of settings that some kinds of data have."""
    return tuple(
        kind
        for kind in reversed(OwnReader.__mro__)
        if issubclass(kind, DataSettings) and own_keys(kind)
    )[1:]


@cache
def own_keys(group: type[DataSettings]) -> frozenset[str]:
    """Return the keys that a group adds to those that it extends."""
    extended = (base for base in group.__bases__ if issubclass(base, DataSettings))
    return frozenset(group.model_fields).difference(*(base.model_fields for base in extended))


def names_with(group: type[DataSettings]) -> list[str]:
    """Return the names of data sets that have a group of settings; those that are not own data by a
    common name.
    """
    kinds = {
        name: (entry.settings, *VARIANTS.get(entry.settings, ()))
        for name, entry in CATALOGUE.items()
    }
    names = [name for name, some in kinds.items() if any(issubclass(kind, group) for kind in some)]
    public = [name for name in names if not CATALOGUE[name].own]
    return [
        *(name for name in names if CATALOGUE[name].own),
        *(public if len(public) < 3 else ["public data sets"]),
    ]


def _misplaced(section: Mapping[str, Any], kind: type[DataSettings]) -> dict[str, str]:
    """Return the keys of a section that data of this kind do not have, but others do, each with the
    reason.
    """
    wrong: dict[str, str] = {}
    for key in (key for key in section if key not in kind.model_fields):
        if group := next((group for group in groups() if key in own_keys(group)), None):
            called, names = kind.called or section["name"], ", ".join(names_with(group))
            wrong[key] = f"{called} {group.lacking}; remove it, it is for {names}"
    return wrong


def _chosen(value: Any) -> Any:
    """Validate a section as the settings of its kind of data; settings are returned unchanged.

    Raises ValidationError with every bad key or value, also for a key that only other kinds have.
    """
    if not isinstance(value, Mapping):
        if hasattr(value, "__getitem__") and not isinstance(value, str | list):
            raise ValueError(
                "data in memory go by from_arrays, from_clients or from_frame of pomona.data"
            )
        return value
    section = {"name": DEFAULT, **value}
    kind = kind_of(section)
    return of_kind(kind, section, _misplaced(section, kind))


Data = Annotated[SerializeAsAny[DataSettings], BeforeValidator(_chosen)]


class _Run(Settings):
    data: Data


def data_settings(**section: Any) -> DataSettings:
    """Return the settings of a section data. Raises ConfigError with every bad key or value."""
    return validated(_Run, {"data": section}, CHOICES).data

"""Section ``data``: which settings it has, and what is said of a setting of other data."""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny

from pomona.core.settings import Settings, of_kind, require_name
from pomona.core.toml import Choices, validated
from pomona.data.axes import (
    CONTENTS,
    FORMATS,
    PLACES,
    CustomReader,
    Group,
    OwnData,
    settings_class,
    source_of,
    sources,
)
from pomona.data.catalogue import CATALOGUE
from pomona.data.settings import DEFAULT, DataSettings

NAMES = (*CATALOGUE, *CONTENTS)
# a mistyped key is compared with those of all data
CHOICES: Choices = {"data": dict.fromkeys(NAMES, CustomReader)}
OLD = {
    "csv": "table",
    "parquet": "table",
    "csv-text": "text",
    "folder": "images",
    "manifest": "images",
    "npz": "arrays",
    "idx": "images",
    "frame": "table",
}


def group_of(section: Mapping[str, Any]) -> Group:
    """Return the class of settings that a section data has.

    Raises PydanticKnownError for an unknown name, ValueError as ``source_of``.
    """
    if isinstance(name := section["name"], str) and ":" in name:
        return CustomReader
    if require_name(section, NAMES) in CATALOGUE:
        return CATALOGUE[name].settings
    return settings_class(source_of(section))


@cache
def groups() -> tuple[Group, ...]:
    """Return the groups of settings that some data have."""
    return tuple(
        group
        for group in reversed(CustomReader.__mro__)
        if issubclass(group, DataSettings) and own_keys(group)
    )[1:]


@cache
def own_keys(group: Group) -> frozenset[str]:
    """Return the keys that a group adds to those that it extends."""
    extended = (base for base in group.__bases__ if issubclass(base, DataSettings))
    return frozenset(group.model_fields).difference(*(base.model_fields for base in extended))


def names_with(group: Group) -> list[str]:
    """Return the names of those that have a group of settings: formats, places or contents of own
    data that bring it, then data sets of the catalogue, if they are few by name.
    """
    values = [*(f for each in FORMATS.values() for f in each.values()), *PLACES.values()]
    values += CONTENTS.values()
    names = [v.name for v in values if any(issubclass(each, group) for each in v.groups)]
    if not names:
        names = [s.content for s in sources() if any(issubclass(g, group) for g in s.groups)]
    public = [name for name, entry in CATALOGUE.items() if issubclass(entry.settings, group)]
    return [
        *dict.fromkeys(names),
        *(public if len(public) < 3 else ["public data sets"]),
    ]


def _misplaced(section: Mapping[str, Any], kind: Group) -> dict[str, str]:
    """Return the keys of a section that only other data have, each with the reason."""
    wrong: dict[str, str] = {}
    title = kind.source.title if issubclass(kind, OwnData) else section["name"]
    for key in (key for key in section if key not in kind.model_fields):
        if group := next((group for group in groups() if key in own_keys(group)), None):
            names = ", ".join(names_with(group))
            wrong[key] = f"{title} {group.lacking}; remove it, it is for {names}"
    return wrong


def _chosen(value: Any) -> Any:
    """Validate a section as the settings of its data; settings are returned unchanged.

    Raises ValidationError with every bad key or value, also for a key that only other data have.
    """
    if not isinstance(value, Mapping):
        if hasattr(value, "__getitem__") and not isinstance(value, str | list):
            raise ValueError(
                "data in memory go by from_arrays, from_clients or from_frame of pomona.data"
            )
        return value
    section = _named(value)
    kind = group_of(section)
    return of_kind(kind, section, _misplaced(section, kind))


def _named(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section with its name: the content of own data if it says where they are."""
    section = dict(section)
    if str(section.get("name")) in OLD | {"hf": "", "clients": ""}:
        old = section.pop("name")
        if old == "idx":
            section["format"] = "idx"
        if old in OLD:
            section["name"] = OLD[old]
    if section.get("name") is None:
        section["name"] = source_of(section).content if section.keys() & PLACES else DEFAULT
    return section


Data = Annotated[SerializeAsAny[DataSettings], BeforeValidator(_chosen)]


class _Run(Settings):
    data: Data


def data_settings(**section: Any) -> DataSettings:
    """Return the settings of a section data. Raises ConfigError with every bad key or value."""
    return validated(_Run, {"data": section}, CHOICES).data

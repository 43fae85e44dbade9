"""Section ``data``: which settings it has, and what is said of a setting of other data."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny

from pomona.core.errors import suggestion
from pomona.core.settings import Settings, require_name, validate_section
from pomona.core.toml import Choices, validated
from pomona.data.axes import (
    CONTENTS,
    FORMATS,
    LOCATIONS,
    AxisValue,
    CustomReader,
    Group,
    OwnData,
    Source,
    settings_class,
    sources,
)
from pomona.data.catalogue import CATALOGUE
from pomona.data.formats import formats, suffix
from pomona.data.settings import DEFAULT, DataSettings

NAMES = (*CATALOGUE, *CONTENTS)
PUBLIC = "public data sets"
MASK_TABLE = "list the images in a table with the columns path and mask (or label), as CSV"
# a mistyped key is compared with those of all data
CHOICES: Choices = {"data": dict.fromkeys(NAMES, CustomReader)}


def group_of(section: Mapping[str, Any]) -> Group:
    """Return the class of settings that a section data has.

    Raises PydanticKnownError for an unknown name, ValueError as ``source_of``.
    """
    name = section["name"]
    if isinstance(name, str) and ":" in name:
        return CustomReader
    if require_name(section, NAMES) in CATALOGUE:
        return CATALOGUE[name].settings
    return settings_class(source_of(section))


def source_of(section: Mapping[str, Any]) -> Source:
    """Return the source that a section of own data describes.

    Raises ValueError for a content or format that does not exist, or not at the location.
    """
    location, suffixes = _location(section), _suffixes(section)
    content = section.get("name") or _content(section, suffixes)
    stored = location in {"path", "clients"}
    source = Source(content, location, _format(section, content, suffixes) if stored else "")
    if source not in sources():
        reason = f"{CONTENTS[content].title} are not read {LOCATIONS[location].title}"
        if location == "clients":
            reason += (
                "; give each client a .npz archive (name = 'arrays'), or list images in a table"
            )
        raise ValueError(reason)
    return source


def _location(section: Mapping[str, Any]) -> str:
    """Return the location: the first of path, clients and repository that is given."""
    return next((name for name in LOCATIONS if section.get(name) is not None), "path")


def _content(section: Mapping[str, Any], suffixes: list[str]) -> str:
    """Return the content of data without a name: by what the section says, and by the suffix."""
    if section.get("text_columns"):
        return "text"
    if section.get("image_column") is not None:
        return "images"
    if suffixes[:1] == [".npz"]:
        return "arrays"
    return "table" if any(suffixes[:1]) or _location(section) != "path" else "images"


def _format(section: Mapping[str, Any], content: str, suffixes: list[str]) -> str:
    """Return the format: as ``data.format`` says, else by the suffixes of the files."""
    choices, requested = FORMATS[content], section.get("format")
    if requested:
        if requested not in choices:
            hint = suggestion(str(requested), choices)
            raise ValueError(f"{content}: unknown format {requested!r}; {hint}")
        return str(requested)
    if content == "images":
        return "list" if formats().keys() & suffixes else "folders"
    default = next(iter(choices))
    names = [formats()[end].name if end in formats() else default for end in suffixes] or [default]
    return names[0] if content == "arrays" or len({*names}) == 1 else "mixed"


def _suffixes(section: Mapping[str, Any]) -> list[str]:
    """Return the suffixes of the files that a section names: of each client, or the path."""
    clients = section.get("clients")
    paths = [section.get("path")]
    if isinstance(clients, list | tuple) and clients:
        keys = ("train", "validation", "test")
        fields = [
            client if isinstance(client, Mapping) else getattr(client, "__dict__", {})
            for client in clients
        ]
        paths = [client.get(key) for client in fields for key in keys]
    return [suffix(Path(path)) for path in paths if isinstance(path, str | Path)]


@cache
def groups() -> tuple[Group, ...]:
    """Return the groups of settings that some data have."""
    every = (group for group in reversed(CustomReader.__mro__) if issubclass(group, DataSettings))
    return tuple(group for group in every if added_keys(group) and group is not DataSettings)


@cache
def added_keys(group: Group) -> frozenset[str]:
    """Return the keys that a group adds to those that it extends."""
    extended = (base for base in group.__bases__ if issubclass(base, DataSettings))
    return frozenset(group.model_fields).difference(*(base.model_fields for base in extended))


def names_with(group: Group) -> dict[str, list[str]]:
    """Return the names of the data that have a group of settings, by the key of the section that
    takes them: formats, locations (keys themselves), and contents or, if they are few by name, data
    sets of the catalogue.
    """
    axes = {"format": FORMATS.values(), "": [LOCATIONS], "name": [CONTENTS]}
    names = {
        key: [
            *dict.fromkeys(
                v.name for axis in axes[key] for v in axis.values() if _has_settings(v, group)
            )
        ]
        for key in axes
    }
    if not any(names.values()):
        names["name"] = [*dict.fromkeys(s.content for s in sources() if _has_settings(s, group))]
    public = [name for name, entry in CATALOGUE.items() if issubclass(entry.settings, group)]
    names["name"] += public if len(public) < 3 else [PUBLIC]
    return names


def _has_settings(data: AxisValue | Source, group: Group) -> bool:
    return any(issubclass(g, group) for g in data.groups)


def applicability(group: Group) -> str:
    """Return in words which data have a group of settings: ``data.format = csv, mixed, list``."""
    names = names_with(group)
    texts = [f"data.{name}" for name in names[""]]
    texts += [f"data.{key} = {', '.join(names[key])}" for key in ("format", "name") if names[key]]
    return " or ".join(texts).replace(f"data.name = {PUBLIC}", PUBLIC)


def _misplaced(section: Mapping[str, Any], settings_type: Group) -> dict[str, str]:
    """Return the keys of a section that only other data have, each with the reason."""
    reasons: dict[str, str] = {}
    title = settings_type.source.title if issubclass(settings_type, OwnData) else section["name"]
    for key in (key for key in section if key not in settings_type.model_fields):
        if group := next((group for group in groups() if key in added_keys(group)), None):
            reasons[key] = f"no setting of {title}; remove it, it is for {applicability(group)}"
            if (key, section.get("targets")) == ("targets", "segmentation"):
                reasons[key] += f": {MASK_TABLE}"
    return reasons


def _chosen(value: Any) -> Any:
    """Validate a section as the settings of its data; settings are returned unchanged.

    Raises ValidationError with every bad key or value, also for a key that only other data have.
    """
    if not isinstance(value, Mapping):
        if hasattr(value, "__getitem__") and not isinstance(value, str | list):
            raise ValueError(
                "pass data in memory with from_arrays, from_clients or from_frame of pomona.data"
            )
        return value
    section = dict(value)
    if section.get("name") is None:
        section["name"] = source_of(section).content if section.keys() & LOCATIONS else DEFAULT
    settings_type = group_of(section)
    return validate_section(settings_type, section, _misplaced(section, settings_type))


Data = Annotated[SerializeAsAny[DataSettings], BeforeValidator(_chosen)]


class _Run(Settings):
    data: Data


def data_settings(**section: Any) -> DataSettings:
    """Return the settings of a section data. Raises ConfigError with every bad key or value."""
    return validated(_Run, {"data": section}, CHOICES).data

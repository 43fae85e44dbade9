"""``pomona settings``: the reference of all settings, from the code."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from operator import or_
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema, create_model

from pomona.cli.output import Flag, Json, emit, stdout
from pomona.config import Config
from pomona.core.attack import Attack
from pomona.core.errors import ConfigError, suggestion
from pomona.core.membership import Membership
from pomona.core.settings import Settings
from pomona.core.training_settings import Adam, Optimizer, SecureAggregation, Stop
from pomona.data.axes import BundledImages, CustomReader
from pomona.data.section import NAMES, added_keys, applicability, groups, names_with
from pomona.data.settings import DEFAULT, ClientFiles, DataSettings, Images
from pomona.methods import METHODS, SUFFIXES, installed
from pomona.metrics.sampling_error import VerdictSettings
from pomona.models import ModelSettings
from pomona.models.settings import PatchSettings
from pomona.partition import RECIPES
from pomona.privacy.settings import Privacy


@dataclass(frozen=True)
class SettingsTable:
    """Settings that are listed under one heading.

    Attributes:
        section: of the file; empty for the top level.
        record: has the settings.
        owner: who has them, such as a method or some kinds of data; empty if every run has
            them.
        excluded: keys of the record that are listed elsewhere.
        applies: who has them, in words, if the owner's name is none.
    """

    section: str
    record: type[Settings]
    owner: str = ""
    excluded: Collection[str] = ()
    applies: str = ""


def _data() -> Iterator[SettingsTable]:
    yield SettingsTable(
        "data",
        BundledImages,
        excluded=Images.model_fields.keys() - DataSettings.model_fields.keys(),
    )
    for group in groups():
        excluded = DataSettings.model_fields.keys() | group.model_fields.keys() - added_keys(group)
        names = ", ".join(name for names in names_with(group).values() for name in names)
        yield SettingsTable("data", group, f"data {names}", excluded, applicability(group))


TABLES = (
    SettingsTable("", Config),
    *_data(),
    SettingsTable("data.clients", ClientFiles),
    SettingsTable("model", ModelSettings),
    SettingsTable("model.patch", PatchSettings),
    SettingsTable("optimizer", Optimizer),
    SettingsTable("optimizer", Adam, "optimizer adam, adamw", Optimizer.model_fields.keys()),
    SettingsTable("stop", Stop),
    SettingsTable("privacy", Privacy),
    SettingsTable("membership", Membership),
    SettingsTable("verdict", VerdictSettings),
    SettingsTable("attack", Attack),
    SettingsTable("secure_aggregation", SecureAggregation),
    *(
        SettingsTable("partition", record, f"partition {name}", excluded={"name"})
        for name, record in RECIPES.items()
    ),
    *(
        SettingsTable("method", record, f"method {name}", excluded={"name"})
        for name, record in METHODS.items()
    ),
)
SECTIONS = {table.section for table in TABLES}

BEYOND = 1e6  # bounds from here on only guard the arithmetic, and are not shown


@dataclass(frozen=True)
class Setting:
    """One key.

    Attributes:
        key: as users write it, with its section.
        owner: the partition, method or file with the key; empty for keys of every run.
        applies: the owner in words.
        kind: the allowed values, in words.
        default: as in a TOML file; "not set", or "must be set".
        meaning: one line.
    """

    key: str
    owner: str
    applies: str
    kind: str
    default: str
    meaning: str


def all_settings() -> list[Setting]:
    """Return every setting of a run, by section."""
    return [setting for table in TABLES for setting in table_settings(table)]


def find(query: str, candidates: Sequence[Setting]) -> list[Setting]:
    """Return the settings of a key, section, method, partition or file.

    Raises ConfigError for other words.
    """
    key = query.replace("-", "_")
    matches = [
        s
        for s in candidates
        if key in (s.key, s.key.rpartition(".")[2], s.key.partition(".")[0])
        or query in (s.owner, *owners(s))
    ]
    if not matches:
        names = {
            name
            for s in candidates
            for name in (s.key, s.key.rpartition(".")[2], *owners(s))
            if name
        }
        raise ConfigError(f"no setting {query!r}; {suggestion(query, names)}")
    return matches


def owners(entry: Setting | SettingsTable) -> list[str]:
    """Return the names of the owners of a setting or a table."""
    return entry.owner.partition(" ")[2].split(", ")


def table_settings(table: SettingsTable) -> Iterator[Setting]:
    """Yield the settings of a table, except sections."""
    schema = table.record.model_json_schema()
    for key, values in schema["properties"].items():
        if key in table.excluded or key in SECTIONS or key in ("method", "partition"):
            continue
        yield Setting(
            key=f"{table.section}.{key}" if table.section else key,
            owner=table.owner,
            applies=table.applies or table.owner,
            kind=_allowed_values(values, schema.get("$defs", {})),
            default="must be set"
            if key in schema.get("required", ())
            else _default_text(values.get("default")),
            meaning=values.get("description", "").rstrip(".").replace("|", "\\|"),
        )


BOUNDS = {
    "minimum": "from",
    "exclusiveMinimum": "above",
    "maximum": "up to",
    "exclusiveMaximum": "below",
}
PLAIN = {
    "array": "list: any",
    "boolean": "true, false",
    "date": "date",
    "integer": "whole number",
    "number": "number",
    "object": "table",
    "path": "path",
    "string": "text",
}


def _allowed_values(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Describe the values that a JSON schema allows."""
    match schema:
        case {"$ref": reference}:
            return _allowed_values(definitions[reference.rpartition("/")[2]], definitions)
        case {"anyOf": options}:
            texts = (_allowed_values(o, definitions) for o in options if o.get("type") != "null")
            return " or ".join(dict.fromkeys(texts))
        case {"enum": values}:
            return ", ".join(map(str, values))
        case {"const": value}:
            return str(value)
        case {"type": "array", "items": item} | {"type": "array", "prefixItems": [item, *_]}:
            return f"list: {_allowed_values(item, definitions)}"
        case {"type": "object", "additionalProperties": Mapping() as values}:
            return f"table of {_allowed_values(values, definitions)}"
    name = schema.get("format") or schema.get("type")
    return PLAIN.get(str(name), "any") + _range(schema)


def _range(schema: Mapping[str, Any]) -> str:
    bounds = {key: f"{schema[key]:g}" for key in BOUNDS if abs(schema.get(key, BEYOND)) < BEYOND}
    if bounds.keys() == {"minimum", "maximum"}:
        return f", {bounds['minimum']} to {bounds['maximum']}"
    return "".join(f", {BOUNDS[key]} {value}" for key, value in bounds.items())


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a settings file, whose sections may be names only.

    It has types, ranges, choices and the keys of each name; what depends on several keys, or on
    the data, is checked by a run only.
    """
    custom, extended = {"pattern": ":"}, {"pattern": rf"\+({'|'.join(SUFFIXES)})$"}
    other_name = {"type": "string", "anyOf": [custom, extended]}
    other_method = {"type": "object", "properties": {"name": other_name}, "required": ["name"]}
    methods = installed()
    any_data = create_model("Data", __base__=CustomReader, name=(str, DEFAULT))
    sections = {
        "method": _section(
            {"anyOf": [{"enum": [*methods]}, custom, extended]},
            Annotated[dict[str, Any], WithJsonSchema(other_method)],
            *methods.values(),
        ),
        "data": _section({"anyOf": [{"enum": [*NAMES]}, custom]}, any_data),
        "partition": _section({"enum": [*RECIPES]}, *RECIPES.values()),
        "model": _section({}, ModelSettings),
        "optimizer": Adam | Optimizer,
    }
    keys = Config.model_fields
    fields: dict[str, Any] = {
        key: (section, Field(keys[key].default, description=keys[key].description))
        for key, section in sections.items()
    }
    return create_model("Run", __base__=Config, **fields).model_json_schema()


def _section(names: Mapping[str, Any], *types: Any) -> Any:
    """Return the type of a section: one of the names, or a table."""
    return reduce(or_, types, Annotated[str, WithJsonSchema({"type": "string", **names})])


def _default_text(default: Any) -> str:
    if default is None:
        return "not set"
    return str(default).lower() if isinstance(default, bool) else str(default) or "empty"


def settings(key: str | None = None, *, schema: Flag = False, json: Json = False) -> None:
    """Explain the settings of a run.

    Parameters
    ----------
    key
        a key, a section, a method or a partition; all settings if not given
    schema
        print the JSON Schema of a run's settings
    """
    if schema:
        emit(json_schema())
        return
    show(find(key, all_settings()) if key else all_settings(), json)


def show(entries: Sequence[Setting], json: bool) -> None:
    """Print settings, each with its values, its default and its meaning."""
    if json:
        emit([asdict(setting) for setting in entries])
        return
    for s in entries:
        applies = f"; {s.applies}" if s.applies else ""
        stdout.print(
            f"{s.key}  ({s.kind}; default {s.default}{applies})", markup=False, highlight=False
        )
        stdout.print(f"    {s.meaning}", markup=False, highlight=False)


def run_help() -> str:
    """Settings shown by ``pomona run --help``: those of every run."""
    common = [s for s in all_settings() if "." not in s.key and not s.owner]
    rows = [
        f"- `{s.key}={s.default}`: {s.meaning}"
        if s.default != "not set"
        else f"- `{s.key}`: {s.meaning}"
        for s in common
    ]
    return "\n".join(
        [
            "Settings that every run has; `pomona settings` lists those of data, partitions, "
            "models and methods, and `pomona settings KEY` explains one.",
            "",
            *rows,
        ]
    )

"""``pomona settings --schema``: the settings of a run as a JSON Schema, from their records.

It knows types, ranges, choices and which keys a name brings; what depends on several keys or on the
data is checked by a run only.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from pomona.config import Config
from pomona.core.training_settings import OPTIMIZERS
from pomona.data.axes import CONTENTS, LOCATIONS, CustomReader, settings_class, sources
from pomona.data.catalogue import CATALOGUE
from pomona.data.settings import DEFAULT
from pomona.methods import METHODS, SUFFIXES
from pomona.models import ModelSettings
from pomona.partition import RECIPES

DRAFT = "https://json-schema.org/draft/2020-12/schema"
CUSTOM = {"type": "string", "pattern": ":"}  # module:function or module:Class
Schema = dict[str, Any]
Records = tuple[type[BaseModel], ...]
Refs = Mapping[Any, Schema]  # a record's definition


def schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of a settings file; sections may be names only."""
    custom = {name: _file_settings(name) for name in CONTENTS}
    data = {**{name: (entry.settings,) for name, entry in CATALOGUE.items()}, **custom}
    methods = {name: (record,) for name, record in METHODS.items()}
    partitions = {name: (record,) for name, record in RECIPES.items()}
    optimizers: Mapping[str, Records] = {name: (record,) for name, record in OPTIMIZERS.items()}
    tables: tuple[Mapping[str, Records], ...] = (data, methods, partitions, optimizers)
    record_set: set[type[BaseModel]] = {Config, ModelSettings, CustomReader}
    record_set |= {record for table in tables for records in table.values() for record in records}
    ordered = sorted(record_set, key=lambda record: record.__name__)
    refs, definitions = models_json_schema([(record, "validation") for record in ordered])
    ref: Refs = {record: definition for (record, _), definition in refs.items()}
    top = definitions["$defs"].pop(Config.__name__)
    stepped = {"pattern": rf"\+({'|'.join(SUFFIXES)})$"}
    sections = {
        "method": _section(methods, ref, "", [CUSTOM, stepped]),
        "data": _section(
            data,
            ref,
            DEFAULT,
            [CUSTOM],
            {"if": _name(CUSTOM), "then": ref[CustomReader]},
            {
                "if": {"not": _require_any("name"), **_require_any(*LOCATIONS)},
                "then": {
                    "anyOf": [ref[record] for records in custom.values() for record in records]
                },
            },
        ),
        "partition": _section(partitions, ref),
        "model": {"if": {"type": "string"}, "else": ref[ModelSettings]},
        "optimizer": {"type": "object", **_section(optimizers, ref, "sgd")["else"]},
    }
    for key, section in sections.items():
        property_schema = top["properties"][key]
        texts = {
            k: property_schema[k]
            for k in ("default", "description")
            if property_schema.get(k) is not None
        }
        top["properties"][key] = {**texts, **section}
    top["description"] = "Settings of `pomona run`; a section may be given by its name only."
    return {
        "$schema": DRAFT,
        "title": "Pomona run",
        **_untitled({**top, "$defs": definitions["$defs"]}),
    }


def _file_settings(content: str) -> Records:
    """Return the settings of a user's data files of this content."""
    files = [s for s in sources() if s.content == content and s.location != "memory"]
    return tuple(dict.fromkeys(map(settings_class, files)))


def _require_any(*keys: str) -> Schema:
    return {"anyOf": [{"required": [key]} for key in keys]}


def _name(values: Schema) -> Schema:
    return {"properties": {"name": values}, "required": ["name"]}


def _section(
    table: Mapping[str, Records],
    ref: Refs,
    default: str = "",
    alternatives: Sequence[Schema] = (),
    *extra_cases: Schema,
) -> Schema:
    """Return the schema of a section whose name selects its keys.

    Args:
        table: the settings records of each name.
        ref: the definition of each record.
        default: the name if none is given; empty if it must be.
        alternatives: schemas of other allowed names.
        extra_cases: further cases.
    """
    names = {"anyOf": [{"enum": [*table]}, *alternatives]}
    by_records: dict[Records, list[str]] = {}
    for name, records in table.items():
        by_records.setdefault(records, []).append(name)
    cases = []
    for records, record_names in by_records.items():
        fits = (
            ref[records[0]] if len(records) == 1 else {"anyOf": [ref[record] for record in records]}
        )
        chosen = _name({"enum": record_names})
        if default in record_names:
            chosen = {"anyOf": [chosen, {"not": _require_any("name", *LOCATIONS)}]}
        cases.append({"if": chosen, "then": fits})
    required = {} if default else {"required": ["name"]}
    section = {
        "type": "object",
        "properties": {"name": names},
        **required,
        "allOf": [*cases, *extra_cases],
    }
    return {"if": {"type": "string"}, "then": names, "else": section}


def _untitled(node: Any) -> Any:
    """Return a schema without the titles that Pydantic derives from names."""
    if isinstance(node, dict):
        return {
            k: _untitled(v) for k, v in node.items() if not (k == "title" and isinstance(v, str))
        }
    return [_untitled(item) for item in node] if isinstance(node, list) else node

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
OWN = {"type": "string", "pattern": ":"}  # module:function or module:Class
Schema = dict[str, Any]
Kinds = tuple[type[BaseModel], ...]
Refs = Mapping[Any, Schema]  # a kind's definition


def schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of a settings file; sections may be names only."""
    own = {name: _own(name) for name in CONTENTS}
    data = {**{name: (entry.settings,) for name, entry in CATALOGUE.items()}, **own}
    methods = {name: (kind,) for name, kind in METHODS.items()}
    partitions = {name: (kind,) for name, kind in RECIPES.items()}
    optimizers: Mapping[str, Kinds] = {name: (kind,) for name, kind in OPTIMIZERS.items()}
    tables: tuple[Mapping[str, Kinds], ...] = (data, methods, partitions, optimizers)
    every: set[type[BaseModel]] = {Config, ModelSettings, CustomReader}
    every |= {kind for table in tables for kinds in table.values() for kind in kinds}
    ordered = sorted(every, key=lambda kind: kind.__name__)
    refs, found = models_json_schema([(kind, "validation") for kind in ordered])
    ref: Refs = {kind: made for (kind, _), made in refs.items()}
    top = found["$defs"].pop(Config.__name__)
    stepped = {"pattern": rf"\+({'|'.join(SUFFIXES)})$"}
    sections = {
        "method": _named(methods, ref, "", [OWN, stepped]),
        "data": _named(
            data,
            ref,
            DEFAULT,
            [OWN],
            {"if": _name(OWN), "then": ref[CustomReader]},
            {
                "if": {"not": _any_of("name"), **_any_of(*LOCATIONS)},
                "then": {"anyOf": [ref[kind] for kinds in own.values() for kind in kinds]},
            },
        ),
        "partition": _named(partitions, ref),
        "model": {"if": {"type": "string"}, "else": ref[ModelSettings]},
        "optimizer": {"type": "object", **_named(optimizers, ref, "sgd")["else"]},
    }
    for key, section in sections.items():
        given = top["properties"][key]
        told = {k: given[k] for k in ("default", "description") if given.get(k) is not None}
        top["properties"][key] = {**told, **section}
    top["description"] = "Settings of `pomona run`; a section may be given by its name only."
    return {"$schema": DRAFT, "title": "Pomona run", **_untitled({**top, "$defs": found["$defs"]})}


def _own(content: str) -> Kinds:
    """Return the settings that own data of this content may have; not of data in memory."""
    files = [s for s in sources() if s.content == content and s.location != "memory"]
    return tuple(dict.fromkeys(map(settings_class, files)))


def _any_of(*keys: str) -> Schema:
    return {"anyOf": [{"required": [key]} for key in keys]}


def _name(values: Schema) -> Schema:
    return {"properties": {"name": values}, "required": ["name"]}


def _named(
    table: Mapping[str, Kinds],
    ref: Refs,
    default: str = "",
    others: Sequence[Schema] = (),
    *more: Schema,
) -> Schema:
    """Return the schema of a section whose name selects its keys.

    Args:
        table: the kinds of settings of each name.
        ref: the definition of each kind.
        default: the name if none is given; empty if it must be.
        others: what else a name may be.
        more: further cases.
    """
    names = {"anyOf": [{"enum": [*table]}, *others]}
    by_kinds: dict[Kinds, list[str]] = {}
    for name, kinds in table.items():
        by_kinds.setdefault(kinds, []).append(name)
    cases = []
    for kinds, own in by_kinds.items():
        fits = ref[kinds[0]] if len(kinds) == 1 else {"anyOf": [ref[kind] for kind in kinds]}
        chosen = _name({"enum": own})
        if default in own:
            chosen = {"anyOf": [chosen, {"not": _any_of("name", *LOCATIONS)}]}
        cases.append({"if": chosen, "then": fits})
    must = {} if default else {"required": ["name"]}
    section = {"type": "object", "properties": {"name": names}, **must, "allOf": [*cases, *more]}
    return {"if": {"type": "string"}, "then": names, "else": section}


def _untitled(part: Any) -> Any:
    """Return a schema without the titles that Pydantic makes of names."""
    if isinstance(part, dict):
        return {
            k: _untitled(v) for k, v in part.items() if not (k == "title" and isinstance(v, str))
        }
    return [_untitled(each) for each in part] if isinstance(part, list) else part

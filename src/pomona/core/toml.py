"""Settings as they stand in a TOML file: a tree of plain values, read, and made into a record with good messages."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from pomona.core.bounds import plain, shallow
from pomona.core.errors import ConfigError, near
from pomona.core.files import text
from pomona.core.settings import Settings

Tree = dict[str, Any]
Choices = Mapping[str, Mapping[str, type[Settings]]]  # section -> name -> the settings that it chooses
S = TypeVar("S", bound=Settings)

SECTIONS = ("method", "data", "partition", "model")


def read_file(path: Path) -> Tree:
    """A TOML file's tree, its keys in snake case. Raises as ``read_tree``."""
    tree: Tree = _snake(read_tree(path))
    return tree


def read_tree(path: Path) -> Tree:
    """A TOML file's tree as it is written. Raises ConfigError naming the file and the line."""
    try:
        return read_text(text(path))
    except FileNotFoundError:
        raise ConfigError(f"no file {path}; give a TOML file, or key=value") from None
    except OSError as fault:
        raise ConfigError(
            f"cannot read {path} ({fault.strerror}); give a TOML file that this account may read"
        ) from None
    except (ValueError, ConfigError) as fault:
        raise ConfigError(f"{path}: {fault}") from None


def read_text(written: str) -> Tree:
    """The tree of a TOML text. Raises ValueError if it is none, or ConfigError if it is nested too deep."""
    try:
        tree = tomllib.loads(written)
    except RecursionError:
        raise _deep() from None
    require_shallow(tree)
    return tree


def require_shallow(tree: Mapping[str, Any]) -> None:
    """Raise ConfigError for a tree so deep that walking it could end the process."""
    if not shallow(tree):
        raise _deep()


def _deep() -> ConfigError:
    return ConfigError("the settings are nested too deep; a section has keys, and a key a value or a list")


def _snake(value: Any) -> Any:
    """Keys as Flower's users also type them: kebab-case means snake_case."""
    if isinstance(value, dict):
        return {k.replace("-", "_"): _snake(v) for k, v in value.items()}
    return value


def flat(tree: Mapping[str, Any], prefix: str = "") -> Tree:
    """The leaves of a tree by dotted key."""
    leaves: Tree = {}
    for key, value in tree.items():
        leaves |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return leaves


def leaves(value: object) -> object:
    """A section by dotted key, and any other value as it is: for a validator before the type's own."""
    return flat(value) if isinstance(value, dict) else value


def named(layer: Mapping[str, Any]) -> Tree:
    """A layer in which a section given by its name alone, ``data = "mnist"``, is written out."""
    return {k: {"name": v} if k in SECTIONS and isinstance(v, str) else v for k, v in layer.items()}


def validated(kind: type[S], tree: Tree, choices: Choices | None = None) -> S:
    """The settings a tree says. Raises ConfigError naming every bad key or value, with near names of unknown keys."""
    try:
        return kind.model_validate(tree)
    except ValidationError as fault:
        raise explained(fault, tree, kind, choices or {}) from None


def explained(fault: ValidationError, tree: Tree, kind: type[Settings], choices: Choices) -> ConfigError:
    """Faults of a settings tree, in one line that names every key."""
    known = _described(tree, kind, choices)
    # A default that follows from a key that is itself bad is nothing to tell of.
    errors = [dict(e) for e in fault.errors() if e["type"] != "default_factory_not_called"]
    lines = [_explain(e, known, choices) for e in _one_form(errors, known)]
    return ConfigError("; ".join(lines))


def _one_form(errors: Sequence[Tree], known: Mapping[str, str]) -> Iterator[Tree]:
    """Faults, those of a value that may have several forms in the form that was meant.

    Pydantic tries each form and puts its name into the place, after the key. A fault within a value tells which one was
    meant; where there is none, the key's description lists the forms.
    """
    for key, group in groupby(errors, lambda e: _key(e["loc"], known)):
        tried, depth = list(group), len(key) + 1
        if not any("[" in str(part) for e in tried for part in e["loc"][depth - 1 : depth]):
            yield from tried
        elif within := [e for e in tried if len(e["loc"]) > depth]:
            yield from ({**e, "loc": (*key, *e["loc"][depth:])} for e in within)
        else:
            yield {**tried[0], "loc": key, "type": "form", "msg": f"fits none of its forms: {known['.'.join(key)]}"}


def _key(place: Sequence[str | int], known: Mapping[str, str]) -> tuple[str, ...]:
    """The settings key in which a place lies; empty where it lies in none."""
    path = tuple(map(str, place))
    return next((path[:n] for n in range(1, len(path) + 1) if ".".join(path[:n]) in known), ())


def _explain(error: Tree, known: Mapping[str, str], choices: Choices) -> str:
    # A discriminated union puts the chosen name into the path; users know the section only.
    path = [str(p) for i, p in enumerate(error["loc"]) if not (i == 1 and p in choices.get(error["loc"][0], ()))]
    key = ".".join(path)
    match error["type"]:
        case "extra_forbidden":
            return f"unknown key {key!r}; {_nearest(key, known)}"
        case "missing":
            return f"{key} must be set"
        case "union_tag_not_found":
            return f"{key}.name must be set; known: {', '.join(choices.get(key, {}))}"
        case "union_tag_invalid":
            name = plain(error["ctx"]["tag"], 80)
            return f"unknown {key} {name!r}; {near(name, choices.get(key, {}))}"
        case "model_type" | "model_attributes_type":
            return f"{key} = {shown(error['input'])}: give a table of settings{' or a name' * (key in SECTIONS)}"
        case _:
            why = error["msg"].removeprefix("Value error, ")
            return f"{key} = {shown(error['input'])}: {why[0].lower()}{why[1:]}" if key else why


def shown(value: object) -> str:
    """A value as its writer knows it, in one short line."""
    try:
        return plain(repr(value), 80)
    except ValueError:  # Python writes no integers of more than 4,300 digits
        return "a number of thousands of digits"


def _nearest(key: str, known: Mapping[str, str]) -> str:
    """Near names of an unknown key: a longer one in its own section, the same in another, those described so, like it
    in its own, or all there.

    Sections are not compared: every key of a section shares its name, and would be near for that alone.
    """
    key = ".".join(part for part in key.split(".") if not part.isdecimal())  # places in a list
    section, dot, last = key.rpartition(".")
    words = last.replace("_", " ")
    own = {k.removeprefix(f"{section}.") for k in known if k.startswith(f"{section}.")} if dot else _tops(known)
    longer = [f"{section}{dot}{name}" for name in sorted(own) if last in name.split("_")]  # epochs is local_epochs
    here = [k for k in known if k.rpartition(".")[2] == last]
    here = here or [k for k, what in known.items() if " " in words and what.lower().startswith(words)]
    if here or longer:
        return f"did you mean {' or '.join([*longer, *sorted(here)])}?"
    close = get_close_matches(last, sorted(own), n=3, cutoff=0.7)  # pretrained is not train
    if close:
        return f"did you mean {' or '.join(section + dot + name for name in close)}?"
    return f"{section or 'the top level'} has {', '.join(sorted(own)) or 'no such key'}"


def _tops(known: Iterable[str]) -> set[str]:
    """The keys and the sections of the top level."""
    return {k.partition(".")[0] for k in known}


def keys(tree: Tree, kind: type[Settings], choices: Choices) -> list[str]:
    """All dotted keys that settings with this method and partition know."""
    return sorted(_described(tree, kind, choices))


def _described(tree: Tree, kind: type[Settings], choices: Choices) -> dict[str, str]:
    """Description of each dotted key, from its settings record."""
    described: dict[str, str] = {}
    for attribute, field in kind.model_fields.items():
        name = field.alias or attribute
        part = tree.get(name)
        if name in choices:
            chosen = str(part.get("name")) if isinstance(part, dict) else ""
            kinds = [choices[name][chosen]] if chosen in choices[name] else list(choices[name].values())
        else:
            kinds = [t for t in (field.annotation, *get_args(field.annotation)) if _is_section(t)]
        described |= {k: what for s in kinds for k, what in _fields(name, s).items()} or {name: field.description or ""}
    return described


def _fields(section: str, kind: type[Settings]) -> dict[str, str]:
    """Description of each dotted key of a section, and of the sections in it that may be left out."""
    described: dict[str, str] = {}
    for name, field in kind.model_fields.items():
        key, (inner, *others) = f"{section}.{field.alias or name}", (*get_args(field.annotation), None)
        described[key] = field.description or ""
        described |= _fields(key, inner) if _is_section(inner) and others[:1] == [NoneType] else {}
    return described


def _is_section(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Settings)

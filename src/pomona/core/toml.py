"""TOML settings: parsing into a tree of plain values, and validation with helpful messages."""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from pomona.core.bounds import plain, shallow
from pomona.core.errors import MAX_LISTED, ConfigError, listed, suggestion
from pomona.core.files import text
from pomona.core.settings import Settings

Tree = dict[str, Any]
# section -> name -> the settings class it selects
Choices = Mapping[str, Mapping[str, type[Settings]]]
S = TypeVar("S", bound=Settings)

LISTS = {"method": "pomona methods", "data": "pomona data list", "model": "pomona data list"}
"""The command that lists the names of a section."""
SECTIONS = ("method", "data", "partition", "model", "optimizer")
TYPE_NAMES = {"int": "a whole number", "float": "a number", "bool": "true or false"}
TYPE_NAMES |= {"string": "text", "path": "a path, as text", "dict": "a table, {KEY = VALUE}"}
TYPE_NAMES |= {"model": "a section of keys", "finite": "a finite number"}
"""What a value must be, by the first word of pydantic's type of error."""
UNION = re.compile(r"\[|^(constrained-)?(str|int|float)$")  # pydantic's names of a value's forms
OWN_CLASS = " (one of your own: module:Class)"


def read_file(
    path: Path, remedy: str = "give a TOML file, or key=value, such as data=digits"
) -> Tree:
    """Read a TOML file's tree, with keys as written: names of columns and views are keys too;
    ``remedy``: for a file that is missing.

    Raises ConfigError with the file and the line.
    """
    try:
        return read_text(text(path))
    except FileNotFoundError:
        raise ConfigError(f"no file {path}; {remedy}") from None
    except OSError as fault:
        raise ConfigError(
            f"cannot read {path} ({fault.strerror}); give a TOML file that this account may read"
        ) from None
    except (ValueError, ConfigError) as fault:
        raise ConfigError(f"{path}: {fault}") from None


@contextmanager
def named_file(path: Path) -> Iterator[None]:
    """Name the file in the block's ConfigErrors; ``read_file`` does so itself."""
    try:
        yield
    except ConfigError as fault:
        raise ConfigError(f"{path}: {fault}") from None


def read_text(written: str) -> Tree:
    """Parse a TOML text.

    Raises ValueError if it is not TOML, and ConfigError if it is nested too deeply.
    """
    try:
        tree = tomllib.loads(written)
    except RecursionError:
        raise _deep() from None
    except tomllib.TOMLDecodeError as fault:
        raise ValueError(f"not valid TOML: {fault}") from None
    require_shallow(tree)
    return tree


def require_shallow(tree: Mapping[str, Any]) -> None:
    """Raise ConfigError for a tree so deep that recursion could crash the process."""
    if not shallow(tree):
        raise _deep()


def _deep() -> ConfigError:
    return ConfigError(
        "the settings are nested too deeply; a section has keys, and a key a value or a list"
    )


def flat(tree: Mapping[str, Any], prefix: str = "") -> Tree:
    """Return the leaves of a tree by dotted key."""
    leaves: Tree = {}
    for key, value in tree.items():
        leaves |= (
            flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
        )
    return leaves


def branch(key: str, value: Any) -> Tree:
    """Return the tree of one dotted key."""
    for component in reversed(key.split(".")):
        value = {component: value}
    return dict(value)


def leaves(value: object) -> object:
    """Return a section by dotted key, and any other value unchanged; for validators that run before
    the type's own.
    """
    return flat(value) if isinstance(value, dict) else value


def is_number(value: object) -> bool:
    """Return whether a setting's value is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def expand_names(layer: Mapping[str, Any]) -> Tree:
    """Expand sections that are given by name only, such as ``data = "mnist"``."""
    return {k: {"name": v} if k in SECTIONS and isinstance(v, str) else v for k, v in layer.items()}


def validated(settings_class: type[S], tree: Tree, choices: Choices | None = None) -> S:
    """Validate a tree as settings.

    Raises ConfigError for every bad key or value, with suggestions for unknown keys.
    """
    try:
        return settings_class.model_validate(tree)
    except ValidationError as fault:
        raise explained(fault, tree, settings_class, choices or {}) from None


def explained(
    fault: ValidationError, tree: Tree, settings_class: type[Settings], choices: Choices
) -> ConfigError:
    """Turn a settings tree's validation errors into one line that names every key."""
    descriptions = _described(tree, settings_class, choices)
    # An error in a default that is derived from an invalid key is not reported.
    errors = [dict(e) for e in fault.errors() if e["type"] != "default_factory_not_called"]
    lines = [_explain(e, descriptions, choices) for e in _intended_form(errors, descriptions)]
    return ConfigError("; ".join(dict.fromkeys(lines)))


def _intended_form(errors: Sequence[Tree], descriptions: Mapping[str, str]) -> Iterator[Tree]:
    """Yield the errors; for a value with several possible forms, only those of the intended form.

    Pydantic tries every form and adds its name to the location, after the key. An error inside a
    form identifies the intended one; without one, the key's description lists the forms.
    """
    for key, group in groupby(errors, lambda e: _key(e["loc"], descriptions)):
        attempts, depth = list(group), len(key) + 1
        candidates = [
            e for e in attempts if e["type"] != "extra_forbidden" or len(e["loc"]) > depth
        ]
        if not any(UNION.search(str(c)) for e in candidates for c in e["loc"][depth - 1 : depth]):
            yield from attempts  # an unknown key, too, whose name may have a bracket
        elif within := [e for e in attempts if len(e["loc"]) > depth]:
            yield from ({**e, "loc": (*key, *e["loc"][depth:])} for e in within)
        else:
            text = f"{_one_of(attempts)} ({descriptions['.'.join(key)]})"
            yield {**attempts[0], "loc": key, "type": "form", "msg": text}


def _key(location: Sequence[str | int], descriptions: Mapping[str, str]) -> tuple[str, ...]:
    """Return the settings key that contains a location; empty if there is none."""
    path = tuple(map(str, location))
    return next(
        (path[:n] for n in range(1, len(path) + 1) if ".".join(path[:n]) in descriptions), ()
    )


def _explain(error: Tree, descriptions: Mapping[str, str], choices: Choices) -> str:
    key = ".".join(map(str, error["loc"]))
    match error["type"]:
        case "extra_forbidden":
            return f"unknown key {key!r}; {_nearest(key, descriptions, choices)}"
        case "missing":
            return f"{key} must be set"
        case "misplaced":
            return f"{key}: {error['msg']}"
        case "union_tag_not_found":
            return (
                f"{key}.name must be set; known: {listed(sorted(choices.get(key, {})), MAX_LISTED)}"
            )
        case "union_tag_invalid":
            return _unknown_name(key, error["ctx"])
        case "model_type" | "model_attributes_type":
            key = key.partition(".function-")[0]
            return f"{key} = {short_repr(error['input'])}: {_section(key, descriptions)}"
        case _:
            message = value_remedy(error)
            if key:
                return f"{key} = {short_repr(error['input'])}: {message[0].lower()}{message[1:]}"
            return message


def value_remedy(error: Tree) -> str:
    """Return what a value must be, of one of pydantic's errors."""
    message = _one_of([error]) or str(error["msg"]).removeprefix("Value error, ")
    return message.replace("greater than or equal to", "at least").replace("Input should", "must")


def _section(key: str, descriptions: Mapping[str, str]) -> str:
    """Return what to write in place of a value that is not a section."""
    if key in SECTIONS:
        return "give a name, as text" + OWN_CLASS * (key in ("method", "model"))
    keys_inside = listed([k for k in descriptions if k.startswith(f"{key}.")], 3)
    remedy = f"set its keys, such as {keys_inside}" if keys_inside else "give {KEY = VALUE}"
    return f"this is a section, not a single value; {remedy}"


def _one_of(errors: Sequence[Tree]) -> str:
    """Return which types a value may have; empty if its type is not the mistake."""
    types = dict.fromkeys(name for error in errors if (name := _type_name(error)))
    return f"give {', or '.join(types)}" if types else ""


def _type_name(error: Tree) -> str:
    base, _, mistake = error["type"].partition("_")
    match base, mistake:
        case "literal", _:
            return str(error["msg"]).removeprefix("Input should be ")
        case "tuple", _:
            return f"a list, [{short_repr(error['input'])}]".replace("'", '"')
        case "too", "short":
            return f"a list of {' '.join(re.findall(r'at least [0-9]+', error['msg']))}"
        case _, "type" | "parsing" | "from_float" | "number":
            return TYPE_NAMES.get(base, "")
    return ""


def _unknown_name(key: str, context: Mapping[str, str]) -> str:
    name = plain(context["tag"], 80)
    own_hint = OWN_CLASS * (key == "method")
    hint = suggestion(name, context["expected_tags"].replace("'", "").split(", "))
    listing = f"; all: {LISTS[key]}" if key in LISTS and hint.endswith(" more") else ""
    return f"unknown {key} {name!r}; {hint}{own_hint}{listing}"


def short_repr(value: object) -> str:
    """Format a value for a message, in one short line."""
    try:
        return plain(repr(value), 80)
    except ValueError:  # Python does not print integers of more than 4,300 digits
        return "a number of thousands of digits"


def _nearest(key: str, descriptions: Mapping[str, str], choices: Choices) -> str:
    """Return the best suggestions for an unknown key.

    In order: the names of its section that have the key, a longer key in its section, the same key
    in another section, keys with a matching description, similar keys in its section, and all keys
    there. Section names are not compared, since all keys of a section share one.
    """
    # list indices
    key = ".".join(component for component in key.split(".") if not component.isdecimal())
    section, dot, last = key.rpartition(".")
    names = [
        name
        for name, settings_class in choices.get(section, {}).items()
        if key in _fields(section, settings_class)
    ]
    if names:
        return f"{last} is a setting of {section} = {listed(sorted(names))}"
    section_keys = sorted(_inside(f"{section}{dot}", descriptions))
    # epochs -> local_epochs
    suggestions = [f"{section}{dot}{name}" for name in section_keys if last in name.split("_")]
    suggestions += _elsewhere(last, descriptions)
    if not suggestions:
        close = get_close_matches(last, section_keys, n=3, cutoff=0.7)  # not pretrained -> train
        suggestions = [f"{section}{dot}{name}" for name in close]
    if suggestions:
        return f"did you mean {' or '.join(suggestions)}?"
    return f"{section or 'the top level'} has {', '.join(section_keys) or 'no such key'}"


def _inside(prefix: str, descriptions: Iterable[str]) -> set[str]:
    """Return the keys after ``SECTION.``, or the top-level keys and sections if it is empty."""
    if prefix:
        return {k.removeprefix(prefix) for k in descriptions if k.startswith(prefix)}
    return {k.partition(".")[0] for k in descriptions}


def _elsewhere(name: str, descriptions: Mapping[str, str]) -> list[str]:
    """Return the keys of this name in any section; if there are none, those whose description
    begins with its words.
    """
    namesakes = [k for k in descriptions if k.rpartition(".")[2] == name]
    phrase = name.replace("_", " ")
    return sorted(
        namesakes
        or [
            k
            for k, description in descriptions.items()
            if " " in phrase and description.lower().startswith(phrase)
        ]
    )


def keys(tree: Tree, settings_class: type[Settings], choices: Choices) -> list[str]:
    """Return all dotted keys of settings with this method and partition."""
    return sorted(_described(tree, settings_class, choices))


def _described(tree: Tree, settings_class: type[Settings], choices: Choices) -> dict[str, str]:
    """Return the description of each dotted key, from its settings record."""
    described: dict[str, str] = {}
    for attribute, field in settings_class.model_fields.items():
        name = field.alias or attribute
        if name in choices:
            classes = _selected(tree.get(name), choices[name])
        else:
            classes = [t for t in (field.annotation, *get_args(field.annotation)) if _is_section(t)]
        described |= {
            k: description for s in classes for k, description in _fields(name, s).items()
        } or {name: field.description or ""}
    return described


def _selected(section: Any, classes: Mapping[str, type[Settings]]) -> list[type[Settings]]:
    """Return the class that a section names; all of them if it names none."""
    name = str(section.get("name")) if isinstance(section, dict) else ""
    return [classes[name]] if name in classes else list(classes.values())


def _fields(section: str, settings_class: type[Settings]) -> dict[str, str]:
    """Return the description of each dotted key of a section, including optional subsections."""
    described: dict[str, str] = {}
    for name, field in settings_class.model_fields.items():
        key = f"{section}.{field.alias or name}"
        inner, *alternatives = *get_args(field.annotation), None
        described[key] = field.description or ""
        described |= (
            _fields(key, inner) if _is_section(inner) and alternatives[:1] == [NoneType] else {}
        )
    return described


def _is_section(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Settings)

"""The reference of all settings, made from the settings records themselves: key, kind of value, default, meaning."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pomona.config import Config
from pomona.core.errors import ConfigError, near
from pomona.core.membership import Membership
from pomona.core.optimizer import Optimizer
from pomona.core.settings import Settings
from pomona.core.stop import Stop
from pomona.data.settings import ClientFiles, DataSettings
from pomona.deploy.agreement import Federation, FoundingMember
from pomona.deploy.silo.settings import SiloFile
from pomona.deploy.silo.studies.consent_rules import ConsentPolicy
from pomona.deploy.study import Study
from pomona.deploy.study_kinds import EvaluateTerms, SearchTerms
from pomona.deploy.task_settings import TaskSettings
from pomona.methods import METHODS
from pomona.models import ModelSettings
from pomona.models.settings import PatchSettings
from pomona.partition import RECIPES
from pomona.privacy.settings import Privacy
from pomona.survey.settings import Noise, SurveySettings

SECTIONS: Mapping[str, type[Settings]] = {
    "": Config,
    "data": DataSettings,
    "data.clients": ClientFiles,
    "model": ModelSettings,
    "model.patch": PatchSettings,
    "optimizer": Optimizer,
    "stop": Stop,
    "privacy": Privacy,
    "membership": Membership,
    **{f"partition {name}": kind for name, kind in RECIPES.items()},
    **{f"method {name}": kind for name, kind in METHODS.items()},
}
FILES: Mapping[str, type[Settings]] = {  # of a federation between organisations
    "federation.toml": Federation,
    "federation.toml, each [[silo]]": FoundingMember,
    "STUDY.toml": Study,
    "[task] of both": TaskSettings,
    "[evaluate] of STUDY.toml": EvaluateTerms,
    "[search] of STUDY.toml": SearchTerms,
    "[survey] of STUDY.toml": SurveySettings,
    "[survey.noise] of STUDY.toml": Noise,
    "silo.toml": SiloFile,
    "policy.toml": ConsentPolicy,
}


@dataclass(frozen=True)
class Setting:
    """One key.

    Attributes:
        key: as users write it, with its section.
        owner: the partition, the method or the file that has the key; empty for keys that every run has.
        kind: the values that it takes, in words.
        default: as it stands in a TOML file; "not set", or "must be set".
        meaning: one line.
    """

    key: str
    owner: str
    kind: str
    default: str
    meaning: str


def settings() -> list[Setting]:
    """Every setting of a run, by section."""
    return [setting for title, record in SECTIONS.items() for setting in _of(title, record)]


def in_files() -> list[Setting]:
    """Every setting of a federation's files, by file."""
    return [replace(setting, owner=title) for title, record in FILES.items() for setting in _of("", record)]


def find(word: str) -> list[Setting]:
    """The settings that a key, a section, a method, a partition or a file names. Raises ConfigError for other words."""
    everything, wanted = [*settings(), *in_files()], word.replace("-", "_")
    found = [
        s
        for s in everything
        if wanted in (s.key, s.key.rpartition(".")[2], s.key.partition(".")[0])
        or word in (s.owner, s.owner.partition(" ")[2])
    ]
    if not found:
        names = {s.key for s in everything} | {s.key.rpartition(".")[2] for s in everything} | {*METHODS, *RECIPES}
        raise ConfigError(f"no setting {word!r}; {near(word, names)}")
    return found


def page() -> str:
    """The reference as Markdown."""
    parts = [
        "# Settings",
        "Made by `pomona settings --out docs/settings.md`. A run takes them from TOML files and from the command line "
        "as `key=value`; later ones win. `pomona run METHOD ... --dry-run` prints all that are in force, and "
        "`pomona settings KEY` explains one.",
    ]
    parts += [_table(_heading(title), found) for title, record in SECTIONS.items() if (found := [*_of(title, record)])]
    plain = [name for name, kind in METHODS.items() if set(kind.model_fields) == {"name"}]
    parts.append(f"Methods without settings of their own: {', '.join(plain)}.")
    parts.append(
        "The files of a federation between organisations follow. Section `[run]` of `federation.toml` and `STUDY.toml` "
        "has the keys above, without those that every silo sets for itself; `[data]` and `[views.NAME]` of `silo.toml` "
        "have those of section `data`."
    )
    parts += [_table(title, [*_of("", record)]) for title, record in FILES.items()]
    return "\n\n".join(parts) + "\n"


def _table(heading: str, found: Iterable[Setting]) -> str:
    rows = [f"| `{s.key}` | {s.kind} | {_code(s.default)} | {s.meaning} |" for s in found]
    return "\n".join([f"## {heading}", "", "| key | values | default | meaning |", "| --- | --- | --- | --- |", *rows])


def _heading(title: str) -> str:
    kind, _, name = title.partition(" ")
    if name:
        return f"{kind.capitalize()} {name}"
    return f"Section `{title}`" if title else "Every run"


def _code(default: str) -> str:
    return default if default in ("not set", "must be set") else f"`{default}`"


def _of(title: str, record: type[Settings]) -> Iterator[Setting]:
    """The settings of a record, but for the sections in it and the name that chooses it."""
    section, _, name = title.partition(" ")
    schema = record.model_json_schema()
    for key, what in schema["properties"].items():
        chooser = key == "name" and bool(name)
        if chooser or key in SECTIONS or key in ("method", "partition"):
            continue
        yield Setting(
            key=f"{section}.{key}" if section else key,
            owner=title if name else "",
            kind=_kind(what, schema.get("$defs", {})),
            default="must be set" if key in schema.get("required", ()) else _shown(what.get("default")),
            meaning=_sentence(what.get("description", "")),
        )


def _kind(what: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """The values that a JSON schema allows, in words."""
    if "$ref" in what:
        return _kind(known[what["$ref"].rpartition("/")[2]], known)
    if "anyOf" in what:
        kinds = [_kind(part, known) for part in what["anyOf"] if part.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "const" in what or "enum" in what:
        return ", ".join(map(str, what.get("enum", [what.get("const")])))
    match what.get("type"):
        case "array":
            return f"list: {_kind(what.get('items') or _first(what), known)}"
        case "object":
            value = what.get("additionalProperties")
            return f"table of {_kind(value, known)}" if isinstance(value, dict) else "table"
        case "boolean":
            return "true, false"
        case "integer":
            return "whole number" + _range(what)
        case "number":
            return "number" + _range(what)
        case "string":
            return "path" if what.get("format") == "path" else "text"
    return "any"


def _first(what: Mapping[str, Any]) -> Mapping[str, Any]:
    """The items of a tuple."""
    items: list[Mapping[str, Any]] = what.get("prefixItems", [])
    return items[0] if items else {}


def _range(what: Mapping[str, Any]) -> str:
    words = (
        ("minimum", "at least"),
        ("exclusiveMinimum", "above"),
        ("maximum", "at most"),
        ("exclusiveMaximum", "below"),
    )
    bounds = [f"{word} {what[key]:g}" for key, word in words if key in what]
    return f", {', '.join(bounds)}" if bounds else ""


def _shown(default: Any) -> str:
    if default is None:
        return "not set"
    return str(default).lower() if isinstance(default, bool) else str(default)


def _sentence(text: str) -> str:
    return text.rstrip(".").replace("|", "\\|")

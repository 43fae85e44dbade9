"""``pomona settings``: the reference of all settings, from the code."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from pomona.cli.output import Json, emit, out
from pomona.config import Config
from pomona.core.attack import Attack
from pomona.core.errors import ConfigError, near
from pomona.core.membership import Membership
from pomona.core.settings import Settings
from pomona.core.training_settings import Adam, Optimizer, SecureAggregation, Stop
from pomona.data.axes import BundledImages
from pomona.data.section import added_keys, groups, names_with
from pomona.data.settings import ClientFiles, DataSettings, Images
from pomona.methods import METHODS
from pomona.models import ModelSettings
from pomona.models.settings import PatchSettings
from pomona.partition import RECIPES
from pomona.privacy.settings import Privacy


@dataclass(frozen=True)
class Part:
    """Settings that are listed below one heading.

    Attributes:
        section: of the file; empty for the top level.
        record: has the settings.
        owner: who has them, such as a method or some kinds of data; empty if every run has them.
        heading: of the page.
        left_out: keys of the record that are listed elsewhere.
    """

    section: str
    record: type[Settings]
    owner: str = ""
    heading: str = ""
    left_out: Collection[str] = ()

    @property
    def title(self) -> str:
        """The heading, by default the section or the owner."""
        return self.heading or (
            self.owner.capitalize() if self.owner else f"Section `{self.section}`"
        )


def _data() -> Iterator[Part]:
    yield Part(
        "data",
        BundledImages,
        left_out=Images.model_fields.keys() - DataSettings.model_fields.keys(),
    )
    for group in groups():
        left_out = DataSettings.model_fields.keys() | group.model_fields.keys() - added_keys(group)
        names = ", ".join(names_with(group))
        title = str(group.__doc__).partition(".\n")[0].rstrip(".")
        title = title if title[1:2].isupper() else title[0].lower() + title[1:]
        yield Part("data", group, f"data {names}", f"Section `data`, {title}: {names}", left_out)


PARTS = (
    Part("", Config, heading="Every run"),
    *_data(),
    Part("data.clients", ClientFiles),
    Part("model", ModelSettings),
    Part("model.patch", PatchSettings),
    Part("optimizer", Optimizer),
    Part(
        "optimizer",
        Adam,
        "optimizer adam, adamw",
        "Section `optimizer`: adam, adamw",
        Optimizer.model_fields.keys(),
    ),
    Part("stop", Stop),
    Part("privacy", Privacy),
    Part("membership", Membership),
    Part("attack", Attack),
    Part("secure_aggregation", SecureAggregation),
    *(
        Part("partition", kind, f"partition {name}", left_out={"name"})
        for name, kind in RECIPES.items()
    ),
    *(Part("method", kind, f"method {name}", left_out={"name"}) for name, kind in METHODS.items()),
)
SECTIONS = {part.section for part in PARTS}

BEYOND = 1e6  # bounds from here on only guard the arithmetic, and are not shown


@dataclass(frozen=True)
class Setting:
    """One key.

    Attributes:
        key: as users write it, with its section.
        owner: the partition, method or file with the key; empty for keys of every run.
        kind: the allowed values, in words.
        default: as in a TOML file; "not set", or "must be set".
        meaning: one line.
    """

    key: str
    owner: str
    kind: str
    default: str
    meaning: str


def every() -> list[Setting]:
    """Return every setting of a run, by section."""
    return [setting for part in PARTS for setting in of_part(part)]


def find(word: str, among: Sequence[Setting]) -> list[Setting]:
    """Return the settings of a key, section, method, partition or file.

    Raises ConfigError for other words.
    """
    wanted = word.replace("-", "_")
    found = [
        s
        for s in among
        if wanted in (s.key, s.key.rpartition(".")[2], s.key.partition(".")[0])
        or word in (s.owner, *owners(s))
    ]
    if not found:
        names = {
            name for s in among for name in (s.key, s.key.rpartition(".")[2], *owners(s)) if name
        }
        raise ConfigError(f"no setting {word!r}; {near(word, names)}")
    return found


def owners(of: Setting | Part) -> list[str]:
    """Return the names of those that have a setting or a part."""
    return of.owner.partition(" ")[2].split(", ")


def of_part(part: Part) -> Iterator[Setting]:
    """Yield the settings of a part, except sections."""
    schema = part.record.model_json_schema()
    for key, what in schema["properties"].items():
        if key in part.left_out or key in SECTIONS or key in ("method", "partition"):
            continue
        yield Setting(
            key=f"{part.section}.{key}" if part.section else key,
            owner=part.owner,
            kind=_kind(what, schema.get("$defs", {})),
            default="must be set"
            if key in schema.get("required", ())
            else _shown(what.get("default")),
            meaning=_sentence(what.get("description", "")),
        )


BOUNDS = {
    "minimum": "from",
    "exclusiveMinimum": "above",
    "maximum": "up to",
    "exclusiveMaximum": "below",
}
PLAIN = {"boolean": "true, false", "integer": "whole number", "number": "number"}


def _kind(what: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """Describe the values that a JSON schema allows."""
    if "$ref" in what:
        return _kind(known[what["$ref"].rpartition("/")[2]], known)
    if "anyOf" in what:
        kinds = [_kind(part, known) for part in what["anyOf"] if part.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if allowed := what.get("enum", [what["const"]] if "const" in what else None):
        return ", ".join(map(str, allowed))
    return _of_type(what, known)


def _of_type(what: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    match what.get("type"):
        case "array":
            return f"list: {_kind(what.get('items') or _first(what), known)}"
        case "object":
            return _table(what.get("additionalProperties"), known)
        case "string":
            return "path" if what.get("format") == "path" else "text"
        case plain:
            return PLAIN.get(str(plain), "any") + _range(what)


def _table(values: Any, known: Mapping[str, Any]) -> str:
    return f"table of {_kind(values, known)}" if isinstance(values, dict) else "table"


def _first(what: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the items of a tuple."""
    items: list[Mapping[str, Any]] = what.get("prefixItems", [])
    return items[0] if items else {}


def _range(what: Mapping[str, Any]) -> str:
    bounds = {key: f"{what[key]:g}" for key in BOUNDS if abs(what.get(key, BEYOND)) < BEYOND}
    if bounds.keys() == {"minimum", "maximum"}:
        return f", {bounds['minimum']} to {bounds['maximum']}"
    return "".join(f", {BOUNDS[key]} {value}" for key, value in bounds.items())


def _shown(default: Any) -> str:
    if default is None:
        return "not set"
    return str(default).lower() if isinstance(default, bool) else str(default)


def _sentence(text: str) -> str:
    return text.rstrip(".").replace("|", "\\|")


def settings(
    key: str | None = None,
    *,
    schema: Annotated[
        bool, Parameter(negative="", help="print the JSON Schema of a run's settings")
    ] = False,
    json: Json = False,
) -> None:
    """Explain the settings of a run.

    Parameters
    ----------
    key
        a key, a section, a method or a partition; all settings if not given
    """
    if schema:
        from pomona.cli.settings_schema import schema as made  # late: only this needs it

        emit(made())
        return
    show(find(key, every()) if key else every(), json)


def show(found: Sequence[Setting], json: bool) -> None:
    """Print settings, each with its values, its default and its meaning."""
    if json:
        emit([asdict(setting) for setting in found])
        return
    for s in found:
        owner = f", {s.owner}" if s.owner else ""
        out.print(f"{s.key}  ({s.kind}; default {s.default}{owner})", markup=False, highlight=False)
        out.print(f"    {s.meaning}", markup=False, highlight=False)


def of_a_run() -> str:
    """Settings shown by ``pomona run --help``: those of every run."""
    common = [s for s in every() if "." not in s.key and not s.owner]
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

"""Layers of settings: files, words of a command and arguments, merged before they are validated."""

from collections.abc import Iterable, Mapping
from typing import Any

from pomona.core.errors import ConfigError
from pomona.core.synonyms import canonical
from pomona.core.toml import Tree, expand_names, read_text, require_shallow
from pomona.core.training_settings import OPTIMIZERS
from pomona.data.section import NAMES
from pomona.methods import METHODS
from pomona.metrics.metric import METRICS
from pomona.models import MODELS, ModelSettings
from pomona.partition import RECIPES

SECTIONS = ("method", "partition", "model")  # those whose keys follow from their name
NETWORK = ("args", "hidden", "width", "depth")  # of model, these alone do
KNOWN_NAMES: dict[str, Iterable[str]] = {
    "method": METHODS,
    "data": NAMES,
    "partition": RECIPES,
    "model": MODELS,
    "optimizer": OPTIMIZERS,
}


def with_sections(layer: Mapping[str, Any]) -> Tree:
    """Expand sections that are given by name only; case and separators of names do not count."""
    tree = expand_names(layer)
    for key, names in KNOWN_NAMES.items():
        section = tree.get(key)
        if isinstance(section, Mapping) and isinstance(section.get("name"), str):
            tree[key] = {**section, "name": canonical(section["name"], names)}
    if isinstance(tree.get("metric"), str):
        tree["metric"] = canonical(tree["metric"], METRICS)
    return tree


def merge(tree: Tree, overrides: Mapping[str, Any]) -> None:
    """Merge one tree over another, in place.

    Naming another method, partition or network drops the previous one's settings.
    """
    for key, value in overrides.items():
        section = tree.get(key)
        if isinstance(value, Mapping) and isinstance(section, dict):
            for setting in _superseded(key, section, value):
                section.pop(setting, None)
            merge(section, value)
        else:
            tree[key] = dict(value) if isinstance(value, Mapping) else value


def _superseded(key: str, section: Tree, value: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the settings that go with the name that a section had, if it is given another."""
    name = section.get("name", ModelSettings().name if key == "model" else None)
    if key not in SECTIONS or name is None or value.get("name", name) == name:
        return ()
    return NETWORK if key == "model" else tuple(section)


def read_overrides(pairs: Iterable[str]) -> Tree:
    """Return the tree of ``key=value`` words; values are TOML if they parse as such, else text.

    Raises ConfigError.
    """
    tree: Tree = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ConfigError(
                f"{pair!r} is neither a TOML file nor key=value; write for example rounds=10 or "
                "method.mu=0.1"
            )
        leaf: Any = _value(text)
        for name in reversed(key.split(".")):
            leaf = {name: leaf}
        require_shallow(leaf)
        merge(tree, expand_names(leaf))
    return tree


def _value(text: str) -> Any:
    try:
        return read_text(f"v = {text}")["v"]
    except ValueError:
        return text

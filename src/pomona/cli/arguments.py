"""Shared by the commands: settings from files, options and ``key=value`` words."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pomona.cli.output import activity
from pomona.core.file_kinds import require_kind
from pomona.core.toml import Tree, read_file

if TYPE_CHECKING:
    from pomona.config import Config


def config_of(
    arguments: Iterable[str], *options: Mapping[str, Any], base: Tree | None = None
) -> "Config":
    """Return the Config of a command line: TOML files, then options, then key=value words.

    ``base``: a tree below all of them.
    """
    pairs = [word for word in arguments if "=" in word and not Path(word).is_file()]
    files = [_settings(Path(argument)) for argument in arguments if argument not in pairs]
    with activity("reading the settings"):
        from pomona.config import read_overrides, resolve  # late: it imports every method

        return resolve(base or {}, *files, *options, read_overrides(pairs))


def _settings(path: Path) -> Tree:
    """Read a run's TOML file as a tree.

    Raises ConfigError for a suite, a study or another file, naming the command to use.
    """
    tree = read_file(path)
    require_kind(path, tree, "run")
    return tree


def option(section: str, key: str, value: Any) -> Tree:
    """Return the tree of one option, empty if it was not given."""
    return {} if value is None else {section: {key: value}}


def scenario_options(data: str | None, folder: Path | None, partition: str | None) -> list[Tree]:
    """Return the trees of the options for data and partition."""
    return [
        option("data", "name", data),
        option("data", "dir", str(folder) if folder else None),
        option("partition", "name", partition),
    ]

"""Types of TOML files by their keys, so that a command can name the one that a file is for."""

from pathlib import Path

from pomona.core.errors import ConfigError
from pomona.core.toml import Tree

USES = {
    "run": "has the settings of one run; start it by: pomona run {path}",
    "suite": "is a suite, a table of runs; run it with: pomona bench {path}",
    "study": "is a study of a federation; simulate it: pomona deploy simulate {path} data=NAME",
    "federation": "is a federation; simulate its study: pomona deploy simulate {path} data=NAME",
    "silo": "has the settings of a silo; in the folder with it: pomona silo check",
}
SUITE_KEYS = {"title", "base", "seeds", "points", "search", "size", "keep_models", "note"}
RUN_KEYS = {"rounds", "clients", "lr", "batch_size", "local_epochs", "data", "partition", "seed"}


def file_kind(tree: Tree) -> str:
    """Return what a file is, a key of ``USES``; empty if its keys do not tell.

    A suite, complete or not, has scenarios, or rows of methods, or several keys that no run has.
    """
    keys = tree.keys()
    matches = {
        "federation": not keys.isdisjoint({"silo", "server"}),
        "study": not keys.isdisjoint({"run", "task", "kind"}),
        "suite": "scenario" in keys or _has_rows(tree) or len(keys & SUITE_KEYS) > 1,
        "silo": {"name", "data"} <= keys and keys.isdisjoint({"method", "rounds"}),
        "run": "method" in keys or not keys.isdisjoint(RUN_KEYS),
    }
    return next((name for name, matched in matches.items() if matched), "")


def _has_rows(tree: Tree) -> bool:
    """Return whether section method has a table for each of several methods."""
    method = tree.get("method")
    if not isinstance(method, dict) or "name" in method or not method:
        return False
    return all(isinstance(row, dict) for row in method.values())


def require_kind(path: Path, tree: Tree, *expected: str) -> None:
    """Raise ConfigError for a file of another kind, with the command that takes it."""
    actual = file_kind(tree)
    if actual and actual not in expected:
        raise ConfigError(f"{path} {USES[actual].format(path=path)}")

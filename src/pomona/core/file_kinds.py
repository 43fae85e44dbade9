"""What a TOML file is for, by its keys: a command given another's file names the right command."""

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
ONLY_IN_SUITES = {"title", "base", "seeds", "points", "search", "size", "keep_models", "note"}
ONLY_IN_RUNS = {
    "rounds",
    "clients",
    "lr",
    "batch_size",
    "local_epochs",
    "data",
    "partition",
    "seed",
}


def file_kind(tree: Tree) -> str:
    """Return what a file is, a key of ``USES``; empty if its keys do not tell.

    A suite, complete or not, has scenarios, or rows of methods, or several keys that no run has.
    """
    method, keys = tree.get("method"), tree.keys()
    rows = method.values() if isinstance(method, dict) and "name" not in method else ()
    named = isinstance(method, str) or (isinstance(method, dict) and "name" in method)
    has = {
        "federation": not keys.isdisjoint({"silo", "server"}),
        "study": not keys.isdisjoint({"run", "task", "kind"}),
        "suite": "scenario" in keys
        or (bool(rows) and all(isinstance(row, dict) for row in rows))
        or len(keys & ONLY_IN_SUITES) > 1,
        "silo": {"name", "data"} <= keys and keys.isdisjoint({"method", "rounds"}),
        "run": named or not keys.isdisjoint(ONLY_IN_RUNS),
    }
    return next((kind for kind, present in has.items() if present), "")


def require_kind(path: Path, tree: Tree, *expected: str) -> None:
    """Raise ConfigError for a file of another kind, with the command that takes it."""
    kind = file_kind(tree)
    if kind and kind not in expected:
        raise ConfigError(f"{path} {USES[kind].format(path=path)}")

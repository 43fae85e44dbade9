"""Suites bundled with the package: tables of papers, and small benches of its own."""

from pathlib import Path

import pomona
from pomona.core.errors import ConfigError, near

PACKAGE = Path(pomona.__file__).parent


def folder() -> Path:
    """Return the folder of the suites: inside an installed package, or in a checkout beside ``src``."""
    inside = PACKAGE / "suites"
    return inside if inside.is_dir() else PACKAGE.parents[1] / "suites"


def suites() -> dict[str, Path]:
    """Return the file of each suite by name, in alphabetical order."""
    return {file.stem: file for file in sorted(folder().glob("*.toml"))}


def suite_file(named: str) -> Path:
    """Return a file's path, or the file of a bundled suite. Raises ConfigError if it is neither."""
    path, known = Path(named), suites()
    if path.suffix == ".toml" or path.exists():
        return path
    if named not in known:
        raise ConfigError(f"no file and no suite {named!r}; {near(named, known)}, or give a suite's TOML file")
    return known[named]

"""The suites that come with the package: tables of papers, and small benches of its own."""

from pathlib import Path

import pomona
from pomona.core.errors import ConfigError, near

PACKAGE = Path(pomona.__file__).parent


def folder() -> Path:
    """Folder of the suites: in an installed package inside it, in a checkout beside ``src``."""
    inside = PACKAGE / "suites"
    return inside if inside.is_dir() else PACKAGE.parents[1] / "suites"


def suites() -> dict[str, Path]:
    """The file of each suite by its name, in the order of the names."""
    return {file.stem: file for file in sorted(folder().glob("*.toml"))}


def suite_file(named: str) -> Path:
    """A file's path, or the file of a suite that comes with the package. Raises ConfigError if it is neither."""
    path, known = Path(named), suites()
    if path.suffix == ".toml" or path.exists():
        return path
    if named not in known:
        raise ConfigError(f"no file and no suite {named!r}; {near(named, known)}, or give a suite's TOML file")
    return known[named]

"""Suites that come with the package, in the folder ``suites`` beside this file."""

from pathlib import Path

from pomona.core.errors import ConfigError, near

FOLDER = Path(__file__).parent / "suites"


def suites() -> dict[str, Path]:
    """Return the file of each suite by name, in alphabetical order."""
    return {file.stem: file for file in sorted(FOLDER.glob("*.toml"))}


def suite_file(named: str) -> Path:
    """Return a file's path, or the file of a bundled suite. Raises ConfigError if it is neither."""
    path, known = Path(named), suites()
    if path.suffix == ".toml" or path.exists():
        return path
    if named not in known:
        raise ConfigError(f"no file and no suite {named!r}; {near(named, known)}, or give a suite's TOML file")
    return known[named]

"""Images and volumes: where their voxels lie, and what their files have in common."""

from importlib import import_module
from pathlib import Path
from typing import Any

from pomona.core.errors import ConfigError, with_extra


def package(name: str, path: Path) -> Any:
    """Import a package for a file. Raises ConfigError if it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(f"{path} needs {name}; {with_extra('images')}") from None

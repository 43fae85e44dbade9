"""Small files of a silo's state: one JSON object each, replaced as a whole."""

import json
from pathlib import Path
from typing import Any

from pomona.bounds import parse
from pomona.errors import StorageError
from pomona.federation.durable import publish


def recall(path: Path) -> dict[str, Any] | None:
    """What a file holds; None where there is none. Raises StorageError for one that is damaged."""

    def damaged(why: str) -> StorageError:
        return StorageError(f"{path} cannot be read ({why}); restore it from a backup")

    try:
        value = parse(path.read_bytes(), damaged)
    except FileNotFoundError:
        return None
    except OSError as fault:
        raise damaged(str(fault.strerror)) from None
    if not isinstance(value, dict):
        raise damaged("it holds no object")
    return value


def remember(path: Path, value: dict[str, Any]) -> None:
    """Write a file durably. Raises OSError."""
    publish(path.parent, [json.dumps(value).encode()], lambda _: path.name, f".{path.stem}")

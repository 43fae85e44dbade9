"""Small files that a server or a silo keeps for itself: a JSON object of bounded fields each, replaced as a whole."""

import json
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from pomona.core.bounds import first, plain
from pomona.core.errors import StorageError
from pomona.core.settings import Settings
from pomona.storage.atomic_io import publish

MOST = 2**26  # bytes of a file

M = TypeVar("M", bound=Settings)


def recall(kind: type[M], path: Path) -> M | None:
    """What a file holds; None where there is none. Raises StorageError for one that holds something else."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST + 1)
        if len(text) > MOST:
            raise _damaged(path, f"it has more than {MOST} bytes")
        return kind.model_validate_json(text)
    except FileNotFoundError:
        return None
    except OSError as fault:
        raise _damaged(path, str(fault.strerror)) from None
    except ValidationError as fault:
        raise _damaged(path, first(fault)) from None


def remember(path: Path, value: Settings) -> None:
    """Write a file durably. Raises OSError."""
    publish(path.parent, [json.dumps(value.model_dump(mode="json")).encode()], lambda _: path.name, f".{path.stem}")


def _damaged(path: Path, why: str) -> StorageError:
    return StorageError(f"{path} cannot be read ({plain(why, 200)}); restore it from a backup")

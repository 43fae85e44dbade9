"""Small JSON files with bounded fields that a server or a silo keeps, replaced as a whole."""

import json
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from pomona.core.bounds import first, plain
from pomona.core.errors import StorageError
from pomona.core.files import content, publish

MAX_BYTES = 2**26  # largest size of a file in bytes

M = TypeVar("M", bound=BaseModel)


def read_json(model: type[M], path: Path, remedy: str = "restore it from a backup") -> M | None:
    """Return a file's content; None if it is missing.

    Raises StorageError for invalid content, and for a link: one to nothing would count as missing.
    """
    try:
        return model.model_validate_json(content(path, MAX_BYTES, follow=False))
    except FileNotFoundError:
        return None
    except OSError as fault:
        raise _damaged(path, remedy, str(fault.strerror)) from None
    except ValidationError as fault:
        raise _damaged(path, remedy, first(fault)) from None


def write_json(path: Path, value: BaseModel) -> None:
    """Write a file durably, readable only by its owner.

    Raises OSError, and StorageError for too much to read back.
    """
    text = json.dumps(value.model_dump(mode="json"), indent=1) + "\n"
    if len(text) > MAX_BYTES:
        raise StorageError(
            f"{path} would have {len(text)} bytes; the limit is {MAX_BYTES}: shorten its content"
        )
    publish(path, [text.encode()], f".{path.stem}", 0o600)


def _damaged(path: Path, remedy: str, reason: str) -> StorageError:
    return StorageError(f"{path} cannot be read ({plain(reason, 200)}); {remedy}")

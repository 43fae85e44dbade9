"""Small JSON files with bounded fields that a server or a silo keeps, replaced as a whole; and
seals, by which a silo recognises what was written on its own machine.

A silo's kit comes from someone else, and everything in its ``state/`` takes effect: noise keys,
ledgers, budgets, decisions. A seal is a keyed hash of the mark of a state, a decision on a study, a
noise key, or a file that says what was spent, asked, summed, disclosed or pinned, which a kit
unpacked over a working silo could replace. The key is the machine's id, which the maker of a kit
does not know. Seals do not travel: a restored backup is sealed on the machine where it is restored.
"""

import hashlib
import hmac
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pomona.core.bounds import Sha256, first, plain
from pomona.core.errors import StorageError
from pomona.core.files import content, publish
from pomona.core.settings import Settings

MAX_BYTES = 2**26  # largest size of a file in bytes
MACHINE = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
UNSEALED_REMEDY = (
    "restore it from an earlier backup (`pomona silo restore` into a new folder): a kit that was "
    "unpacked over this folder may have brought it"
)

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


def seal(purpose: str, text: str = "") -> str:
    """The seal of a text, 64 hex digits; ``purpose`` is its kind.

    Raises StorageError without a machine id.
    """
    return hmac.new(_machine(), f"pomona {purpose}\n{text}".encode(), hashlib.sha256).hexdigest()


def is_sealed(value: object, purpose: str, text: str = "") -> bool:
    """Whether a value is the seal of a text. Raises as ``seal``."""
    return hmac.compare_digest(str(value).encode(), seal(purpose, text).encode())


def _machine() -> bytes:
    for path in MACHINE:
        try:
            machine_id = content(path, 100).strip()
        except OSError:
            continue
        if re.fullmatch(rb"[0-9a-f]{32}", machine_id):
            return machine_id
    raise StorageError(
        f"{MACHINE[0]} is missing: a silo needs it to recognise its own state; in a container, "
        "mount the machine's read-only (as compose.yaml does)"
    )


class SealedFile(Settings):
    """A file of a silo's state: its content, and this machine's seal of it and of its path."""

    content: dict[str, Any]
    seal: Sha256


def write_sealed(path: Path, value: BaseModel) -> None:
    """Write a file of a silo's state, sealed. Raises as ``write_json`` and ``seal``."""
    fields = value.model_dump(mode="json")
    write_json(path, SealedFile(content=fields, seal=seal("file", _sealed_text(path, fields))))


def read_sealed(model: type[M], path: Path) -> M | None:
    """A file's content as ``write_sealed`` has written it; None if it is missing.

    Raises StorageError for a file that cannot be read, or was not written on this machine.
    """
    stored = sealed_file(path)
    try:
        return model.model_validate_json(json.dumps(stored.content)) if stored else None
    except ValidationError as fault:
        raise StorageError(f"{path} cannot be read ({first(fault)}); {UNSEALED_REMEDY}") from None


def sealed_file(path: Path) -> SealedFile | None:
    """A sealed file, None if it is missing. Raises StorageError for any other one."""
    stored = read_json(SealedFile, path, UNSEALED_REMEDY)
    if stored and not is_sealed(stored.seal, "file", _sealed_text(path, stored.content)):
        raise StorageError(
            f"{path} was not written by this silo on this machine; {UNSEALED_REMEDY}"
        )
    return stored


def reseal_files(state: Path) -> None:
    """Seal the files of a restored state as this machine's. Raises StorageError, OSError."""
    for path in state.rglob("*.json"):
        with suppress(StorageError):  # of another form
            if stored := read_json(SealedFile, path):
                text = _sealed_text(path, stored.content)
                write_json(path, stored.model_copy(update={"seal": seal("file", text)}))


def _sealed_text(path: Path, fields: dict[str, Any]) -> str:
    """What is sealed of a file: its path in the kit, and its content."""
    return json.dumps([f"/{path}".rpartition("/state/")[2], fields], sort_keys=True)

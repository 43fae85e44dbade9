"""Who may read the server's status page: a token for each person, of which only the hash is
kept.
"""

import binascii
import hashlib
import hmac
import secrets
from base64 import b64decode
from collections.abc import Iterable
from pathlib import Path

from pydantic import Field

from pomona.core.bounds import Name, Sha256
from pomona.core.errors import ConfigError, suggestion
from pomona.core.files import writing
from pomona.core.settings import Settings
from pomona.core.toml import validated
from pomona.storage.lock import waiting_lock
from pomona_federation.audit_log import write_line
from pomona_federation.json_store import read_json, write_json

FILE = "page.json"  # in run/
BYTES = 24  # random bytes of a token
READER_LIMIT = 200  # readers
LONGEST = 1000  # bytes of the header with a token


class Readers(Settings):
    """SHA-256 of each reader's token, by name."""

    tokens: dict[Name, Sha256] = Field({}, max_length=READER_LIMIT)


def readers(kit: Path) -> Readers:
    """The readers of a server's page. Raises StorageError."""
    return read_json(Readers, kit / "run" / FILE) or Readers()


def add(kit: Path, name: str) -> str:
    """Make a reader's token, in place of an earlier one, and return it; it is kept nowhere.

    Raises ConfigError, StorageError.
    """
    token = secrets.token_urlsafe(BYTES)
    _change(kit, name, _hashed(token.encode()))
    return token


def revoke(kit: Path, name: str) -> None:
    """Make a reader's token invalid, from the next request on. Raises ConfigError, StorageError."""
    _change(kit, name, None)


def admits(registered: Readers, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the password in a request's head is a reader's token.

    The work is the same for every head: one hash, compared with all.
    """
    hashed = _hashed(_password(headers))
    return sum(hmac.compare_digest(token, hashed) for token in registered.tokens.values()) > 0


def _password(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The password of HTTP's basic authentication; empty without exactly one."""
    values = [value for name, value in headers if name.lower() == b"authorization"]
    scheme, _, coded = (values[0] if len(values) == 1 else b"").partition(b" ")
    if scheme.lower() != b"basic" or len(coded) > LONGEST:
        return b""
    try:
        return b64decode(coded.strip(), validate=True).partition(b":")[2]
    except binascii.Error:
        return b""


def _hashed(token: bytes) -> str:
    """A token is random and long, so that it cannot be guessed from a plain hash."""
    return hashlib.sha256(token).hexdigest()


def _change(kit: Path, name: str, token: str | None) -> None:
    state = kit / "run"
    with writing(state / FILE):
        state.mkdir(mode=0o700, exist_ok=True)
        with waiting_lock(state / ".page.lock"):
            tokens = dict(readers(kit).tokens)
            if token is None and name not in tokens:
                raise ConfigError(f"no reader {name!r}; {suggestion(name, tokens)}")
            tokens.pop(name, None)
            new = tokens if token is None else {**tokens, name: token}
            changed = validated(Readers, {"tokens": new})
            write_line(state, "page", reader=name, allowed=token is not None)
            write_json(state / FILE, changed)

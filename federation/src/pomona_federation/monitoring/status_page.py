"""The status page over the server's port, for people with a token; the gate passes requests for
``PAGE`` on to it.

It answers GET and HEAD, reads no body, and lets no request past it. The page is made at most once
in ``FRESH`` seconds, whoever asks and how often.
"""

import asyncio
import binascii
import hashlib
import hmac
import secrets
import time
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from re import DOTALL, findall

from pydantic import Field

from pomona.core.bounds import Name, Sha256
from pomona.core.errors import ConfigError, PomonaError, suggestion
from pomona.core.files import writing
from pomona.core.settings import Settings
from pomona.core.toml import validated
from pomona.storage.lock import waiting_lock
from pomona_federation.audit_log import write_line
from pomona_federation.json_store import read_json, write_json
from pomona_federation.server.gate import Receive, Scope, Send

FRESH = 5.0  # seconds
WINDOW, REQUEST_LIMIT = 60.0, 120  # seconds, and requests from one address in them
ADDRESSES = 10_000  # counted at a time
HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"connection", b"close"),
)
CHALLENGE = (b"www-authenticate", b'Basic realm="Pomona", charset="UTF-8"')
POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


@dataclass
class StatusPage:
    """ASGI application.

    Args:
        kit: the server's.
        render: makes the page.
    """

    kit: Path
    render: Callable[[], str]
    clock: Callable[[], float] = time.monotonic
    _window: float = 0.0
    _requests: Counter[str] = field(default_factory=Counter)  # in the window, by address
    _page: tuple[float, int, str] | None = None  # when it was made, its status and text
    _making: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["method"] not in {"GET", "HEAD"}:
            return await _reply(send, 405, "only GET and HEAD\n", (b"allow", b"GET, HEAD"))
        if not self._timely(str((scope.get("client") or ("",))[0])):
            return await _reply(send, 429, "too many requests\n", (b"retry-after", b"60"))
        try:
            registered = readers(self.kit)
        except PomonaError:
            return await _reply(send, 503, "the server's files cannot be read\n")
        if not admits(registered, scope["headers"]):
            return await _reply(send, 401, "give the token as the password\n", CHALLENGE)
        return await _reply(send, *await self._current())

    def _timely(self, address: str) -> bool:
        """Whether an address may make another request now."""
        moment = self.clock()
        if moment - self._window > WINDOW or len(self._requests) > ADDRESSES:
            self._window, self._requests = moment, Counter()
        self._requests[address] += 1
        return self._requests[address] <= REQUEST_LIMIT

    async def _current(self) -> tuple[int, str]:
        """Status and text of the page."""
        async with self._making:
            if self._page is None or self.clock() - self._page[0] > FRESH:
                status, text = await asyncio.to_thread(self._rendered)
                self._page = self.clock(), status, text
            return self._page[1:]

    def _rendered(self) -> tuple[int, str]:
        try:
            return 200, self.render()
        except (PomonaError, OSError):
            return 503, "the server's files cannot be read\n"


async def _reply(
    send: Send, status: int, text: str, header: tuple[bytes, bytes] | None = None
) -> None:
    page, body = status == 200, text.encode()
    headers = [
        (b"content-type", f"text/{'html' if page else 'plain'}; charset=utf-8".encode()),
        (b"content-length", b"%d" % len(body)),
        (b"content-security-policy", _policy(text if page else "").encode()),
        *HEADERS,
        *([header] if header else []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _policy(page: str) -> str:
    """The page's policy: nothing is loaded, and of styles only those in the page are used."""
    styles = [
        f"'sha256-{b64encode(hashlib.sha256(style.encode()).digest()).decode()}'"
        for style in findall(r"<style>(.*?)</style>", page, DOTALL)
    ]
    return f"{POLICY}; style-src {' '.join(styles)}" if styles else POLICY


READERS = "page.json"  # in run/
BYTES = 24  # random bytes of a token
READER_LIMIT = 200  # readers
LONGEST = 1000  # bytes of the header with a token


class Readers(Settings):
    """SHA-256 of each reader's token, by name."""

    tokens: dict[Name, Sha256] = Field({}, max_length=READER_LIMIT)


def readers(kit: Path) -> Readers:
    """The readers of a server's page. Raises StorageError."""
    return read_json(Readers, kit / "run" / READERS) or Readers()


def add_reader(kit: Path, name: str) -> str:
    """Make a reader's token, in place of an earlier one, and return it; it is kept nowhere.

    Raises ConfigError, StorageError.
    """
    token = secrets.token_urlsafe(BYTES)
    _change(kit, name, _hashed(token.encode()))
    return token


def revoke_reader(kit: Path, name: str) -> None:
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
    with writing(state / READERS):
        state.mkdir(mode=0o700, exist_ok=True)
        with waiting_lock(state / ".page.lock"):
            tokens = dict(readers(kit).tokens)
            if token is None and name not in tokens:
                raise ConfigError(f"no reader {name!r}; {suggestion(name, tokens)}")
            tokens.pop(name, None)
            new = tokens if token is None else {**tokens, name: token}
            changed = validated(Readers, {"tokens": new})
            write_line(state, "page", reader=name, allowed=token is not None)
            write_json(state / READERS, changed)

"""The status page over the server's port, for people with a token; the gate passes requests for
``PAGE`` on to it.

It answers GET and HEAD, reads no body, and lets no request past it. The page is made at most once
in ``FRESH`` seconds, whoever asks and how often.
"""

import asyncio
import hashlib
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from re import DOTALL, findall

from pomona.core.errors import PomonaError
from pomona_federation.server.gate import Receive, Scope, Send
from pomona_federation.server.page_readers import admits, readers

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

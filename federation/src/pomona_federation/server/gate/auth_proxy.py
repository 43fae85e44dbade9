"""ASGI gate before SuperLink: authenticates requests, and limits their size, number and time before a body is read.

SuperLink reads and parses a request's body before it looks at the key that signed it, and knows no limit. A silo's
signature is in the request's head, so the gate looks at it first: nothing more is read from anyone who is not a member.
A member's request may be as long as Flower's pieces are, and all pieces of one answer together as long as the uplink
that was agreed on.
"""

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pomona.core.bounds import parse
from pomona.core.errors import StorageError
from pomona.core.files import content
from pomona.storage.atomic_io import publish
from pomona_federation.supervision.asgi import Application, Message, Receive, Scope, Send
from pomona_federation.supervision.connection_owner import local

Headers = Iterable[tuple[bytes, bytes]]

OPEN = "/v1/fleet/"
HEALTH = "/health"
STANDING = f"{OPEN}pomona/standing"  # answered by the gate itself: whether a silo is a member
STUDIES = f"{OPEN}pomona/studies"  # and so are requests about studies
OURS = "pomona.ours"  # in a request's state: whether its connection is the server's own account's
FORWARDED = {b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"}
ANSWERS, PIECE = f"{OPEN}push-messages", f"{OPEN}push-object"

BODY = 16 * 2**20  # bytes of an answer's text: it names at most 200,000 hashes
CHUNK = 5 * 2**20  # bytes of an array that Flower sends in one request
SMALL = 2**20  # of any other request
TRIES = 3  # times that an answer may be sent, whole
UPLINK = "uplink.json"


class RequestRefused(Exception):  # noqa: N818 - an answer, no fault of this program
    """A request that goes no further: an HTTP status and a word."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class RequestLimits:
    """Limits for one member.

    Attributes:
        piece: bytes of a request that brings a part of an answer.
        other: bytes of any other request.
        at_once: requests at the same time.
        seconds: until a request's body must have come.
    """

    piece: int = BODY + CHUNK
    other: int = SMALL
    at_once: int = 8
    seconds: float = 300.0


@dataclass
class Gate:
    """ASGI middleware.

    Args:
        app: SuperLink.
        known: the member whose key has signed a request's head; raises RequestRefused for anybody else. "" where a
            federation has no keys, on loopback: then all silos share ``at_once``, and their answers are not added up.
        uplink: bytes of the longest uplink that is agreed on; 0 as long as nobody has been asked for one.
        standing: a word on how the silo stands whose key has signed a request's head, for that silo.
        desk: answers a member's request about studies, from the member, the path and the body: status and text; one
            of each member's at a time.
    """

    app: Application
    known: Callable[[Scope], str]
    uplink: Callable[[], int]
    limits: RequestLimits = RequestLimits()
    standing: Callable[[Scope], str] = lambda _: ""
    desk: Callable[[str, str, bytes], tuple[int, bytes]] = lambda *_: (404, b"")
    _busy: Counter[str] = field(default_factory=Counter)
    _visits: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    _left: dict[str, int] = field(default_factory=dict)  # bytes that a member's answer may still bring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        try:
            if not passes(scope):
                raise RequestRefused(403, "forbidden")
            if scope["type"] != "http" or not scope["path"].startswith(OPEN):
                return await self.app(scope, receive, send)
            if scope["path"] == STANDING:
                return await _answer(scope, send, 200, self.standing(scope))
            who = self.known(scope)
            with self._slot(who):
                body = await self._body(who, scope, receive)
                if scope["path"] == STUDIES or scope["path"].startswith(f"{STUDIES}/"):
                    text = b"".join(message.get("body", b"") for message in body)
                    async with self._visits[who]:  # threads are few, and all members'
                        answer = await asyncio.to_thread(self.desk, who, scope["path"], text)
                    return await _reply(scope, send, *answer)
                await self.app(scope, again(body, receive), self._told(who, scope, send))
        except RequestRefused as refused:
            await _answer(scope, send, refused.status, str(refused))

    @contextmanager
    def _slot(self, who: str) -> Iterator[None]:
        if self._busy[who] >= self.limits.at_once:
            raise RequestRefused(503, "too many requests at a time")
        self._busy[who] += 1
        try:
            yield
        finally:
            self._busy[who] -= 1

    async def _body(self, who: str, scope: Scope, receive: Receive) -> list[Message]:
        """All of a body, no longer than this member may send now."""
        path = scope["path"]
        most = min(self.limits.piece, self._allowed(who)) if path == PIECE else self.limits.other
        if _announced(scope["headers"]) > most:
            raise RequestRefused(413, f"at most {most} bytes")
        try:
            async with asyncio.timeout(self.limits.seconds):
                body, size = await _read(receive, most)
        except TimeoutError:
            raise RequestRefused(408, f"the body has not come within {self.limits.seconds:g} s") from None
        if path == PIECE and who:
            self._left[who] = self._allowed(who) - size
        return body

    def _told(self, who: str, scope: Scope, send: Send) -> Send:
        """A ``send`` that lets a member's pieces begin anew once SuperLink has taken the answer that they belong to."""

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                self._left.pop(who, None)
            await send(message)

        return sent if scope["path"] == ANSWERS else send

    def _allowed(self, who: str) -> int:
        """Bytes that the pieces of a member's answer may still have; another answer begins anew."""
        return self._left.get(who, TRIES * (self.uplink() + BODY))


def passes(scope: Scope) -> bool:
    """Whether a request may go on: the fleet's and the health check always, others from the server's own account."""
    path = scope.get("path", "")
    if scope["type"] == "lifespan" or (scope["type"] == "http" and (path.startswith(OPEN) or path == HEALTH)):
        return True
    if FORWARDED & {name.lower() for name, _ in scope.get("headers", ())}:
        return False
    return local(scope.get("client"), scope.get("server")) and scope.get("state", {}).get(OURS) is True


def again(messages: list[Message], receive: Receive) -> Receive:
    """A ``receive`` that gives what was read already, and then what follows."""
    waiting = deque(messages)

    async def received() -> Message:
        return waiting.popleft() if waiting else await receive()

    return received


def announce(run: Path, size: int) -> None:
    """Tell the gate, in another process, the bytes of the longest uplink that the round loop waits for."""
    if announced(run) != size:
        publish(run, [b"%d\n" % size], lambda _: UPLINK, ".uplink")


def announced(run: Path) -> int:
    """The bytes that ``announce`` wrote down; 0 before."""
    try:
        size = parse(content(run / UPLINK, 100), StorageError, 100)
    except (OSError, StorageError):
        return 0
    return size if isinstance(size, int) and size > 0 else 0


async def _read(receive: Receive, most: int) -> tuple[list[Message], int]:
    """A body as it comes, and its bytes; no more than ``most`` of it is ever held."""
    messages, size = [], 0
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        if size > most:
            raise RequestRefused(413, f"at most {most} bytes")
        messages.append(message)
        if message["type"] != "http.request" or not message.get("more_body"):
            return messages, size


def _announced(headers: Headers) -> int:
    lengths = [value for name, value in headers if name.lower() == b"content-length"]
    if not all(value.isdigit() and len(value) < 20 for value in lengths):
        raise RequestRefused(400, "no length")
    return max(map(int, lengths), default=0)


async def _answer(scope: Scope, send: Send, status: int, text: str) -> None:
    await _reply(scope, send, status, f"{text}\n".encode())


async def _reply(scope: Scope, send: Send, status: int, text: bytes) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})

"""ASGI gate before SuperLink: authenticates requests, and limits their size, number and time before
a body is read.

SuperLink reads and parses a request's body before it checks the key that signed it, and has no
limits. A silo's signature is in the request's head, so the gate checks it first and reads nothing
more from anyone who is not a member. A member's request may be as long as Flower's pieces are, and
all pieces of one answer together as long as the agreed uplink. What is not of silos passes for the
server's own account alone, which owns the other end of a connection within this machine by Linux's
socket tables.
"""

import asyncio
import os
import struct
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

from pomona.core.bounds import parse
from pomona.core.errors import StorageError
from pomona.core.files import MAX_LOG_BYTES, content, publish
from pomona_federation.messages.study_bodies import MEMBERSHIP, STUDIES

TABLES = {4: Path("/proc/net/tcp"), 6: Path("/proc/net/tcp6")}
UID, INODE = 6, 8  # columns, counted from the local address
ROOT = 0

Address = IPv4Address | IPv6Address


def from_own_account(client: Any, server: Any) -> bool:
    """Whether a connection comes from this machine and from this process's account or root's, by
    its two ends.
    """
    peer, local_end = _ip(client), _ip(server)
    if peer is None or local_end is None or not local(client, server):
        return False
    return of_this_account((peer, client[1]), (local_end, server[1]))


def local(client: Any, server: Any) -> bool:
    """Whether a connection comes from this machine, by the addresses of its two ends."""
    peer, local_end = _ip(client), _ip(server)
    # Where the server listens on one address only, its own processes come from that address.
    return peer is not None and (peer.is_loopback or peer == local_end)


def of_this_account(client: tuple[Address, int], server: tuple[Address, int]) -> bool:
    """Whether the other end of a connection is a socket of this process's account, or of root's.

    Args:
        client: address and port of that end.
        server: those of this one.
    """
    return any(uid in {ROOT, os.getuid()} for uid in _owners(client, server))


def _owners(client: tuple[Address, int], server: tuple[Address, int]) -> Iterator[int]:
    for version, table in TABLES.items():
        addresses = [_table_address(peer, version) for peer in (client, server)]
        if None in addresses or not table.exists():
            continue
        text, pair = content(table, MAX_LOG_BYTES), " ".join(map(str, addresses)).encode()
        position = text.find(pair)
        # A socket closed by its process has no inode, and is listed as root's.
        if position >= 0 and (fields := text[position:].split(maxsplit=INODE + 1))[INODE] != b"0":
            yield int(fields[UID])


def _table_address(socket_address: tuple[Address, int], version: int) -> str | None:
    """An address and port in a table's format: words of 32 bits in this machine's order; None if
    not representable.
    """
    address, port = socket_address
    if version == 4 and isinstance(address, IPv6Address):
        return None
    if version == 6 and isinstance(address, IPv4Address):
        address = IPv6Address(f"::ffff:{address}")
    groups = struct.unpack(f"={len(address.packed) // 4}I", address.packed)
    return "".join(f"{group:08X}" for group in groups) + f":{port:04X}"


def _ip(socket_address: Any) -> Address | None:
    try:
        ip = ip_address(socket_address[0].partition("%")[0])
    except (TypeError, ValueError, IndexError, AttributeError):
        return None
    return getattr(ip, "ipv4_mapped", None) or ip


Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


Headers = Iterable[tuple[bytes, bytes]]

OPEN = "/v1/fleet/"
HEALTH = "/health"
PAGE = "/status"  # for people, whose requests nothing behind the gate sees
# in a request's state: whether its connection belongs to the server's own account
OWN_ACCOUNT = "pomona.ours"
FORWARDED = {b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"}
ANSWERS, PIECE = f"{OPEN}push-messages", f"{OPEN}push-object"
ACTIVATE, DEACTIVATE = f"{OPEN}activate-node", f"{OPEN}deactivate-node"

BODY = 16 * 2**20  # bytes of an answer's text, which names at most 200,000 hashes
CHUNK = 5 * 2**20  # bytes of an array that Flower sends in one request
SMALL = 2**20  # bytes of any other request
TRIES = 3  # times that an answer may be sent in full
UPLINK = "uplink.json"


class RequestRefused(Exception):  # noqa: N818 - an answer, no fault of this program
    """A refused request: an HTTP status and a reason."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class RequestLimits:
    """Limits for one member.

    Attributes:
        piece: bytes of a request with a part of an answer.
        default: bytes of any other request.
        concurrent: concurrent requests.
        seconds: until a request's body must have arrived.
    """

    piece: int = BODY + CHUNK
    default: int = SMALL
    concurrent: int = 8
    seconds: float = 300.0


@dataclass
class Gate:
    """ASGI middleware.

    Args:
        app: SuperLink.
        authenticate: returns the member whose key signed a request's head; raises RequestRefused
            otherwise. It returns "" in a federation without keys, on loopback: then all silos share
            ``concurrent``, and their answers are not added up.
        uplink: bytes of the longest agreed uplink; 0 before the first request for one.
        membership: whether the silo whose key signed a request's head is a member, for that silo.
        studies: answers a member's request about studies, given the member, the path and the body,
            with status and text; one request per member at a time.
        page: answers requests for ``PAGE``, from anywhere, by rules of its own; None for none.
        on_request: called with a member and the path of its node's request, of ``ACTIVATE`` and
            ``DEACTIVATE`` once SuperLink has accepted it.
    """

    app: Application
    authenticate: Callable[[Scope], str]
    uplink: Callable[[], int]
    limits: RequestLimits = RequestLimits()
    membership: Callable[[Scope], str] = lambda _: ""
    studies: Callable[[str, str, bytes], tuple[int, bytes]] = lambda *_: (404, b"")
    page: Application | None = None
    on_request: Callable[[str, str], None] = lambda *_: None
    _busy: Counter[str] = field(default_factory=Counter)
    _visits: defaultdict[str, asyncio.Lock] = field(
        default_factory=lambda: defaultdict(asyncio.Lock)
    )
    _allowances: dict[str, int] = field(default_factory=dict)  # bytes left for a member's answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if self.page and scope["type"] == "http" and scope["path"] == PAGE:
            return await self.page(scope, receive, send)
        try:
            if not is_allowed(scope):
                raise RequestRefused(403, "forbidden")
            if scope["type"] != "http" or not scope["path"].startswith(OPEN):
                return await self.app(scope, receive, send)
            if scope["path"] == MEMBERSHIP:
                return await _answer(scope, send, 200, self.membership(scope))
            member = self.authenticate(scope)
            with self._slot(member):
                await self._serve(member, scope, receive, send)
        except RequestRefused as refused:
            await _answer(scope, send, refused.status, str(refused))

    async def _serve(self, member: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a member's request about studies, or pass it on to SuperLink."""
        path, body = scope["path"], await self._body(member, scope, receive)
        if path == STUDIES or path.startswith(f"{STUDIES}/"):
            text = b"".join(message.get("body", b"") for message in body)
            async with self._visits[member]:  # threads are few and shared by all members
                answer = await asyncio.to_thread(self.studies, member, path, text)
            return await _reply(scope, send, *answer)
        if path not in {ACTIVATE, DEACTIVATE}:
            self.on_request(member, path)
        return await self.app(scope, replay(body, receive), self._observing(member, scope, send))

    @contextmanager
    def _slot(self, member: str) -> Iterator[None]:
        if self._busy[member] >= self.limits.concurrent:
            raise RequestRefused(503, "too many requests at a time")
        self._busy[member] += 1
        try:
            yield
        finally:
            self._busy[member] -= 1

    async def _body(self, member: str, scope: Scope, receive: Receive) -> list[Message]:
        """A whole body, up to the length that this member may send now."""
        path = scope["path"]
        limit = (
            min(self.limits.piece, self._allowed(member)) if path == PIECE else self.limits.default
        )
        if _content_length(scope["headers"]) > limit:
            raise RequestRefused(413, f"at most {limit} bytes")
        try:
            async with asyncio.timeout(self.limits.seconds):
                body, size = await _read(receive, limit)
        except TimeoutError:
            raise RequestRefused(
                408, f"the body has not come within {self.limits.seconds:g} s"
            ) from None
        if path == PIECE and member:
            self._allowances[member] = self._allowed(member) - size
        return body

    def _observing(self, member: str, scope: Scope, send: Send) -> Send:
        """A ``send`` that, once SuperLink has accepted a request, resets a member's allowance after
        an answer's pieces, and reports that its node has started or left.
        """

        async def observed(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                if scope["path"] == ANSWERS:
                    self._allowances.pop(member, None)
                else:
                    self.on_request(member, scope["path"])
            await send(message)

        return observed if scope["path"] in {ANSWERS, ACTIVATE, DEACTIVATE} else send

    def _allowed(self, member: str) -> int:
        """Bytes left for the pieces of a member's answer; the next answer starts anew."""
        return self._allowances.get(member, TRIES * (self.uplink() + BODY))


def is_allowed(scope: Scope) -> bool:
    """Whether a request may pass: fleet interface and health check always, others from the server's
    own account.
    """
    path = scope.get("path", "")
    if scope["type"] == "lifespan" or (
        scope["type"] == "http" and (path.startswith(OPEN) or path == HEALTH)
    ):
        return True
    if FORWARDED & {name.lower() for name, _ in scope.get("headers", ())}:
        return False
    return (
        local(scope.get("client"), scope.get("server"))
        and scope.get("state", {}).get(OWN_ACCOUNT) is True
    )


def replay(messages: list[Message], receive: Receive) -> Receive:
    """A ``receive`` that replays the messages already read, then continues."""
    pending = deque(messages)

    async def next_message() -> Message:
        return pending.popleft() if pending else await receive()

    return next_message


def publish_uplink_limit(run: Path, size: int) -> None:
    """Publish the maximum uplink size for the gate process."""
    if uplink_limit(run) != size:
        publish(run / UPLINK, [b"%d\n" % size], ".uplink")


def uplink_limit(run: Path) -> int:
    """The size that ``publish_uplink_limit`` published; 0 before."""
    try:
        size = parse(content(run / UPLINK, 100), StorageError, 100)
    except (OSError, StorageError):
        return 0
    return size if isinstance(size, int) and size > 0 else 0


async def _read(receive: Receive, limit: int) -> tuple[list[Message], int]:
    """A body and its size; reads no more than ``limit`` bytes."""
    messages, size = [], 0
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        if size > limit:
            raise RequestRefused(413, f"at most {limit} bytes")
        messages.append(message)
        if message["type"] != "http.request" or not message.get("more_body"):
            return messages, size


def _content_length(headers: Headers) -> int:
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

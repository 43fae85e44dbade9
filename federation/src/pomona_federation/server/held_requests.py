"""ASGI layer between gate and SuperLink that replaces polling: silos wait for tasks, the server for
answers.

A silo's request for messages is held while there are none, and answered, still without one, when
the server has sent
some: the silo asks again at once. So no message is ever put into an answer that may have lost its
reader, and a connection that was cut in the meantime loses nothing.

When the last piece of a silo's answer has arrived, the round loop, another process, gets its ticket
through a named pipe. Nothing depends on that: without notice, the loop still looks for answers from
time to time.
"""

import asyncio
import os
import select
import stat
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pomona_federation.server.auth_proxy import (
    ACTIVATE,
    ANSWERS,
    OPEN,
    PIECE,
    Application,
    Message,
    Receive,
    Scope,
    Send,
    again,
)

PIPE = "arrivals"
LONGEST_TICKET = 100  # characters of a ticket
AT_ONCE = 2**16  # bytes per read


def notify(run: Path, ticket: str) -> None:
    """Notify the round loop of a run's folder that an answer is complete; no effect without a
    listener.
    """
    if not 0 < len(ticket) <= LONGEST_TICKET or not ticket.isalnum():
        return
    with suppress(OSError):
        pipe = os.open(run / PIPE, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if stat.S_ISFIFO(os.fstat(pipe).st_mode):
                os.write(pipe, f"{ticket}\n".encode())
        finally:
            os.close(pipe)


class Arrivals:
    """The round loop's end of the pipe in a run's folder. Raises OSError if no pipe can be made."""

    def __init__(self, run: Path) -> None:
        path = run / PIPE
        with suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        # reading and writing: no end of file
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISFIFO(os.fstat(self._pipe).st_mode):
            raise FileExistsError(f"{path} is not a pipe")

    def wait(self, seconds: float) -> frozenset[str]:
        """The tickets received; waits up to this many seconds for the first one."""
        if not select.select([self._pipe], [], [], seconds)[0]:
            return frozenset()
        return frozenset(os.read(self._pipe, AT_ONCE).decode("ascii", "replace").split())


TASKS = f"{OPEN}pull-messages"
UNKNOWN, LATER = 412, 503  # SuperLink's reply for an unknown key; for Flower's client: try again
SENT = "/v1/runtime/push-messages"
NEXT = {SENT, "/v1/runtime/pull-messages", "/v1/runtime/get-nodes"}
HOLD = 15.0  # seconds: less than Flower's client waits (30), or any proxy
LEAST = 0.3  # seconds that a request was held, from which a silo knows that it was
SESSIONS = 10_000  # most answers in transit that are remembered


class Notifier:
    """Wakes all held requests; permanently once it is closed."""

    def __init__(self) -> None:
        self._event, self._closed = asyncio.Event(), False

    def next(self) -> asyncio.Event:
        """Event that the next ``notify`` sets."""
        return self._event

    def notify(self) -> None:
        """Wake the requests waiting now."""
        self._event.set()
        if not self._closed:
            self._event = asyncio.Event()

    def close(self) -> None:
        """Wake all requests, and hold no more."""
        self._closed = True
        self.notify()


@dataclass
class Hold:
    """ASGI middleware.

    Args:
        app: SuperLink.
        answered: called with the ticket of each complete answer.
        notifier: wakes held requests when messages have been sent.
        seconds: longest time that a request is held.
    """

    app: Application
    answered: Callable[[str], None]
    notifier: Notifier
    seconds: float = HOLD
    _sent: bool = False  # messages that may be incomplete
    # session -> ticket, pieces missing
    _left: OrderedDict[str, tuple[str, int]] = field(default_factory=OrderedDict)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; hold one for messages."""
        path = scope.get("path", "")
        # the server's next request: what it sent before is complete
        if self._sent and path in NEXT:
            self._sent = False
            self.notifier.notify()
        if path == TASKS:
            await self._held(scope, receive, send)
        elif path in {ANSWERS, PIECE}:
            await self._noted(scope, receive, send)
        elif path == ACTIVATE:
            await self.app(scope, receive, _patient(send))
        else:
            await self.app(scope, receive, send)
        self._sent = self._sent or path == SENT

    async def _held(self, scope: Scope, receive: Receive, send: Send) -> None:
        from flwr.proto.fleet_pb2 import PullMessagesResponse

        began = asyncio.get_running_loop().time()
        woken = self.notifier.next()  # before SuperLink looks, so that nothing is missed
        answer = Answer()
        await self.app(scope, receive, answer.keep)
        if answer.status == 200 and not PullMessagesResponse.FromString(answer.body).messages_list:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.seconds):
                    await woken.wait()
            await asyncio.sleep(began + LEAST - asyncio.get_running_loop().time())
        for message in answer.messages:
            await send(message)

    async def _noted(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a part of an answer on, and count it."""
        asked = [await receive()]
        while asked[-1].get("more_body"):
            asked.append(await receive())
        answer = Answer()
        await self.app(scope, again(asked, receive), answer.keep)
        if answer.status == 200:
            self._count(scope["path"], b"".join(m.get("body", b"") for m in asked), answer.body)
        for message in answer.messages:
            await send(message)

    def _count(self, path: str, asked: bytes, answered: bytes) -> None:
        """Report an answer when its last piece has arrived; SuperLink has accepted both."""
        from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
        from flwr.proto.message_pb2 import PushObjectRequest

        if path == ANSWERS:
            reply, missing = (
                PushMessagesRequest.FromString(asked),
                PushMessagesResponse.FromString(answered),
            )
            session = missing.session_id
            # a member may send none
            ticket = next((m.metadata.reply_to_message_id for m in reply.messages_list), "")
            left = len(missing.objects_to_push)
        else:
            session = PushObjectRequest.FromString(asked).session_id
            ticket, left = self._left.pop(session, ("", 0))
            left -= 1
        if left > 0:
            self._left[session] = ticket, left
            if len(self._left) > SESSIONS:
                self._left.popitem(last=False)
        elif ticket:
            self.answered(ticket)


def _patient(send: Send) -> Send:
    """A ``send`` that makes a member retry if SuperLink does not know it yet, or thinks it is still
    connected.

    Only members pass the gate; a refusal would end Flower's node, and its supervisor would restart
    it.
    """

    async def sent(message: Message) -> None:
        await send({**message, "status": LATER} if message.get("status") == UNKNOWN else message)

    return sent


@dataclass
class Answer:
    """SuperLink's answer, kept until it is sent."""

    messages: list[Message] = field(default_factory=list)

    async def keep(self, message: Message) -> None:
        """Keep a part, as an ASGI ``send``."""
        self.messages.append(message)

    @property
    def status(self) -> int:
        """The HTTP status; 0 before there is one."""
        return next((m["status"] for m in self.messages if m["type"] == "http.response.start"), 0)

    @property
    def body(self) -> bytes:
        """All of the body."""
        return b"".join(
            m.get("body", b"") for m in self.messages if m["type"] == "http.response.body"
        )

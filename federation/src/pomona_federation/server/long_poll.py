"""ASGI layer between gate and SuperLink that replaces polling: silos wait for tasks, the server for
answers.

A silo's request for messages is held while there are none. Once the server has sent some, it is
answered, still without a message, and the silo asks again at once. So no message is ever put into
an answer that may have lost its reader, and a connection that was cut in the meantime loses
nothing.

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

from pomona_federation.server import gate

PIPE = "arrivals"
LONGEST_TICKET = 100  # characters of a ticket
READ_SIZE = 2**16  # bytes per read


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
        return frozenset(os.read(self._pipe, READ_SIZE).decode("ascii", "replace").split())


PULL = f"{gate.OPEN}pull-messages"
UNKNOWN, LATER = 412, 503  # SuperLink's reply for an unknown key; for Flower's client: try again
PUSH = "/v1/runtime/push-messages"
FOLLOWING = {PUSH, "/v1/runtime/pull-messages", "/v1/runtime/get-nodes"}
MAX_HOLD = 15.0  # seconds: less than Flower's client waits (30), or any proxy
MIN_HOLD = 0.1  # seconds that a request is held at least, from which a silo knows that it was held
SESSIONS = 10_000  # most answers in transit that are remembered


class Waker:
    """Wakes all held requests; permanently once it is closed."""

    def __init__(self) -> None:
        self._event, self._closed = asyncio.Event(), False

    def event(self) -> asyncio.Event:
        """Event that the next ``wake`` sets."""
        return self._event

    def wake(self) -> None:
        """Wake the requests waiting now."""
        self._event.set()
        if not self._closed:
            self._event = asyncio.Event()

    def close(self) -> None:
        """Wake all requests, and hold no more."""
        self._closed = True
        self.wake()


@dataclass
class LongPoll:
    """ASGI middleware.

    Args:
        app: SuperLink.
        on_answer: called with the ticket of each complete answer.
        waker: wakes held requests when messages have been sent.
        seconds: longest time that a request is held.
    """

    app: gate.Application
    on_answer: Callable[[str], None]
    waker: Waker
    seconds: float = MAX_HOLD
    _pushed: bool = False  # messages that may be incomplete
    # session -> ticket, pieces missing
    _incomplete: OrderedDict[str, tuple[str, int]] = field(default_factory=OrderedDict)

    async def __call__(self, scope: gate.Scope, receive: gate.Receive, send: gate.Send) -> None:
        """Pass a request on; hold one for messages."""
        path = scope.get("path", "")
        # the server's next request: what it sent before is complete
        if self._pushed and path in FOLLOWING:
            self._pushed = False
            self.waker.wake()
        if path == PULL:
            await self._long_poll(scope, receive, send)
        elif path in {gate.ANSWERS, gate.PIECE}:
            await self._track(scope, receive, send)
        elif path == gate.ACTIVATE:
            await self.app(scope, receive, _patient(send))
        else:
            await self.app(scope, receive, send)
        self._pushed = self._pushed or path == PUSH

    async def _long_poll(self, scope: gate.Scope, receive: gate.Receive, send: gate.Send) -> None:
        from flwr.proto.fleet_pb2 import PullMessagesResponse

        start_time = asyncio.get_running_loop().time()
        wake_up = self.waker.event()  # before SuperLink looks, so that nothing is missed
        response = BufferedResponse()
        await self.app(scope, receive, response.buffer)
        if (
            response.status == 200
            and not PullMessagesResponse.FromString(response.body).messages_list
        ):
            with suppress(TimeoutError):
                async with asyncio.timeout(self.seconds):
                    await wake_up.wait()
            await asyncio.sleep(start_time + MIN_HOLD - asyncio.get_running_loop().time())
        for message in response.messages:
            await send(message)

    async def _track(self, scope: gate.Scope, receive: gate.Receive, send: gate.Send) -> None:
        """Pass a piece of an answer on, and count it."""
        request = [await receive()]
        while request[-1].get("more_body"):
            request.append(await receive())
        response = BufferedResponse()
        await self.app(scope, gate.replay(request, receive), response.buffer)
        if response.status == 200:
            self._count(scope["path"], b"".join(m.get("body", b"") for m in request), response.body)
        for message in response.messages:
            await send(message)

    def _count(self, path: str, request: bytes, response: bytes) -> None:
        """Report an answer when its last piece has arrived; SuperLink has accepted both."""
        from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
        from flwr.proto.message_pb2 import PushObjectRequest

        if path == gate.ANSWERS:
            reply = PushMessagesRequest.FromString(request)
            accepted = PushMessagesResponse.FromString(response)
            session = accepted.session_id
            # a member may send none
            ticket = next((m.metadata.reply_to_message_id for m in reply.messages_list), "")
            missing = len(accepted.objects_to_push)
        else:
            session = PushObjectRequest.FromString(request).session_id
            ticket, missing = self._incomplete.pop(session, ("", 0))
            missing -= 1
        if missing > 0:
            self._incomplete[session] = ticket, missing
            if len(self._incomplete) > SESSIONS:
                self._incomplete.popitem(last=False)
        elif ticket:
            self.on_answer(ticket)


def _patient(send: gate.Send) -> gate.Send:
    """A ``send`` that makes a member retry if SuperLink does not know it yet, or thinks it is still
    connected.

    Only members pass the gate; a refusal would end Flower's node, and its supervisor would restart
    it.
    """

    async def send_patiently(message: gate.Message) -> None:
        await send({**message, "status": LATER} if message.get("status") == UNKNOWN else message)

    return send_patiently


@dataclass
class BufferedResponse:
    """SuperLink's answer, kept until it is sent."""

    messages: list[gate.Message] = field(default_factory=list)

    async def buffer(self, message: gate.Message) -> None:
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

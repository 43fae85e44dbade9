"""Flower's ServerApp and ClientApp: the two entry points, and messages as Flower carries them.

A silo's process lives for one message, as Flower starts one for each; everything that must survive lies in its folder.
"""

import faulthandler
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MessageType, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from httpx import TransportError

from pomona.core.errors import ProtocolError
from pomona.core.registry import importable
from pomona.deploy.message_bodies import Hello, Refusal, Task
from pomona.deploy.message_bus import Message, Undelivered, untrusted
from pomona.deploy.process_logs import APP, at_round, logging_to

RAW = "pomona.bytes"  # how an array's bytes are to be read: by Pomona, not by anything that unpickles
AGAIN = {3, 5, 8}  # Flower's codes for a node or a process that is gone: message unavailable, node, silent app
TEXTS, ROWS = "texts", "rows"
STDERR = 2  # the process's own, whatever sys.stderr has been made into
LOOK = 3.0  # seconds that one look for answers waits for those that are on their way
GRACE = 30.0  # seconds beyond a message's time that a silo may still work on it

T = TypeVar("T")
logger = logging.getLogger("pomona")
server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation of the folder that the run's configuration names."""
    from pomona.deploy.server.server_app import coordinate

    coordinate(Path(str(context.run_config["folder"])), FlowerBus(grid))


@client_app.query()
def query(message: FlowerMessage, context: Context) -> FlowerMessage:
    """Say who this silo is."""
    return _answered(message, context)


@client_app.train()
def train(message: FlowerMessage, context: Context) -> FlowerMessage:
    """Do a round's task."""
    return _answered(message, context)


def _answered(message: FlowerMessage, context: Context) -> FlowerMessage:
    with ending_after(message.metadata.ttl + GRACE):
        answer = handled(Path(str(context.node_config["folder"])), unpacked(message.content))
        return FlowerMessage(packed(answer), reply_to=message)


@contextmanager
def ending_after(seconds: float) -> Iterator[None]:
    """End this process where what follows takes longer, and say in the silo's log at which line it stood.

    The server no longer waits for the answer, but Flower's node would: it does one message at a time, and one that
    hangs keeps it from all later rounds. The clock is faulthandler's, which runs even where Python does not.
    """
    faulthandler.dump_traceback_later(seconds, exit=True, file=STDERR)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def handled(folder: Path, message: Message) -> Message:
    """A silo's answer to a message; a refusal if it will not or cannot do what is asked."""
    with logging_to(folder / "state" / "logs" / APP):
        return _handled(folder, message)


def _handled(folder: Path, message: Message) -> Message:
    import os

    import torch

    from pomona.deploy.silo.client_app import Silo, audited
    from pomona.deploy.silo.outgoing_filter import scrubbed

    os.umask(0o077)
    importable(folder)
    torch.set_num_threads(1)
    silo = Silo(folder)
    try:
        body = message.read(Hello, Task)
        if isinstance(body, Hello):
            logger.info("the server asks who this is")
            return Message.of(silo.greet(body), silo.signer)
        at_round(body.number)
        answer, uplink = silo.answer(body, message.enclosed)
        logger.info("answered with an uplink of %d bytes", len(uplink))
        audited(silo, "answered", round=body.number, task=body.digest, bytes=len(uplink))
        return Message.of(answer, silo.signer, {"uplink": uplink} if uplink else {})
    except Exception as fault:  # whatever it is, its text stays here
        logger.exception("a message could not be answered")
        audited(silo, "refused", reason=scrubbed(fault))
        return Message.of(Refusal(silo=silo.file.name, fault=scrubbed(fault)), silo.signer)


@dataclass
class FlowerBus:
    """The message bus of a running SuperLink."""

    grid: Grid
    _pulls: dict[str, Future[dict[str, Message | Undelivered]]] = field(default_factory=dict)

    def online(self) -> frozenset[int]:
        """The nodes that SuperLink has heard of in the last minute."""
        return frozenset(self.grid.get_node_ids())

    def send(self, node: int, message: Message, seconds: float) -> str:
        """Push one message."""
        kind = MessageType.QUERY if message.kind == Hello.kind else MessageType.TRAIN
        (ticket,) = self.grid.push_messages([FlowerMessage(packed(message), node, kind, ttl=seconds)])
        return ticket

    def fetch(self, tickets: Sequence[str]) -> dict[str, Message | Undelivered]:
        """Pull what has come, each ticket by itself: one that cannot be read, or comes drop by drop, holds up no other.

        Flower waits for the parts of an answer whose sender has begun to push it, for up to two hours.
        """
        for ticket in tickets:
            if ticket not in self._pulls:
                self._pulls[ticket] = _beside(partial(self._pulled, ticket))
        self._pulls = {ticket: pull for ticket, pull in self._pulls.items() if ticket in tickets}
        done, _ = wait(self._pulls.values(), LOOK)
        answers: dict[str, Message | Undelivered] = {}
        for ticket in [t for t, pull in self._pulls.items() if pull in done]:
            answers |= self._pulls.pop(ticket).result()
        return answers

    def _pulled(self, ticket: str) -> dict[str, Message | Undelivered]:
        """The answer to one message, if it has come; of two the first counts. A SuperLink that is gone is no answer."""
        try:
            with untrusted(TransportError):
                found = [received(m) for m in self.grid.pull_messages([ticket])]
        except ProtocolError as fault:
            return {ticket: Undelivered(str(fault), again=False)}
        return {ticket: found[0]} if found else {}


def _beside(work: Callable[[], T]) -> Future[T]:
    """Do something in a thread that no process waits for at its end."""
    made: Future[T] = Future()

    def run() -> None:
        try:
            made.set_result(work())
        except BaseException as fault:  # raised where the result is asked for
            made.set_exception(fault)

    Thread(target=run, daemon=True).start()
    return made


def received(message: FlowerMessage) -> Message | Undelivered:
    """A reply, or why there is none. Flower's own texts of errors may hold a peer's paths, so only codes are told."""
    if message.has_error():
        code = message.error.code
        return Undelivered(f"Flower reports error {code}", again=code in AGAIN)
    return unpacked(message.content)


def packed(message: Message) -> RecordDict:
    """A message as Flower's content."""
    arrays = {name: Array("uint8", (len(data),), RAW, data) for name, data in message.enclosed.items()}
    texts = {"kind": message.kind, "body": message.body, "signature": message.signature}
    return RecordDict({TEXTS: ConfigRecord(texts), ROWS: ArrayRecord(arrays)})  # type: ignore[arg-type]


def unpacked(content: RecordDict) -> Message:
    """The inverse. Raises ProtocolError for anything else."""
    try:
        texts, rows = content[TEXTS], content[ROWS]
        if not isinstance(texts, ConfigRecord) or not isinstance(rows, ArrayRecord):
            raise TypeError
        kind, body, signature = (texts[k] for k in ("kind", "body", "signature"))
        if not all(isinstance(v, str) for v in (kind, body, signature)):
            raise TypeError
        if any(array.stype != RAW for array in rows.values()):
            raise TypeError
        return Message(str(kind), str(body), str(signature), {name: array.data for name, array in rows.items()})
    except (KeyError, TypeError):
        raise ProtocolError("a message holds something else than was agreed; check the peer's version") from None

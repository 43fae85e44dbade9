"""The message bus of a running SuperLink, through Flower's grid."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import TypeVar

from flwr.app import Message as FlowerMessage
from flwr.app import MessageType
from flwr.serverapp import Grid
from httpx import TransportError

from pomona_federation.messages.message_bodies import Hello
from pomona_federation.messages.message_bus import (
    Message,
    Outgoing,
    Undelivered,
    packed,
    unpacked,
    untrusted,
)
from pomona_federation.server.long_poll import Arrivals
from pomona_federation.unused_uplinks import Reason, UnusableError

# what Flower's error codes mean; of a node or a process that is gone, a message is sent again
REASONS = {
    1: Reason.SILO_FAULT,
    2: Reason.SILO_FAULT,
    3: Reason.ANSWER_LOST,
    4: Reason.ANSWER_LOST,
    5: Reason.NODE_RESTARTED,
    8: Reason.WORKER_ENDED,
}
RETRIED = {3, 5, 8}
FLOWER_TYPES = {Hello.message_type: MessageType.QUERY}
FETCH_TIMEOUT = 3.0  # seconds that one look waits for answers in transit
# seconds after which all answers are looked for, also those without notice from the gate
SWEEP = 5.0
ONLINE_SECONDS = 1.0  # for which an answer on the nodes that are online is used
BATCH_BYTES = 64 * 2**20  # bytes of messages sent at once; at least one message
# complete answers pulled at a time: each takes several copies in memory until it is spooled
MAX_PULLS = 4

T = TypeVar("T")


@dataclass
class FlowerBus:
    """Carries messages over Flower's grid; without ``arrivals``, each look checks for all
    answers.
    """

    grid: Grid
    arrivals: Arrivals | None = None
    _pulls: dict[str, Future[dict[str, Message | Undelivered]]] = field(default_factory=dict)
    _ready: frozenset[str] = frozenset()
    _notified: bool = False  # whether something notifies of answers
    _swept: float = float("-inf")
    _online: frozenset[int] = frozenset()
    _update_time: float = float("-inf")  # when SuperLink was asked for them

    @classmethod
    def listening(cls, grid: Grid, run: Path) -> "FlowerBus":
        """A bus that is notified of answers in a run's folder, if the file system has pipes."""
        try:
            return cls(grid, Arrivals(run))
        except OSError:
            return cls(grid)

    def online(self) -> frozenset[int]:
        """The nodes that SuperLink has heard from in the last minute."""
        if monotonic() - self._update_time >= ONLINE_SECONDS:
            self._update_online()
        return self._online

    def _update_online(self) -> None:
        self._online, self._update_time = frozenset(self.grid.get_node_ids()), monotonic()

    def send(self, messages: Sequence[Outgoing]) -> list[str]:
        """Push messages, as many at once as fit into memory; the next request makes the gate wake
        the silos.
        """
        tickets = [ticket for batch in _batches(messages) for ticket in self._push(batch)]
        if tickets:
            self._update_online()
        return tickets

    def _push(self, batch: Sequence[Outgoing]) -> list[str]:
        pushed = [
            FlowerMessage(
                packed(outgoing.message),
                outgoing.node,
                FLOWER_TYPES.get(outgoing.message.message_type, MessageType.TRAIN),
                ttl=outgoing.seconds,
            )
            for outgoing in batch
        ]
        return [
            t or f"unsent {outgoing.node}"
            for t, outgoing in zip(self.grid.push_messages(pushed), batch, strict=True)
        ]

    def fetch(self, tickets: Sequence[str]) -> dict[str, Message | Undelivered]:
        """Pull the answers that have come, each ticket separately: an unreadable or slow one delays
        no other.

        Flower waits up to two hours for the parts of an answer whose sender has begun to push it.
        Answers reported by the gate are complete; a few of them are pulled at a time, and the
        others when those have been taken.
        """
        ready = self._to_pull(tickets)
        for ticket in tickets:
            if ticket in ready and ticket not in self._pulls:
                self._pulls[ticket] = _in_thread(partial(self._pull, ticket))
        self._pulls = {ticket: pull for ticket, pull in self._pulls.items() if ticket in tickets}
        finished, _ = wait(self._pulls.values(), FETCH_TIMEOUT)
        answers: dict[str, Message | Undelivered] = {}
        for ticket in [t for t, pull in self._pulls.items() if pull in finished]:
            answers |= self._pulls.pop(ticket).result()
        return answers

    def _to_pull(self, tickets: Sequence[str]) -> frozenset[str]:
        """The tickets whose answers are looked for now."""
        self.wait(0.0)
        complete = [ticket for ticket in tickets if ticket in self._ready]
        ready = frozenset(complete[:MAX_PULLS])
        self._ready = frozenset(complete[MAX_PULLS:])
        if self._notified and monotonic() - self._swept < SWEEP:
            return ready
        self._swept = monotonic()
        return frozenset(tickets) - self._ready

    def wait(self, seconds: float) -> None:
        """Return when there are answers, or after this many seconds."""
        if self.arrivals:
            self._ready |= self.arrivals.wait(0.0 if self._ready else seconds)
            self._notified = self._notified or bool(self._ready)
        else:
            sleep(seconds)

    def _pull(self, ticket: str) -> dict[str, Message | Undelivered]:
        """The answer to one message, if it has come; of two the first counts.

        Empty if SuperLink is unreachable.
        """
        try:
            with untrusted(Reason.UNREADABLE, TransportError):
                messages = [received(m) for m in self.grid.pull_messages([ticket])]
        except UnusableError as fault:
            return {ticket: Undelivered(fault.reason, str(fault), retry=False)}
        return {ticket: messages[0]} if messages else {}


def _batches(messages: Sequence[Outgoing]) -> Iterator[list[Outgoing]]:
    """Messages in order, in groups of up to ``BATCH_BYTES`` bytes, or of one message."""
    batch: list[Outgoing] = []
    for outgoing in messages:
        if batch and sum(o.message.size for o in batch) + outgoing.message.size > BATCH_BYTES:
            yield batch
            batch = []
        batch.append(outgoing)
    if batch:
        yield batch


def _in_thread(work: Callable[[], T]) -> Future[T]:
    """Run a function in a daemon thread, which the process does not wait for at its end."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as fault:  # re-raised by the future's result
            future.set_exception(fault)

    Thread(target=run, daemon=True).start()
    return future


def received(message: FlowerMessage) -> Message | Undelivered:
    """A reply, or why there is none.

    Only codes are reported, since Flower's error texts may contain a peer's paths.
    """
    if message.has_error():
        code = message.error.code
        reason = REASONS.get(code, Reason.NODE_REFUSED)
        return Undelivered(reason, f"Flower's error {code}", retry=code in RETRIED)
    return unpacked(message.content)

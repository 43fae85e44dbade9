"""Messages on their way to silos, each with its outcome, and ``waiting.json``, which shows the open
ones.
"""

import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, time

from pomona_federation.json_store import write_json
from pomona_federation.messages.message_bodies import Body, SumRequest, Task
from pomona_federation.messages.message_bus import Message
from pomona_federation.server.contacts import Contact
from pomona_federation.supervision.status_files import WAITING, WaitingStatus, clock
from pomona_federation.unused_uplinks import Reason, UnusedUplink

ATTEMPTS = 3  # attempts to send one message to a silo whose node was lost on the way


REMIND = 60.0  # seconds between lines of the log while nothing else happens
logger = logging.getLogger("pomona")


@dataclass
class WaitingFile:
    """Shows which silos are awaited; a full disk does not end the run.

    Args:
        folder: of the file.
    """

    folder: Path
    _status: WaitingStatus = field(default_factory=WaitingStatus)
    _next_log: float = 0.0  # when the next log line is due, by the monotonic clock

    def start(self, stage: str, seconds: float) -> None:
        """Start a stage that lasts at most ``seconds``."""
        start_time = time()
        self._status = WaitingStatus(stage=stage, since=start_time, until=start_time + seconds)
        self._next_log = 0.0

    def update(
        self, answered: Collection[str], missing: Mapping[str, str], abandoned: Collection[str] = ()
    ) -> None:
        """Record which silos have answered, which are awaited and why, and which are given up."""
        silos = (*answered, *missing, *abandoned)
        status = self._status.model_copy(
            update={"asked": silos, "answered": tuple(answered), "missing": dict(missing)}
        )
        if status != self._status:
            self._status = status
            with suppress(OSError):
                write_json(self.folder / WAITING, status)
        if status.missing and monotonic() >= self._next_log:
            self._next_log = monotonic() + REMIND
            logger.info("%s", status.line)


@dataclass
class OutgoingMessage:
    """A message to one silo, sent more than once if necessary, and its outcome.

    Attributes:
        silo: its name.
        body: what is asked.
        attempts: how often it was sent; ``send_time``: last, in seconds since 1970.
        finished: nothing more is expected.
        answered: there is an answer, which may be unusable.
        reason, detail: why there is no usable answer, as long as there is none.
    """

    silo: str
    body: Body
    attempts: int = field(default=0, init=False)
    finished: bool = field(default=False, init=False)
    answered: bool = field(default=False, init=False)
    send_time: float = field(default=0.0, init=False)
    reason: Reason = field(default=Reason.DEADLINE, init=False)
    detail: str = field(default="", init=False)

    @property
    def audit_fields(self) -> Mapping[str, object]:
        """Its fields in the audit log: the hash of what is asked, and the round if it has one."""
        if isinstance(self.body, Task | SumRequest):
            return {"round": self.body.number, "task": self.body.digest}
        return {"question": self.body.digest}

    def message(self) -> Message:
        """The message of the current attempt."""
        return Message.of(self.body)

    def fail(self, reason: Reason, detail: str = "", retry: bool = False) -> None:
        """Record why there is no answer; ``retry``: it may be sent again, while attempts are
        left.
        """
        self.reason, self.detail = reason, detail
        self.finished = not retry or self.attempts >= ATTEMPTS

    def unused(self, number: int) -> UnusedUplink:
        """The record of a round without a usable answer."""
        return UnusedUplink(silo=self.silo, round=number, reason=self.reason, detail=self.detail)


def progress(
    messages: Mapping[int, OutgoingMessage],
    in_transit: Collection[int],
    connections: Mapping[str, Contact],
    patience: float,
) -> tuple[list[str], dict[str, str], list[str]]:
    """The state of messages, by client id in, by name out.

    Args:
        messages: all of them.
        in_transit: the client ids of those in transit, or at their silos.
        connections: the silos', by name.
        patience: seconds after which a silo that is offline is given up.

    Returns:
        The silos that have answered; those awaited, each with a short reason; and those given up.
    """
    answered, missing, abandoned = list[str](), dict[str, str](), list[str]()
    for client in sorted(messages):
        message = messages[client]
        if message.answered:
            answered.append(message.silo)
        elif message.finished:
            abandoned.append(message.silo)
        else:
            offline_since = _offline_since(connections.get(message.silo))
            offline = f"is not connected{offline_since}, given up after {patience:g} s"
            missing[message.silo] = "has not answered yet" if client in in_transit else offline
    return answered, missing, abandoned


def _offline_since(contact: Contact | None) -> str:
    return "" if contact is None or contact.connected else f" since {clock(contact.since)}"

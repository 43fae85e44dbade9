"""Sending a message to each of several silos and collecting their answers; ``waiting.json`` shows
the open ones.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, time
from typing import Any

from pomona.core.errors import QuorumError
from pomona_federation import versions
from pomona_federation.agreement import StudyAgreement
from pomona_federation.audit_log import Audit
from pomona_federation.json_store import write_json
from pomona_federation.messages.message_bodies import B, Body, Refusal
from pomona_federation.messages.message_bus import Message, MessageBus, Outgoing, Undelivered
from pomona_federation.server.contacts import Contact, contacts
from pomona_federation.server.handshake import TIMEOUT, Handshake
from pomona_federation.server.member_registry import MemberRegistry
from pomona_federation.server.study_queue import require_undrained
from pomona_federation.supervision.status_files import WAITING, WaitingStatus, clock
from pomona_federation.unused_uplinks import UNUSED, Reason, UnusedUplink

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
    _now: WaitingStatus = field(default_factory=WaitingStatus)
    _due: float = 0.0  # when the next log line is due, by the monotonic clock

    def begin(self, stage: str, seconds: float) -> None:
        """Start a stage that lasts at most ``seconds``."""
        began = time()
        self._now, self._due = WaitingStatus(stage=stage, since=began, until=began + seconds), 0.0

    def tell(
        self, answered: Collection[str], missing: Mapping[str, str], given_up: Collection[str] = ()
    ) -> None:
        """Record which silos have answered, which are awaited and why, and which are given up."""
        asked = (*answered, *missing, *given_up)
        now = self._now.model_copy(
            update={"asked": asked, "answered": tuple(answered), "missing": dict(missing)}
        )
        if now != self._now:
            self._now = now
            with suppress(OSError):
                write_json(self.folder / WAITING, now)
        if now.missing and monotonic() >= self._due:
            self._due = monotonic() + REMIND
            logger.info("%s", now.line)


@dataclass
class OutgoingMessage(ABC):
    """A message to one silo, sent more than once if necessary, and its outcome.

    Attributes:
        silo: its name.
        body: what is asked.
        attempts: how often it was sent; ``sent``: last, in seconds since 1970.
        done: nothing more is expected.
        answered: there is an answer, which may be unusable.
        reason, detail: why there is no usable answer, as long as there is none.
    """

    silo: str
    body: Body
    attempts: int = field(default=0, init=False)
    done: bool = field(default=False, init=False)
    answered: bool = field(default=False, init=False)
    sent: float = field(default=0.0, init=False)
    reason: Reason = field(default=Reason.DEADLINE, init=False)
    detail: str = field(default="", init=False)

    @property
    @abstractmethod
    def about(self) -> Mapping[str, object]:
        """Its fields in the audit log."""

    def message(self) -> Message:
        """The message of the current attempt."""
        return Message.of(self.body)

    def fail(self, reason: Reason, detail: str = "", again: bool = False) -> None:
        """Record why there is no answer; ``again``: it may be sent once more, while attempts are
        left.
        """
        self.reason, self.detail = reason, detail
        self.done = not again or self.attempts >= ATTEMPTS

    def unused(self, number: int) -> UnusedUplink:
        """The record of a round without a usable answer."""
        return UnusedUplink(silo=self.silo, round=number, reason=self.reason, detail=self.detail)


@dataclass
class MessageExchange:
    """Finds the nodes of silos, sends them messages, and collects their answers.

    Attributes:
        kit_run: the kit's folder ``run/``.
        run: id of the run.
        pause: seconds between looks for answers.
    """

    agreed: StudyAgreement
    kit_run: Path
    run: str
    registry: MemberRegistry
    bus: MessageBus
    audit: Audit
    pause: float
    handshake: Handshake = field(init=False)
    waiting: WaitingFile = field(init=False)

    def __post_init__(self) -> None:
        self.handshake = Handshake(self.agreed, self.run, self.registry, self.bus, self.audit)
        self.waiting = WaitingFile(self.registry.path.parent)

    @property
    def known(self) -> frozenset[int]:
        """The places whose nodes have identified themselves."""
        return frozenset(self.handshake.nodes)

    def gather(self, awaited: Callable[[Collection[str]], Collection[str]] = frozenset) -> None:
        """Wait for all current members, through arrivals and revocations; a node asked at the end
        has time to answer.

        It does not wait for silos that are not ``awaited``, such as one that declines meanwhile,
        nor for those whose versions, as last noted, do not work with the server's.

        Raises QuorumError, and Paused if the server is drained.
        """
        wait, quorum = self.agreed.study.wait, self.agreed.quorum
        limit = monotonic() + wait
        self.waiting.begin("gathering silos", wait)
        while True:
            require_undrained(self.kit_run)
            self.handshake.greet()
            everybody, away = self._members(awaited)
            incompatible = self._incompatible
            missing = [name for name in away if name not in incompatible]
            if not missing or monotonic() > limit + (TIMEOUT if self.handshake.asked else 0.0):
                break
            here = [e.name for place, e in enumerate(self.registry.entries) if place in self.known]
            self.waiting.tell(here, dict.fromkeys(missing, "has not identified itself"))
            self.bus.wait(self.pause)
        if len(everybody) - len(away) < quorum:
            for name in away:
                self.audit.write(UNUSED, **self.away(name, 0).fields)
            raise QuorumError(
                f"{len(everybody) - len(away)} of {len(everybody)} silos came within {wait:g} s, "
                f"{quorum} are needed (missing: {', '.join(sorted(away))}); have them started, "
                "then resume"
            )

    def away(self, name: str, number: int) -> UnusedUplink:
        """Why a member that has not identified itself takes no part in a round."""
        fields: dict[str, Any] = {"silo": name, "round": number}
        if installed := self._incompatible.get(name):
            return UnusedUplink(**fields, reason=Reason.VERSION, detail=installed)
        if refusal := self.handshake.turned_away.get(name):
            return refusal.model_copy(update=fields)
        contact = contacts(self.kit_run).get(name)
        connected = contact is not None and contact.connected
        reason = Reason.NOT_IDENTIFIED if connected else Reason.NOT_CONNECTED
        return UnusedUplink(**fields, reason=reason)

    @property
    def _incompatible(self) -> dict[str, str]:
        """The versions of the silos that do not work with the server's, by name."""
        return {
            name: str(installed)
            for name, installed in versions.noted(self.kit_run).items()
            if not installed.works_with(versions.own())
        }

    def _members(
        self, awaited: Callable[[Collection[str]], Collection[str]]
    ) -> tuple[list[str], list[str]]:
        """The current members that are ``awaited``, and those of them that have not identified
        themselves.
        """
        members = {
            entry.name: place
            for place, entry in enumerate(self.registry.entries)
            if not entry.revoked
        }
        wanted = awaited(list(members))
        everybody = [name for name in members if name in wanted]
        return everybody, [name for name in everybody if members[name] not in self.known]

    def send_all(
        self,
        stage: str,
        messages: Mapping[int, OutgoingMessage],
        hear: Callable[[int, Message], None],
    ) -> None:
        """Send messages and collect answers until every message is done or the deadline has passed.

        A silo whose node is offline is given up ``patience`` seconds after its last sign of life. A
        message is sent again to a node that has started since it was sent.

        Args:
            stage: its name, shown while waiting.
            messages: what to send, by the places of silos.
            hear: called with the place and its node's reply. Verifies it, and records the outcome
                in the message.
        """
        began, deadline = monotonic(), self.agreed.study.deadline
        last_seen, sent = dict.fromkeys(messages, began), dict[str, int]()
        self.waiting.begin(stage, deadline)
        while (open_ := _open(messages)) and monotonic() < began + deadline:
            online, now, nodes = self.bus.online(), monotonic(), self.handshake.nodes
            if any(nodes.get(place) not in online for place in open_):
                self.handshake.ask()  # a silo may be back under another node
            due = [p for p in open_ if p not in sent.values() and nodes.get(p) in online]
            sent |= self._send({place: messages[place] for place in due}, began + deadline - now)
            got = self.bus.fetch([*sent, *self.handshake.tickets])
            came = bool(got)
            self._take(got, sent, messages, hear)
            connections = contacts(self.kit_run)
            self._drop_lost(sent, messages, connections)
            last_seen |= {place: now for place in _open(messages) if nodes.get(place) in online}
            offline = {p: now - at for p, at in last_seen.items() if p not in sent.values()}
            self._give_up(messages, offline, now - began, connections)
            self.waiting.tell(*progress(messages, sent.values(), connections))
            if not came and _open(messages):
                self.bus.wait(self.pause)
        for place in _open(messages):
            messages[place].done = True
        self.waiting.tell(*progress(messages, (), {}))

    def verified(
        self, place: int, sent: OutgoingMessage, kind: type[B], message: Message
    ) -> B | Refusal:
        """The body of an answer, signed by the silo of a place. Raises ProtocolError."""
        body = message.read(kind, Refusal)
        self.registry.require_signed(place, body.kind, body.statement, message.signature)
        versions.note(self.registry.path.parent, sent.silo, message.versions)
        return body

    def _take(
        self,
        got: dict[str, Message | Undelivered],
        sent: dict[str, int],
        messages: Mapping[int, OutgoingMessage],
        hear: Callable[[int, Message], None],
    ) -> None:
        """Process answers, and take their tickets out of those ``sent``."""
        for ticket in tuple(got):
            answer = got.pop(ticket)  # dropped once processed: it may be large
            if ticket not in sent:
                self.handshake.meet(ticket, answer)
            elif isinstance(answer, Undelivered):
                messages[sent.pop(ticket)].fail(answer.reason, answer.detail, answer.again)
            else:
                hear(sent.pop(ticket), answer)

    def _drop_lost(
        self,
        sent: dict[str, int],
        messages: Mapping[int, OutgoingMessage],
        connections: Mapping[str, Contact],
    ) -> None:
        """Take out of those ``sent`` the tickets of messages to nodes that have started since."""
        for ticket, place in tuple(sent.items()):
            message = messages[place]
            contact = connections.get(message.silo)
            if contact and contact.connected and contact.since > message.sent:
                del sent[ticket]
                message.fail(Reason.NODE_RESTARTED, again=True)

    def _give_up(
        self,
        messages: Mapping[int, OutgoingMessage],
        offline: Mapping[int, float],
        lasts: float,
        connections: Mapping[str, Contact],
    ) -> None:
        """Give up the silos without a sign of life for longer than ``patience``.

        ``offline``: seconds since the node of a place was online; 0 if it is. The last request in
        ``connections`` may be earlier than that, as SuperLink notices late; ``lasts``: seconds
        since the messages were first sent.
        """
        for place in _open(messages):
            seconds = offline.get(place, 0.0)
            if seconds and (contact := connections.get(messages[place].silo)):
                seconds = max(seconds, min(lasts, time() - contact.seen))
            if seconds > self.agreed.study.patience:
                messages[place].fail(Reason.NOT_CONNECTED, f"no sign of life for {seconds:.0f} s")

    def _send(self, due: Mapping[int, OutgoingMessage], seconds: float) -> dict[str, int]:
        """Send messages to the silos of these places, all at once. Returns the places by ticket."""
        outgoing = []
        for place, one in due.items():
            one.attempts, one.sent = one.attempts + 1, time()
            message = one.message()
            self.audit.write("sent", silo=one.silo, **one.about, bytes=message.size)
            outgoing.append(Outgoing(self.handshake.nodes[place], message, seconds))
        return dict(zip(self.bus.send(outgoing), due, strict=True))


def _open(messages: Mapping[int, OutgoingMessage]) -> list[int]:
    return [place for place, one in messages.items() if not one.done]


def progress(
    messages: Mapping[int, OutgoingMessage],
    sent: Collection[int],
    connections: Mapping[str, Contact],
) -> tuple[list[str], dict[str, str], list[str]]:
    """The state of messages, by place in, by name out.

    Args:
        messages: all of them.
        sent: the places of those in transit, or at their silos.
        connections: the silos', by name.

    Returns:
        The silos that have answered; those awaited, each with a short reason; and those given up.
    """
    answered, missing, given_up = list[str](), dict[str, str](), list[str]()
    for place in sorted(messages):
        one = messages[place]
        if one.answered:
            answered.append(one.silo)
        elif one.done:
            given_up.append(one.silo)
        else:
            offline = f"is not connected{_since(connections.get(one.silo))}"
            missing[one.silo] = "has not answered yet" if place in sent else offline
    return answered, missing, given_up


def _since(contact: Contact | None) -> str:
    return "" if contact is None or contact.connected else f" since {clock(contact.since)}"

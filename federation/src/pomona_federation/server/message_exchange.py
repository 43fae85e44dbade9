"""Sending a message to each of several silos, and collecting their answers."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, time
from typing import Any

from pomona.core.errors import QuorumError
from pomona_federation import versions
from pomona_federation.agreement import StudyAgreement
from pomona_federation.audit_log import Audit
from pomona_federation.messages.message_bodies import B, Refusal
from pomona_federation.messages.message_bus import Message, MessageBus, Outgoing, Undelivered
from pomona_federation.server.contacts import Contact, contacts
from pomona_federation.server.handshake import TIMEOUT, Handshake
from pomona_federation.server.member_registry import MemberRegistry, member_ids
from pomona_federation.server.outgoing_messages import OutgoingMessage, WaitingFile, progress
from pomona_federation.server.study_queue import require_undrained
from pomona_federation.unused_uplinks import UNUSED, Reason, UnusedUplink


@dataclass
class MessageExchange:
    """Finds the nodes of silos, sends them messages, and collects their answers.

    Attributes:
        kit_run: the kit's folder ``run/``.
        run: id of the run.
        pause: seconds between two polls for answers.
    """

    terms: StudyAgreement
    kit_run: Path
    run: str
    registry: MemberRegistry
    bus: MessageBus
    audit: Audit
    pause: float
    handshake: Handshake = field(init=False)
    waiting: WaitingFile = field(init=False)

    def __post_init__(self) -> None:
        self.handshake = Handshake(self.terms, self.run, self.registry, self.bus, self.audit)
        self.waiting = WaitingFile(self.registry.path.parent)

    @property
    def identified(self) -> frozenset[int]:
        """The clients whose nodes have identified themselves."""
        return frozenset(self.handshake.nodes)

    def gather(self, awaited: Callable[[Collection[str]], Collection[str]] = frozenset) -> None:
        """Wait for all current members, through arrivals and revocations; a node asked at the end
        has time to answer.

        It does not wait for silos that are not ``awaited``, such as one that declines meanwhile,
        nor for those whose versions, as last noted, do not work with the server's.

        Raises QuorumError, and Paused if the server is drained.
        """
        wait, quorum = self.terms.study.wait, self.terms.quorum
        limit = monotonic() + wait
        self.waiting.start("gathering silos", wait)
        while True:
            require_undrained(self.kit_run)
            self.handshake.greet()
            expected, absent = self._members(awaited)
            incompatible = self._incompatible
            missing = [name for name in absent if name not in incompatible]
            grace = TIMEOUT if self.handshake.pending_nodes else 0.0
            if not missing or monotonic() > limit + grace:
                break
            identified = [self.registry.entries[client].name for client in sorted(self.identified)]
            self.waiting.update(identified, dict.fromkeys(missing, "has not identified itself"))
            self.bus.wait(self.pause)
        if len(expected) - len(absent) < quorum:
            for name in absent:
                self.audit.write(UNUSED, **self.absence(name, 0).fields)
            raise QuorumError(
                f"{len(expected) - len(absent)} of {len(expected)} silos answered within {wait:g} "
                f"s, but {quorum} are needed (missing: {', '.join(sorted(absent))}); have them "
                "start, then resume"
            )

    def absence(self, name: str, number: int) -> UnusedUplink:
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
            if not installed.works_with(versions.installed())
        }

    def _members(
        self, awaited: Callable[[Collection[str]], Collection[str]]
    ) -> tuple[list[str], list[str]]:
        """The current members that are ``awaited``, and those of them that have not identified
        themselves.
        """
        members = member_ids(self.registry.entries)
        awaited_names = awaited(list(members))
        expected = [name for name in members if name in awaited_names]
        return expected, [name for name in expected if members[name] not in self.identified]

    def send_all(
        self,
        stage: str,
        messages: Mapping[int, OutgoingMessage],
        on_answer: Callable[[int, Message], None],
    ) -> None:
        """Send messages and collect answers until every message is done or the deadline has passed.

        A silo whose node is offline is given up ``patience`` seconds after its last sign of life. A
        message is sent again to a node that has started since it was sent.

        Args:
            stage: its name, shown while waiting.
            messages: what to send, by client id.
            on_answer: called with a client id and its node's reply. Verifies it, and records the
                outcome in the message.
        """
        start_time, deadline = monotonic(), self.terms.study.deadline
        patience = self.terms.study.patience
        last_online, in_transit = dict.fromkeys(messages, start_time), dict[str, int]()
        self.waiting.start(stage, deadline)
        while (pending := _open(messages)) and monotonic() < start_time + deadline:
            online, current_time, nodes = self.bus.online(), monotonic(), self.handshake.nodes
            if any(nodes.get(client) not in online for client in pending):
                self.handshake.send_hellos()  # a silo may be back under another node
            self._send(messages, in_transit, online, start_time + deadline - current_time)
            replies = self.bus.fetch([*in_transit, *self.handshake.tickets])
            progressed = bool(replies)
            self._process(replies, in_transit, messages, on_answer)
            connections = contacts(self.kit_run)
            self._drop_lost(in_transit, messages, connections)
            last_online |= {
                client: current_time for client in _open(messages) if nodes.get(client) in online
            }
            offline = {
                client: current_time - online_at
                for client, online_at in last_online.items()
                if client not in in_transit.values()
            }
            self._abandon_offline(messages, offline, current_time - start_time, connections)
            self.waiting.update(*progress(messages, in_transit.values(), connections, patience))
            if not progressed and _open(messages):
                self.bus.wait(self.pause)
        for client in _open(messages):
            messages[client].finished = True
        self.waiting.update(*progress(messages, (), {}, patience))

    def verified(
        self, client: int, outgoing: OutgoingMessage, body_type: type[B], message: Message
    ) -> B | Refusal:
        """The body of an answer, signed by the client's silo. Raises ProtocolError."""
        body = message.read(body_type, Refusal)
        self.registry.require_signed(client, body.message_type, body.statement, message.signature)
        versions.note(self.registry.path.parent, outgoing.silo, message.versions)
        return body

    def _process(
        self,
        replies: dict[str, Message | Undelivered],
        in_transit: dict[str, int],
        messages: Mapping[int, OutgoingMessage],
        on_answer: Callable[[int, Message], None],
    ) -> None:
        """Process answers, and take their tickets out of those ``in_transit``."""
        for ticket in tuple(replies):
            reply = replies.pop(ticket)  # dropped once processed: it may be large
            if ticket not in in_transit:
                self.handshake.receive(ticket, reply)
            elif isinstance(reply, Undelivered):
                messages[in_transit.pop(ticket)].fail(reply.reason, reply.detail, reply.retry)
            else:
                on_answer(in_transit.pop(ticket), reply)

    def _drop_lost(
        self,
        in_transit: dict[str, int],
        messages: Mapping[int, OutgoingMessage],
        connections: Mapping[str, Contact],
    ) -> None:
        """Drop the tickets ``in_transit`` of messages to nodes that have started since."""
        for ticket, client in tuple(in_transit.items()):
            message = messages[client]
            contact = connections.get(message.silo)
            if contact and contact.connected and contact.since > message.send_time:
                del in_transit[ticket]
                message.fail(Reason.NODE_RESTARTED, retry=True)

    def _abandon_offline(
        self,
        messages: Mapping[int, OutgoingMessage],
        offline: Mapping[int, float],
        elapsed: float,
        connections: Mapping[str, Contact],
    ) -> None:
        """Give up the silos without a sign of life for longer than ``patience``.

        ``offline``: seconds since a client's node was online; 0 if it is. The last request in
        ``connections`` may be earlier than that, as SuperLink notices late; ``elapsed``: seconds
        since the messages were first sent.
        """
        for client in _open(messages):
            seconds = offline.get(client, 0.0)
            if seconds and (contact := connections.get(messages[client].silo)):
                seconds = max(seconds, min(elapsed, time() - contact.last_request))
            if seconds > self.terms.study.patience:
                messages[client].fail(Reason.NOT_CONNECTED, f"no sign of life for {seconds:.0f} s")

    def _send(
        self,
        messages: Mapping[int, OutgoingMessage],
        in_transit: dict[str, int],
        online: Collection[int],
        seconds: float,
    ) -> None:
        """Send what is not ``in_transit`` to the nodes that are online, all at once, and enter its
        tickets there.
        """
        nodes, sent_clients = self.handshake.nodes, set(in_transit.values())
        ready = [i for i in _open(messages) if i not in sent_clients and nodes.get(i) in online]
        envelopes = []
        for client in ready:
            outgoing = messages[client]
            outgoing.attempts, outgoing.send_time = outgoing.attempts + 1, time()
            message = outgoing.message()
            self.audit.write(
                "sent", silo=outgoing.silo, **outgoing.audit_fields, bytes=message.size
            )
            envelopes.append(Outgoing(nodes[client], message, seconds))
        in_transit.update(zip(self.bus.send(envelopes), ready, strict=True))


def _open(messages: Mapping[int, OutgoingMessage]) -> list[int]:
    return [client for client, message in messages.items() if not message.finished]

"""The silos' arrival: each Flower node must sign a fresh nonce with its silo's key; and the id of
their run.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Annotated

from pydantic import Field, StringConstraints

from pomona.core.bounds import MAX_CLIENTS, ClientId
from pomona.core.errors import ConfigError, ProtocolError
from pomona.core.settings import Settings
from pomona_federation.agreement import StudyAgreement
from pomona_federation.audit_log import Audit
from pomona_federation.json_store import read_json, write_json
from pomona_federation.messages.message_bodies import Hello, HelloReply, Refusal, Token
from pomona_federation.messages.message_bus import (
    Message,
    MessageBus,
    Outgoing,
    Undelivered,
    untrusted,
)
from pomona_federation.server.consents import Consents
from pomona_federation.server.member_registry import MemberRegistry
from pomona_federation.unused_uplinks import UNUSED, Reason, UnusableError, UnusedUplink
from pomona_federation.versions import Versions, installed, note, require_begun

NODES = "nodes.json"
TIMEOUT = 120.0  # seconds until a silent node is asked again, as it may have been restarted
RESTART = 5.0  # seconds until one is whose process ended, doubled by each further end
LIFETIME = 600.0  # seconds in which an answer counts: a process starts, and its data is read
MAX_PENDING = 2  # hellos in transit to a node: it answers one after the other

# Flower's: up to 2^64, so not as a number
NodeId = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,20}$")]


class KnownNodes(Settings):
    """The nodes of silos by place, in ``nodes.json``: Flower gives a key the same node again."""

    nodes: dict[ClientId, NodeId] = Field({}, max_length=MAX_CLIENTS)


@dataclass(frozen=True)
class OpenHello:
    """A hello to a node, whose answer counts until it ``expires``."""

    node: int
    hello: Hello
    expires: float


@dataclass
class Handshake:
    """Asks unknown nodes for their identity, and assigns them their silos' client ids.

    A node identified before a restart of the server is not asked again: whatever it answers is
    trusted only as far as its silo has signed it.

    Attributes:
        run: id of the run.
        nodes: the node of every identified silo, by client id; the last one if there were several.
        round: the current one; 0 before the first.
        turned_away: the last refusal of, or by, each silo or node that is not identified.
    """

    terms: StudyAgreement
    run: str
    registry: MemberRegistry
    bus: MessageBus
    audit: Audit
    nodes: dict[int, int] = field(default_factory=dict)
    round: int = 0
    turned_away: dict[str, UnusedUplink] = field(default_factory=dict)
    _retry_at: dict[int, float] = field(default_factory=dict)  # node -> when it may be asked again
    _delays: dict[int, float] = field(default_factory=dict)  # node -> the last one after an end
    _open: dict[str, OpenHello] = field(default_factory=dict)  # by ticket
    _previous: Mapping[ClientId, int] = field(init=False)

    def __post_init__(self) -> None:
        """Load the silos' nodes from before a restart."""
        remedy = "remove it: silos are asked again who they are"
        known_nodes = read_json(KnownNodes, self._file, remedy=remedy) or KnownNodes()
        self._previous = {client: int(node) for client, node in known_nodes.nodes.items()}

    @property
    def _file(self) -> Path:
        return self.registry.path.parent / NODES

    @property
    def tickets(self) -> Sequence[str]:
        """Tickets of the hellos in transit."""
        return tuple(self._open)

    @property
    def pending_nodes(self) -> Sequence[int]:
        """The nodes that they are for."""
        return tuple(pending.node for pending in self._open.values())

    def send_hellos(self) -> None:
        """Send a hello to each unknown node; one that does not answer in time is asked again,
        and either answer counts.
        """
        now, online = monotonic(), self.bus.online()
        self._recall(online)
        identified = set(self.nodes.values())
        self._open = {
            t: o for t, o in self._open.items() if o.expires > now and o.node not in identified
        }
        hellos = [
            OpenHello(node, self._hello(), now + LIFETIME)
            for node in sorted(online - identified)
            if self._retry_at.get(node, 0.0) <= now and self.pending_nodes.count(node) < MAX_PENDING
        ]
        self._retry_at |= {hello.node: now + TIMEOUT for hello in hellos}
        tickets = self.bus.send([Outgoing(o.node, Message.of(o.hello), LIFETIME) for o in hellos])
        self._open |= dict(zip(tickets, hellos, strict=True))

    def _recall(self, online: frozenset[int]) -> None:
        """Reassign their silos' client ids to nodes that are back after a restart of the server."""
        for client, entry in enumerate(self.registry.entries):
            node = self._previous.get(client)
            is_member = node in online and entry.size is not None and not entry.revoked
            if node is not None and is_member and client not in self.nodes:
                self.nodes[client] = node
                self.audit.write("present", silo=entry.name, samples=entry.size, node=str(node))

    def _hello(self) -> Hello:
        founders, entries = len(self.terms.federation.silo), self.registry.entries
        newcomers = {entry.name: i for i, entry in enumerate(entries) if i >= founders}
        nonce = secrets.token_hex(16)
        return Hello(agreement=self.terms.agreement, run=self.run, nonce=nonce, newcomers=newcomers)

    def greet(self) -> None:
        """Ask every unknown node for its identity, and process the replies that have come, without
        waiting.
        """
        self.send_hellos()
        for ticket, message in self.bus.fetch(self.tickets).items():
            self.receive(ticket, message)

    def receive(self, ticket: str, message: Message | Undelivered) -> None:
        """Assign a node its silo's client id, by the key that signed."""
        pending = self._open.pop(ticket)
        if isinstance(message, Undelivered) and message.retry:
            # a silo may lack the memory for its data: each attempt reads them again
            delay = min(2 * self._delays.get(pending.node, RESTART / 2), TIMEOUT)
            self._delays[pending.node] = delay
            self._retry_at[pending.node] = monotonic() + delay
        if isinstance(message, Undelivered) or pending.node in self.nodes.values():
            return
        try:
            with untrusted(Reason.NOT_A_MEMBER):
                self._identify(pending.node, pending.hello, message)
        except UnusableError as fault:
            self._turn_away(f"node {pending.node}", fault)

    def _identify(self, node: int, hello: Hello, message: Message) -> None:
        """Raise ProtocolError, or another error, unless a silo with a place in the registry has
        signed.
        """
        reply: HelloReply | Refusal = message.read(HelloReply, Refusal)
        try:
            client = self.registry.client_id(reply.silo)
            self.registry.require_signed(
                client, reply.message_type, reply.statement, message.signature
            )
        except (ConfigError, ProtocolError):
            if isinstance(reply, Refusal):
                raise ProtocolError(
                    f"{reply.fault} (it names {reply.silo}, which did not sign it)"
                ) from None
            raise
        note(self.registry.path.parent, reply.silo, message.versions)
        if isinstance(reply, Refusal):
            decision = Consents(self.registry.path.parent).unused(reply.silo)
            fault = UnusableError(decision, "") if decision else message.refused(reply)
            self._turn_away(reply.silo, fault)
            return
        if (reply.nonce, reply.run, reply.agreement) != (hello.nonce, hello.run, hello.agreement):
            raise ProtocolError(f"{reply.silo}: an answer to a different hello")
        if self.registry.entries[client].revoked:
            raise ProtocolError(f"{reply.silo} was revoked")
        self.registry.register(client, reply.samples)
        self.nodes[client] = node
        for sender in (reply.silo, f"node {node}"):
            self.turned_away.pop(sender, None)
        nodes = {place: str(n) for place, n in {**self._previous, **self.nodes}.items()}
        write_json(self._file, KnownNodes(nodes=nodes))
        self.audit.write("present", silo=reply.silo, samples=reply.samples, node=str(node))

    def _turn_away(self, sender: str, fault: UnusableError) -> None:
        """Record a rejected sender: a silo is named only if its key has signed; otherwise the node
        is named.
        """
        unused = UnusedUplink(silo=sender, round=self.round, reason=fault.reason, detail=str(fault))
        self.turned_away[sender] = unused
        self.audit.write(UNUSED, **unused.fields)


class Identity(Settings):
    """A run's id and the versions that it was started with, in ``run.json``."""

    run: Token
    begun: Versions | None = None


def run_id(folder: Path) -> str:
    """The run's id, drawn once.

    Raises StorageError for a damaged file, CheckpointError for another version's.
    """
    path = folder / "run.json"
    identity = read_json(Identity, path)
    if identity is None:
        identity = Identity(run=secrets.token_hex(8), begun=installed())
        write_json(path, identity)
    require_begun(identity.begun, "the run")
    return identity.run

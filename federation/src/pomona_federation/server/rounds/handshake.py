"""Match Flower nodes to silos: each node is asked and must sign a fresh nonce with its silo's key."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Annotated

from pydantic import Field, StringConstraints

from pomona.core.bounds import PLACES, Place
from pomona.core.errors import ConfigError, ProtocolError
from pomona.core.settings import Settings
from pomona_federation.agreement import Federation
from pomona_federation.audit import Audit
from pomona_federation.json_store import read_json, write_json
from pomona_federation.messages.message_bodies import Hello, HelloReply, Refusal
from pomona_federation.messages.message_bus import Message, MessageBus, Outgoing, Undelivered, untrusted
from pomona_federation.server.members.member_registry import MemberRegistry
from pomona_federation.versions import note

NODES = "nodes.json"
TIMEOUT = 120.0  # seconds that a silo may take to say who it is: a process starts, and its data is read


NodeId = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,20}$")]  # of Flower: up to 2^64, so not as a number


class KnownNodes(Settings):
    """The nodes of silos by place, in ``nodes.json``: Flower gives a key the same node again."""

    nodes: dict[Place, NodeId] = Field({}, max_length=PLACES)


@dataclass
class Handshake:
    """Asks unknown nodes who they are, and gives them their silos' places.

    A node that had said so before a restart of the server is not asked again: of whatever it answers, nothing is
    believed but what its silo has signed.

    Attributes:
        run: id of the run.
        nodes: the node of every silo that has said who it is, by place; the last one where there were several.
    """

    federation: Federation
    run: str
    registry: MemberRegistry
    bus: MessageBus
    audit: Audit
    nodes: dict[int, int] = field(default_factory=dict)
    _again: dict[int, float] = field(default_factory=dict)  # node -> when it may be asked again
    _asked: dict[str, tuple[int, Hello]] = field(default_factory=dict)  # ticket -> whom, what
    _before: Mapping[Place, int] = field(init=False)

    def __post_init__(self) -> None:
        """Read which nodes the silos had before a restart."""
        found = read_json(KnownNodes, self._file, remedy="remove it: silos are asked again who they are")
        self._before = {place: int(node) for place, node in (found or KnownNodes()).nodes.items()}

    @property
    def _file(self) -> Path:
        return self.registry.path.parent / NODES

    @property
    def tickets(self) -> Sequence[str]:
        """Of the hellos that are on their way."""
        return tuple(self._asked)

    @property
    def asked(self) -> Sequence[int]:
        """The nodes that they are for."""
        return tuple(node for node, _ in self._asked.values())

    def ask(self) -> None:
        """Send a hello to each unknown node; one that did not answer in time is asked once more."""
        now, online = monotonic(), self.bus.online()
        self._recall(online)
        self._asked = {ticket: to for ticket, to in self._asked.items() if self._again[to[0]] > now}
        unknown = sorted(online - set(self.nodes.values()))
        asked = {node: self._hello() for node in unknown if self._again.get(node, 0.0) <= now}
        self._again |= dict.fromkeys(asked, now + TIMEOUT)
        tickets = self.bus.send([Outgoing(node, Message.of(hello), TIMEOUT) for node, hello in asked.items()])
        self._asked |= dict(zip(tickets, asked.items(), strict=True))

    def _recall(self, online: frozenset[int]) -> None:
        """Give nodes that are back after a restart of the server their silos' places."""
        for place, entry in enumerate(self.registry.entries):
            node = self._before.get(place)
            known = node in online and entry.size is not None and not entry.revoked
            if node is not None and known and place not in self.nodes:
                self.nodes[place] = node
                self.audit.write("present", silo=entry.name, samples=entry.size, node=str(node))

    def _hello(self) -> Hello:
        return Hello(agreement=self.federation.agreement, run=self.run, nonce=secrets.token_hex(16))

    def greet(self) -> dict[str, str]:
        """Ask every unknown node who it is, and hear what has come. Waits for nobody: later answers are heard later.

        Returns who was turned away, and why.
        """
        self.ask()
        turned_away: dict[str, str] = {}
        for ticket, got in self.bus.fetch(self.tickets).items():
            turned_away |= self.meet(ticket, got)
        return turned_away

    def meet(self, ticket: str, got: Message | Undelivered) -> dict[str, str]:
        """Give a node its silo's place, by the key that signed. Returns who was turned away, and why."""
        node, hello = self._asked.pop(ticket)
        if isinstance(got, Undelivered):
            return {}
        try:
            with untrusted():
                return self._met(node, hello, got)
        except ProtocolError as fault:
            return self._turned_away(f"node {node}", str(fault))

    def _met(self, node: int, hello: Hello, got: Message) -> dict[str, str]:
        """Raises ProtocolError, or anything else, unless a silo with a place in the registry has signed."""
        reply: HelloReply | Refusal = got.read(HelloReply, Refusal)
        try:
            place = self.registry.place(reply.silo)
            self.registry.require_signed(place, reply.kind, reply.statement, got.signature)
        except (ConfigError, ProtocolError):
            if isinstance(reply, Refusal):
                raise ProtocolError(f"{reply.fault} (not signed by {reply.silo}, whose name it gives)") from None
            raise
        note(self.registry.path.parent, reply.silo, got.versions)
        if isinstance(reply, Refusal):
            return self._turned_away(reply.silo, reply.fault)
        if (reply.nonce, reply.run, reply.agreement) != (hello.nonce, hello.run, hello.agreement):
            raise ProtocolError(f"{reply.silo}: an answer to another hello")
        if self.registry.entries[place].revoked:
            raise ProtocolError(f"{reply.silo} was revoked")
        self.registry.register(place, reply.samples)
        self.nodes[place] = node
        write_json(self._file, KnownNodes(nodes={p: str(n) for p, n in {**self._before, **self.nodes}.items()}))
        self.audit.write("present", silo=reply.silo, samples=reply.samples, node=str(node))
        return {}

    def _turned_away(self, who: str, reason: str) -> dict[str, str]:
        """A silo is named only where its key has signed; anybody else is the node that spoke."""
        self.audit.write("refused", silo=who, reason=reason)
        return {who: reason}

"""Who is behind which node: found out by asking, believed for a signature, since a node's number says nothing."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

from pomona.core.errors import ConfigError, ProtocolError
from pomona.deploy.agreement import Federation
from pomona.deploy.audit import Audit
from pomona.deploy.message_bus import Message, MessageBus, Undelivered
from pomona.deploy.messages import Greeting, Hello, Refusal, read, statement
from pomona.deploy.server.member_registry import MemberRegistry
from pomona.deploy.server.refusals import foreign

GREETING = 120.0  # seconds that a silo may take to say who it is: a process starts, and its data is read


@dataclass
class Handshake:
    """Where nodes that nobody knows yet are asked, and get their silos' places.

    Attributes:
        run: id of the run.
        nodes: the node of every silo that has said who it is, by place; the last one where there were several.
    """

    federation: Federation
    run: str
    book: MemberRegistry
    post: MessageBus
    audit: Audit
    nodes: dict[int, int] = field(default_factory=dict)
    _again: dict[int, float] = field(default_factory=dict)  # node -> when it may be asked again
    _asked: dict[str, tuple[int, Hello]] = field(default_factory=dict)  # ticket -> whom, what

    @property
    def tickets(self) -> Sequence[str]:
        """Of the hellos that are on their way."""
        return tuple(self._asked)

    def ask(self) -> None:
        """Send a hello to each node that nobody knows; one that did not answer in time is asked once more."""
        now = monotonic()
        self._asked = {ticket: to for ticket, to in self._asked.items() if self._again[to[0]] > now}
        for node in self.post.online() - set(self.nodes.values()):
            if self._again.get(node, 0.0) <= now:
                self._again[node] = now + GREETING
                hello = Hello(agreement=self.federation.agreement, run=self.run, nonce=secrets.token_hex(16))
                ticket = self.post.send(node, Message("hello", hello.model_dump_json()), GREETING)
                self._asked[ticket] = node, hello

    def meet(self, ticket: str, got: Message | Undelivered) -> dict[str, str]:
        """Give a node its silo's place, by the key that signed. Returns who was turned away, and why."""
        node, hello = self._asked.pop(ticket)
        if isinstance(got, Undelivered):
            return {}
        try:
            with foreign():
                return self._met(node, hello, got)
        except ProtocolError as fault:
            return self._turned_away(f"node {node}", str(fault))

    def _met(self, node: int, hello: Hello, got: Message) -> dict[str, str]:
        """Raises ProtocolError, or anything else, for what nobody with a place in the book has signed."""
        if got.kind == "refused":
            refused: Refusal = read(Refusal, got.body)
            try:
                self._signer(refused, "refused", got)
            except (ConfigError, ProtocolError):
                raise ProtocolError(f"{refused.fault} (not signed by {refused.silo}, whose name it gives)") from None
            return self._turned_away(refused.silo, refused.fault)
        greeting: Greeting = read(Greeting, got.body)
        place = self._signer(greeting, "greeting", got)
        if (greeting.nonce, greeting.run, greeting.agreement) != (hello.nonce, hello.run, hello.agreement):
            raise ProtocolError(f"{greeting.silo}: an answer to another hello")
        if self.book.entries[place].revoked:
            raise ProtocolError(f"{greeting.silo} was revoked")
        self.book.register(place, greeting.samples)
        self.nodes[place] = node
        self.audit.write("present", silo=greeting.silo, samples=greeting.samples, node=str(node))
        return {}

    def _signer(self, said: Greeting | Refusal, kind: str, got: Message) -> int:
        """The place of the silo that a message names. Raises ConfigError, ProtocolError unless that silo signed it."""
        place = self.book.place(said.silo)
        self.book.require_signed(place, kind, statement(said), got.signature)
        return place

    def _turned_away(self, who: str, reason: str) -> dict[str, str]:
        """A silo is named only where its key has signed; anybody else is the node that spoke."""
        self.audit.write("refused", silo=who, reason=reason)
        return {who: reason}

"""Messages between the server and silos, and the bus that carries them: Flower in a federation, a
stand-in in tests.
"""

import logging
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, overload

from pomona.core.bounds import plain
from pomona.core.errors import PomonaError, ProtocolError, StorageError
from pomona_federation.keys import Signer
from pomona_federation.messages.message_bodies import B, Body, Refusal, read
from pomona_federation.unused_uplinks import Reason, UnusableError, of_refusal
from pomona_federation.versions import Versions, installed, require_understood

A = TypeVar("A", bound=Body)
C = TypeVar("C", bound=Body)
D = TypeVar("D", bound=Body)
logger = logging.getLogger("pomona")


@dataclass(frozen=True)
class Message:
    """A message: its body in JSON, its sender's signature, rows or an uplink as bytes by name, its
    sender's version.
    """

    kind: str
    body: str
    signature: str = ""
    enclosed: Mapping[str, bytes | memoryview] = field(default_factory=dict)
    versions: Versions | None = field(default_factory=installed)

    @classmethod
    def of(
        cls,
        body: Body,
        signer: Signer | None = None,
        enclosed: Mapping[str, bytes | memoryview] | None = None,
    ) -> "Message":
        """A message with this body, signed if a signer is given."""
        signature = signer.sign(body.kind, body.statement) if signer else ""
        return cls(body.kind, body.model_dump_json(), signature, enclosed or {})

    @overload
    def read(self, a: type[A], b: type[B], /) -> A | B: ...

    @overload
    def read(self, a: type[A], b: type[B], c: type[C], /) -> A | B | C: ...

    @overload
    def read(self, a: type[A], b: type[B], c: type[C], d: type[D], /) -> A | B | C | D: ...

    def read(self, *body_types: type[Body]) -> Body:
        """The body, which must be of one of these kinds.

        Raises ProtocolError, also for an incompatible version.

        A refusal is read whatever its sender's version, since a version mismatch may be its very
        reason.
        """
        if self.kind != Refusal.kind:
            with untrusted(Reason.VERSION):
                require_understood(self.versions)
        for body_type in body_types:
            if self.kind == body_type.kind:
                return read(body_type, self.body)
        raise ProtocolError(
            f"a message of kind {plain(self.kind, 40)!r}; check that both sides run the same "
            "version"
        )

    def refused(self, refusal: Refusal) -> UnusableError:
        """A silo's refusal, which this message is, as an error."""
        understood = self.versions is None or self.versions.works_with(installed())
        reason = of_refusal(refusal.fault) if understood else Reason.VERSION
        return UnusableError(reason, refusal.fault)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return (
            len(self.body)
            + len(self.signature)
            + sum(len(k) + len(v) for k, v in self.enclosed.items())
        )


@dataclass(frozen=True)
class Undelivered:
    """No answer will come; ``again``: the node is gone, so the message may be sent again."""

    reason: Reason
    detail: str
    again: bool


@dataclass(frozen=True)
class Outgoing:
    """A message to a node, with the seconds for which an answer is useful."""

    node: int
    message: Message
    seconds: float


class MessageBus(Protocol):
    """Carries messages to nodes. A node's number does not identify a silo."""

    def online(self) -> frozenset[int]:
        """The connected nodes."""

    def send(self, messages: Sequence[Outgoing]) -> list[str]:
        """Send messages. Returns a ticket for each."""

    def fetch(self, tickets: Sequence[str]) -> dict[str, Message | Undelivered]:
        """The answers that have arrived since the last call, by ticket."""

    def wait(self, seconds: float) -> None:
        """Return when answers may have arrived, or after this many seconds."""


@contextmanager
def untrusted(reason: Reason, *ours: type[Exception]) -> Iterator[None]:
    """Turn every fault in the block into an UnusableError with one harmless line, so that the
    server continues; a block within may give a reason of its own.

    Everything a member sends is handled in such a block. The server's own disk is not a member's
    fault: StorageError passes, as do the kinds in ``ours``. An unforeseen fault is reported only by
    its kind, since its text may contain anything that was sent; the server's log has the full text,
    as one line.
    """
    passing: tuple[type[Exception], ...] = (UnusableError, StorageError, *ours)
    try:
        yield
    except passing:
        raise
    except PomonaError as fault:
        raise UnusableError(reason, plain(str(fault))) from None
    except Exception as fault:  # an unforeseen error while handling bytes from outside
        logger.warning(
            "what was sent cannot be used: %s",
            plain("".join(traceback.format_exception(fault)), 4000),
        )
        raise UnusableError(
            reason,
            f"what it sent cannot be used (a {type(fault).__name__}; the server's log has more)",
        ) from None

"""Messages between the server and silos, and the bus that carries them: Flower in a federation, a
stand-in in tests.
"""

import logging
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, TypeVar, overload

from flwr.app import ConfigRecord, RecordDict
from pydantic import BaseModel, ConfigDict, FailFast, Field, StringConstraints, ValidationError

from pomona.core.bounds import Count, Hex, Label, parse, plain
from pomona.core.errors import PomonaError, ProtocolError, StorageError
from pomona_federation.flower_internals import PIECE
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

    message_type: str
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
        signature = signer.sign(body.message_type, body.statement) if signer else ""
        return cls(body.message_type, body.model_dump_json(), signature, enclosed or {})

    @overload
    def read(self, a: type[A], b: type[B], /) -> A | B: ...

    @overload
    def read(self, a: type[A], b: type[B], c: type[C], /) -> A | B | C: ...

    @overload
    def read(self, a: type[A], b: type[B], c: type[C], d: type[D], /) -> A | B | C | D: ...

    def read(self, *body_types: type[Body]) -> Body:
        """The body, which must be of one of these types.

        Raises ProtocolError, also for an incompatible version.

        A refusal is read whatever its sender's version, since a version mismatch may be its very
        reason.
        """
        if self.message_type != Refusal.message_type:
            with untrusted(Reason.VERSION):
                require_understood(self.versions)
        for body_type in body_types:
            if self.message_type == body_type.message_type:
                return read(body_type, self.body)
        raise ProtocolError(
            f"a message of type {plain(self.message_type, 40)!r}; check that both sides run the "
            "same version"
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
    """No answer will come; ``retry``: the node is gone, so the message may be sent again."""

    reason: Reason
    detail: str
    retry: bool


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


PREFIX = 8  # bytes of the letter's length
LETTER = 64 * 2**20  # largest letter in bytes
DATA = "bytes"  # name of a record's single value
# a row's hash, or "uplink"
Enclosed = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]{1,64}$")]
MISMATCH = "a message holds something else than was agreed; check the peer's version"


class Letter(BaseModel):
    """The text of a message, and its enclosures: names and sizes, in the order in which they
    follow.

    Unknown keys are ignored, so that a letter from another version can still state that version.
    """

    model_config = ConfigDict(extra="ignore")

    kind: Label
    body: Annotated[str, Field(max_length=LETTER)]
    signature: Hex
    enclosed: Annotated[list[tuple[Enclosed, Count]], Field(max_length=10**6), FailFast()]
    versions: Versions | None = None


def packed(message: Message) -> RecordDict:
    """A message as Flower's content: the letter's length, the letter in JSON, the enclosures; cut
    into records.
    """
    sizes = [(name, len(data)) for name, data in message.enclosed.items()]
    fields: dict[str, Any] = {
        "kind": message.message_type,
        "body": message.body,
        "signature": message.signature,
        "versions": message.versions,
    }
    letter = Letter.model_construct(**fields, enclosed=sizes)  # trusted: the receiver validates it
    text = letter.model_dump_json().encode()
    chunks = [len(text).to_bytes(PREFIX, "little"), text, *message.enclosed.values()]
    return RecordDict(
        {str(i): ConfigRecord({DATA: piece}) for i, piece in enumerate(_split(chunks))}
    )


def _split(chunks: Sequence[bytes | memoryview]) -> Iterator[bytes]:
    """The concatenated parts, in pieces of equal length except for the last."""
    piece = bytearray()
    for chunk in chunks:
        view, offset = memoryview(chunk), 0
        while offset < len(view):
            section = view[offset : offset + PIECE - len(piece)]
            piece += section
            offset += len(section)
            if len(piece) == PIECE:
                yield bytes(piece)
                piece = bytearray()
    if piece:
        yield bytes(piece)


def unpacked(content: RecordDict) -> Message:
    """The inverse of ``packed``. Raises ProtocolError for any other content."""
    data = memoryview(b"".join(_piece(content, i) for i in range(len(content))))
    offset = PREFIX + int.from_bytes(data[:PREFIX], "little")
    if offset > len(data):
        raise ProtocolError(MISMATCH)
    try:
        letter = Letter.model_validate(parse(bytes(data[PREFIX:offset]), ProtocolError, LETTER))
    except ValidationError:
        raise ProtocolError(MISMATCH) from None
    enclosed = {}
    for name, size in letter.enclosed:
        enclosed[name], offset = bytes(data[offset : offset + size]), offset + size
    if offset != len(data) or len(enclosed) != len(letter.enclosed):
        raise ProtocolError(MISMATCH)
    return Message(letter.kind, letter.body, letter.signature, enclosed, letter.versions)


def _piece(content: RecordDict, number: int) -> bytes:
    record = content.get(str(number))
    data = record.get(DATA) if isinstance(record, ConfigRecord) and len(record) == 1 else None
    if not isinstance(data, bytes):
        raise ProtocolError(MISMATCH)
    return data

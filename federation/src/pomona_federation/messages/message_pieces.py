"""A message as Flower carries it: few records of bytes, since each record costs several requests at
the SuperLink.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from flwr.app import ConfigRecord, RecordDict
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from pomona.core.bounds import Count, Hex, Label, parse
from pomona.core.errors import ProtocolError
from pomona_federation.flower_internals import PIECE
from pomona_federation.messages.message_bus import Message
from pomona_federation.versions import Versions

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
    enclosed: Annotated[list[tuple[Enclosed, Count]], Field(max_length=10**6)]
    versions: Versions | None = None


def packed(message: Message) -> RecordDict:
    """A message as Flower's content: the letter's length, the letter in JSON, the enclosures; cut
    into records.
    """
    sizes = [(name, len(data)) for name, data in message.enclosed.items()]
    fields: dict[str, Any] = {
        "kind": message.kind,
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
        view, start = memoryview(chunk), 0
        while start < len(view):
            section = view[start : start + PIECE - len(piece)]
            piece += section
            start += len(section)
            if len(piece) == PIECE:
                yield bytes(piece)
                piece = bytearray()
    if piece:
        yield bytes(piece)


def unpacked(content: RecordDict) -> Message:
    """The inverse of ``packed``. Raises ProtocolError for any other content."""
    data = memoryview(b"".join(_piece(content, i) for i in range(len(content))))
    end = PREFIX + int.from_bytes(data[:PREFIX], "little")
    if end > len(data):
        raise ProtocolError(MISMATCH)
    try:
        letter = Letter.model_validate(parse(bytes(data[PREFIX:end]), ProtocolError, LETTER))
    except ValidationError:
        raise ProtocolError(MISMATCH) from None
    enclosed = {}
    for name, size in letter.enclosed:
        enclosed[name], end = bytes(data[end : end + size]), end + size
    if end != len(data) or len(enclosed) != len(letter.enclosed):
        raise ProtocolError(MISMATCH)
    return Message(letter.kind, letter.body, letter.signature, enclosed, letter.versions)


def _piece(content: RecordDict, number: int) -> bytes:
    record = content.get(str(number))
    data = record.get(DATA) if isinstance(record, ConfigRecord) and len(record) == 1 else None
    if not isinstance(data, bytes):
        raise ProtocolError(MISMATCH)
    return data

"""What travels: a task down, an answer up, and model rows beside them as plain bytes that are named by their hash.

One message each way per silo and round. Text is JSON, checked field by field when it is read; rows are little-endian
numbers and nothing else. A row that a silo already holds is named but not sent again.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field, ValidationError
from torch import Tensor

from pomona.errors import ProtocolError
from pomona.federation.tensorfile import DTYPES, memory, pieces, shown
from pomona.federation.uplink import decode, largest
from pomona.settings import Settings

Wire = Literal["fp32", "bf16"]
WIDTH: dict[Wire, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Origin(Settings):
    """Who made a row, in which round, and the signature for it."""

    silo: str = Field(max_length=40)
    round: int = Field(ge=0)
    tensor: str = Field(max_length=40)
    signature: str = Field(max_length=300)


class Offer(Settings):
    """What one entry of a downlink gives a silo.

    ``index``: the row of the bank it gets; or, where ``many``, the ids of those whose rows it gets, its own id marking
    an empty place. ``rows``: the hash of each row of the bank by its number, ``dtype`` and ``width`` what one is made
    of. ``origins``: whose row, where it is one silo's own.
    """

    many: bool
    index: tuple[int, ...]
    dtype: Literal["BOOL", "F32", "F64", "I64"]
    width: int = Field(ge=0)
    rows: dict[int, str]
    origins: dict[int, Origin] = Field({})


class Introduction(Settings):
    """A silo that came later: its place, its name, its public key, and the authority's signature on both."""

    place: int = Field(ge=0)
    silo: str = Field(max_length=40)
    key: str = Field(max_length=1000)
    certificate: str = Field(max_length=300)


class Task(Settings):
    """What a silo is asked in one round; see ``federation.clients.Visit``.

    Attributes:
        agreement: hash of what everybody agreed on.
        run: the federation's run.
        number: of the round; one after the last for the closing visit.
        place: the silo's id.
        sizes: samples of every place, 0 for who is no member now.
        settled: the last round of this silo that the federation has used, 0 for none: the state it goes on from.
        start: hash of the model that a newcomer starts from; None for the run's initial one.
    """

    agreement: str
    run: str
    number: int = Field(ge=1)
    place: int = Field(ge=0)
    trains: bool
    watched: tuple[Literal["received", "trained"], ...]
    sizes: tuple[int, ...]
    settled: int = Field(ge=0)
    start: str | None = None
    offers: dict[str, Offer] = Field({})
    introductions: tuple[Introduction, ...] = ()

    @property
    def digest(self) -> str:
        """What is asked, as one hash; which rows are enclosed makes no difference."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    @property
    def needs(self) -> set[str]:
        """Hashes of all rows that the task speaks of."""
        named = {digest for offer in self.offers.values() for digest in offer.rows.values()}
        return named | ({self.start} if self.start else set())


class Figure(Settings):
    """A silo's figures of one named model on one split."""

    model: str = Field(max_length=40)
    when: Literal["received", "trained"]
    split: Literal["validation", "test"]
    samples: int = Field(ge=0)
    loss: float | None = None
    accuracy: float | None = Field(None, ge=0, le=1)


class Answer(Settings):
    """What a silo answers; the uplink's bytes come beside it.

    Attributes:
        task: hash of the task that this answers.
        uplink: SHA-256 of the uplink's bytes.
        rows: the silo's signature on each model row of its uplink, for those whom the server passes it on to.
        fault: why there is no uplink: the kind of the error and a line without paths.
        missing: hashes of rows that the silo needs and does not have.
        held: hashes of rows that it keeps.
    """

    agreement: str = Field(max_length=64)
    run: str = Field(max_length=64)
    number: int = Field(ge=1)
    silo: str = Field(max_length=40)
    task: str = Field(max_length=64)
    samples: int = Field(ge=0)
    uplink: str = Field("", max_length=64)
    rows: dict[str, str] = Field({})
    loss: float | None = None
    scores: tuple[Figure, ...] = Field((), max_length=100)
    seconds: float = Field(0.0, ge=0)
    fault: str = Field("", max_length=500)
    missing: tuple[str, ...] = Field((), max_length=100_000)
    held: tuple[str, ...] = Field((), max_length=100_000)


class Refused(Settings):
    """A silo will not, or cannot, do what it was asked; a line without paths says why."""

    silo: str = Field(max_length=40)
    fault: str = Field(max_length=500)


class Hello(Settings):
    """The server asks who is there; ``nonce`` keeps an old answer from being used again."""

    agreement: str
    run: str
    nonce: str


class Greeting(Settings):
    """A silo says who it is and how many training samples it has."""

    agreement: str = Field(max_length=64)
    run: str = Field(max_length=64)
    nonce: str = Field(max_length=64)
    silo: str = Field(max_length=40)
    samples: int = Field(ge=0)
    fault: str = Field("", max_length=500)


def read(kind: type[Any], text: str) -> Any:
    """A message's body. Raises ProtocolError naming the first field that is not what it must be."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as fault:
        first = fault.errors()[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise ProtocolError(
            f"a {kind.__name__.lower()} cannot be read ({shown(where)}: {first['msg'].lower()}); "
            "check that both sides run the same version"
        ) from None


def statement(body: Settings) -> dict[str, Any]:
    """What is signed of a message: all of it."""
    content: dict[str, Any] = json.loads(body.model_dump_json())
    return content


def row_statement(agreement: str, run: str, origin: Origin, digest: str) -> dict[str, Any]:
    """What is signed of a row: whose it is, what for, and its hash."""
    about = {"silo": origin.silo, "round": origin.round, "tensor": origin.tensor}
    return {"agreement": agreement, "run": run, **about, "digest": digest}


def pack(row: Tensor, wire: Wire, places: int) -> bytes:
    """A row (w,) of a downlink's bank as it travels."""
    return bytes(memory(_narrow(row, wire, places)))


def unpack(data: bytes, offer: Offer, wire: Wire, places: int) -> Tensor:
    """A row (w,) from bytes. Raises ProtocolError for another length or numbers that are not finite."""
    form = torch.empty(offer.width, dtype=DTYPES[offer.dtype], device="meta")
    travels = _narrow(form, wire, places).dtype
    if len(data) != offer.width * travels.itemsize:
        raise ProtocolError(f"a row has {len(data)} bytes, announced are {offer.width * travels.itemsize}")
    row = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    if travels == torch.bool and (row > 1).any():
        raise ProtocolError("a row of truth values holds others than 0 and 1")
    row = row.view(travels).to(form.dtype)
    if row.is_floating_point() and not torch.isfinite(row).all():
        raise ProtocolError("a row has numbers that are not finite")
    return row


def name(data: bytes) -> str:
    """A row's name: SHA-256 of its bytes in hex."""
    return hashlib.sha256(data).hexdigest()


def seal(uplink: dict[str, Tensor], wire: Wire, places: int) -> bytes:
    """An uplink's bytes."""
    return b"".join(pieces({k: _narrow(t, wire, places) for k, t in uplink.items()}))


def unseal(data: bytes, expects: Mapping[str, Tensor], wire: Wire, places: int) -> dict[str, Tensor]:
    """An uplink from a peer's bytes, in the form that the server half expects. Raises ProtocolError."""
    spec = {k: _narrow(t, wire, places) for k, t in expects.items()}
    return {k: t.to(expects[k].dtype) for k, t in decode(data, spec, largest(spec)).items()}


def _narrow(tensor: Tensor, wire: Wire, places: int) -> Tensor:
    """Model rows in the width agreed on; numbers about clients, one a place or fewer, as they are."""
    return tensor.to(WIDTH[wire]) if tensor.dtype == torch.float32 and tensor.numel() > places else tensor

"""What travels: a task down, an answer up, and model rows beside them as plain bytes that are named by their hash.

One message each way per silo and round. Text is JSON, checked field by field when it is read; rows are little-endian
numbers and nothing else. A row that a silo already holds is named but not sent again.

Every field has a bounded type: a message that was read holds no path, no control character and no number that
overflows, however hostile its sender. Records are made of the same types on both sides.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import FailFast, Field, StringConstraints, ValidationError
from torch import Tensor

from pomona.core.bounds import PLACES, Count, Hex, Label, Line, Number, Place, Seconds, Sha256, plain
from pomona.core.errors import ProtocolError
from pomona.core.settings import Settings
from pomona.deploy.agreement import Certificate, SiloName
from pomona.methods.base import Rows
from pomona.storage.safetensors_stream import DTYPES, memory, pieces, shown
from pomona.storage.tensor_validation import decode, largest

Wire = Literal["fp32", "bf16"]
WIDTH: dict[Wire, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}

CODES: dict[torch.dtype, Any] = {dtype: code for code, dtype in DTYPES.items()}
Token = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{1,64}$")]  # an id drawn at random
Loss = Annotated[float, Field(ge=-1e100, le=1e100, allow_inf_nan=False)]  # sums over samples and silos stay finite
Hashes = Annotated[tuple[Sha256, ...], Field(max_length=10**5), FailFast()]


class Origin(Settings):
    """Who made a row, in which round, and the signature for it."""

    silo: SiloName
    round: Number
    tensor: Label
    signature: Hex


class EntryForm(Settings):
    """The form of one entry of a downlink: one row or, where ``many``, one of each of some silos; what a row is."""

    many: bool
    dtype: Literal["BOOL", "F32", "F64", "I64"]
    width: Count

    @classmethod
    def of(cls, entry: Rows) -> "EntryForm":
        """The form of an entry that this program has made."""
        return cls(many=entry.index.dim() == 2, dtype=CODES[entry.bank.dtype], width=entry.bank.shape[1])


class Offer(Settings):
    """What one entry of a downlink gives a silo.

    ``index``: the row of the bank it gets; or, where there are many, the ids of those whose rows it gets, its own id
    marking an empty place. ``rows``: the hash of each row of the bank by its number, ``form`` what one is made of.
    ``origins``: whose row, where it is one silo's own.
    """

    form: EntryForm
    index: Annotated[tuple[Place, ...], Field(max_length=PLACES), FailFast()]
    rows: dict[Place, Sha256] = Field(max_length=PLACES)
    origins: dict[Place, Origin] = Field({}, max_length=PLACES)


class Introduction(Settings):
    """A silo that came later: its place, its name, its public key, and the authority's certificate of both."""

    place: Place
    silo: SiloName
    key: str = Field(max_length=1000, pattern=r"^([a-z0-9-]+ [A-Za-z0-9+/=]+)?( [ -~]*)?$")  # one OpenSSH line
    certificate: Certificate


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

    agreement: Sha256
    run: Token
    number: Number = Field(ge=1)
    place: Place
    trains: bool
    watched: tuple[Literal["received", "trained"], ...] = Field(max_length=2)
    sizes: Annotated[tuple[Count, ...], Field(max_length=PLACES), FailFast()]
    settled: Number
    start: Sha256 | None = None
    offers: dict[Label, Offer] = Field({}, max_length=20)
    introductions: Annotated[tuple[Introduction, ...], Field(max_length=PLACES), FailFast()] = ()

    @property
    def digest(self) -> str:
        """What is asked, as one hash; which rows are enclosed makes no difference."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    @property
    def question(self) -> str:
        """What is asked as one hash, whoever has come to the federation since: the same question has one answer."""
        return self.model_copy(update={"introductions": ()}).digest

    @property
    def needs(self) -> set[str]:
        """Hashes of all rows that the task speaks of."""
        named = {digest for offer in self.offers.values() for digest in offer.rows.values()}
        return named | ({self.start} if self.start else set())


class ReportedScore(Settings):
    """A silo's figures of one named model on one split."""

    model: Label
    when: Literal["received", "trained"]
    split: Literal["validation", "test"]
    samples: Count
    loss: Loss | None = None
    accuracy: float | None = Field(None, ge=0, le=1)
    value: Loss | None = None


class Answer(Settings):
    """What a silo answers; the uplink's bytes come beside it.

    Attributes:
        task: hash of the task that this answers.
        uplink: SHA-256 of the uplink's bytes; "" for none.
        rows: the silo's signature on each model row of its uplink, for those whom the server passes it on to.
        fault: why there is no uplink: the kind of the error and a line without paths.
        missing: hashes of rows that the silo needs and does not have.
        held: hashes of rows that it keeps.
    """

    agreement: Sha256
    run: Token
    number: Number = Field(ge=1)
    silo: SiloName
    task: Sha256
    samples: Count
    uplink: Sha256 | Literal[""] = ""
    rows: dict[Label, Hex] = Field({}, max_length=20)
    loss: Loss | None = None
    scores: tuple[ReportedScore, ...] = Field((), max_length=100)
    seconds: Seconds = 0.0
    fault: Line = ""
    missing: Hashes = ()
    held: Hashes = ()


class Refusal(Settings):
    """A silo will not, or cannot, do what it was asked; a line without paths says why."""

    silo: SiloName
    fault: Line


class Hello(Settings):
    """The server asks who is there; ``nonce`` keeps an old answer from being used again."""

    agreement: Sha256
    run: Token
    nonce: Token


class Greeting(Settings):
    """A silo says who it is and how many training samples it has."""

    agreement: Sha256
    run: Token
    nonce: Token
    silo: SiloName
    samples: Count
    fault: Line = ""


def read(kind: type[Any], text: str) -> Any:
    """A message's body: bounded in length, depth and every field, so that what it makes can be used without a look.

    Raises ProtocolError naming the first field that is not what it must be.
    """
    most = LONGEST.get(kind, SHORT)
    if len(text) > most:
        raise ProtocolError(f"a {kind.__name__.lower()} of {len(text)} characters, at most {most} are read")
    try:
        return kind.model_validate_json(text)
    except ValidationError as fault:
        first = fault.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise ProtocolError(
            f"a {kind.__name__.lower()} cannot be read ({shown(where)}: {plain(first['msg'], 200).lower()}); "
            "check that both sides run the same version"
        ) from None


# Of a body, in characters: a task that names a row and its signature of each of 10,000 places has 6 million.
LONGEST: dict[type[Settings], int] = {Task: 16 * 2**20, Answer: 16 * 2**20}
SHORT = 2**16  # all others


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


def unpack(data: bytes, form: EntryForm, wire: Wire, places: int) -> Tensor:
    """A row (w,) from bytes. Raises ProtocolError for another length or numbers that are not finite."""
    blank = torch.empty(form.width, dtype=DTYPES[form.dtype], device="meta")
    travels = _narrow(blank, wire, places).dtype
    if len(data) != form.width * travels.itemsize:
        raise ProtocolError(f"a row has {len(data)} bytes, announced are {form.width * travels.itemsize}")
    row = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    if travels == torch.bool and (row > 1).any():
        raise ProtocolError("a row of truth values holds others than 0 and 1")
    row = row.view(travels).to(blank.dtype)
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

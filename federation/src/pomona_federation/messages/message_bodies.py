"""Bodies of messages between server and silos: a task down, an answer up, as JSON that is validated
when read.

There is one message each way per silo and round. Every field has a bounded type: a message that has
been read contains no path, no control character and no number that overflows, however hostile its
sender. Both sides use the same types.
"""

import hashlib
import json
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import FailFast, Field, StringConstraints, ValidationError

from pomona.core.bounds import (
    MAX_CLIENTS,
    ClientId,
    Count,
    Hex,
    Label,
    Line,
    Measured,
    Number,
    Seconds,
    Sha256,
    Table,
    first,
)
from pomona.core.errors import ProtocolError
from pomona.core.settings import Settings
from pomona.metrics.metric import Score
from pomona_federation.agreement import Certificate, SiloName
from pomona_federation.study_sections import MOST_JUDGED

Token = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{1,64}$")]  # a randomly drawn id
PublicKey = Annotated[
    str, StringConstraints(max_length=1000, pattern=r"^([a-z0-9-]+ [A-Za-z0-9+/=]+)?( [ -~]*)?$")
]
RENEWALS = 20  # a silo's key
Hashes = Annotated[tuple[Sha256, ...], Field(max_length=10**5), FailFast()]


B = TypeVar("B", bound="Body")


class Body(Settings):
    """Base of message bodies; ``message_type`` is on the message and in its signed content."""

    message_type: ClassVar[str]
    longest: ClassVar[int] = 2**16  # longest JSON text that is read, in characters

    @property
    def statement(self) -> dict[str, Any]:
        """The signed content of a message: its whole body."""
        content: dict[str, Any] = json.loads(self.model_dump_json())
        return content

    @property
    def digest(self) -> str:
        """Hash of what is asked, which an answer names."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


class RowOrigin(Settings):
    """The origin of a row: the silo, round and tensor that it comes from, with that silo's
    signature.
    """

    silo: SiloName
    round: Number
    tensor: Label
    signature: Hex


class EntryForm(Settings):
    """The form of one entry of a downlink: one row or, with ``many``, one from each of several
    silos; a row's form.
    """

    many: bool
    dtype: Literal["BOOL", "F32", "F64", "I64"]
    width: Count


class DownlinkEntry(Settings):
    """One entry of a downlink, as one silo gets it.

    ``index``: the row of the bank that it gets; or, with many rows, the ids of the silos whose rows
    it gets, with its own id for an empty place. ``rows``: the hash of each row of the bank by
    number; ``form``: the form of a row.
    ``origins``: the origin of rows that come from a single silo.
    """

    form: EntryForm
    index: Annotated[tuple[ClientId, ...], Field(max_length=MAX_CLIENTS), FailFast()]
    rows: Table[ClientId, Sha256] = Field(max_length=MAX_CLIENTS)
    origins: Table[ClientId, RowOrigin] = Field({}, max_length=MAX_CLIENTS)


class Newcomer(Settings):
    """A silo that joined later: its place, name and public key, and the authority's certificate for
    both.
    """

    place: ClientId
    silo: SiloName
    key: PublicKey
    certificate: Certificate


class CertifiedKey(Settings):
    """A silo's public key, and the authority's certificate for it."""

    key: PublicKey
    certificate: Certificate


class Renewal(Settings):
    """A silo whose key was renewed: all its keys, with the current one last."""

    silo: SiloName
    keys: Annotated[
        tuple[CertifiedKey, ...], Field(min_length=2, max_length=RENEWALS + 1), FailFast()
    ]


class Task(Body):
    """A silo's task of one round; see ``federation.exchange.ClientRequest``.

    Attributes:
        agreement: hash of the agreed settings.
        run: the federation's run.
        number: of the round; one after the last for the closing visit.
        place: the silo's id.
        sizes: samples of every place, 0 for a place without a current member.
        settled: the last round of this silo that the federation has used, 0 for none: the state to
            continue from.
        joined: the sizes when this silo became a member, if no round of it is settled and they are
            others now: those that it starts from.
        start: hash of the model that a newcomer starts from; None for the run's initial model.
        readmitted: whether the lead has taken the silo again after a restore: if round ``settled``
            is not there, it continues from the newest that is, or starts as a newcomer does.
    """

    message_type = "task"
    # a task naming a row and its signature for each of 10,000 places has 6 million
    longest = 16 * 2**20
    agreement: Sha256
    run: Token
    number: Number = Field(ge=1)
    place: ClientId
    trains: bool
    watched: tuple[Literal["received", "trained"], ...] = Field(max_length=2)
    sizes: Annotated[tuple[Count, ...], Field(max_length=MAX_CLIENTS), FailFast()]
    settled: Number
    joined: Annotated[tuple[Count, ...], Field(max_length=MAX_CLIENTS), FailFast()] = ()
    start: Sha256 | None = None
    readmitted: bool = False
    downlink: Table[Label, DownlinkEntry] = Field({}, max_length=20)
    newcomers: Annotated[tuple[Newcomer, ...], Field(max_length=MAX_CLIENTS), FailFast()] = ()
    renewals: Annotated[tuple[Renewal, ...], Field(max_length=MAX_CLIENTS), FailFast()] = ()

    @property
    def question(self) -> str:
        """Hash of the task without newcomers, renewals and ``readmitted``: the answer stays the
        same after someone has joined, or was taken again.
        """
        return self.model_copy(update={"newcomers": (), "renewals": (), "readmitted": False}).digest

    @property
    def required_rows(self) -> set[str]:
        """Hashes of all rows that the task refers to."""
        digests = {digest for entry in self.downlink.values() for digest in entry.rows.values()}
        return digests | ({self.start} if self.start else set())


class MaskKey(Settings):
    """A silo's X25519 public key for the sum of one round, in hex, and the silo's signature on
    it.
    """

    key: Sha256  # 32 bytes
    signature: Hex


def mask_statement(task: Task, silo: str, key: str) -> dict[str, Any]:
    """The signed content of a silo's key for the sum of a task's round."""
    fields = {"agreement": task.agreement, "run": task.run, "round": task.number}
    return {**fields, "silo": silo, "key": key}


class SumRequest(Body):
    """The server's request for a silo's masked part in the sum of a round that it has trained in.

    Attributes:
        task: of the round, again.
        keys: of all silos in the sum, this one among them, by place.
    """

    message_type = "sum-request"
    longest = 32 * 2**20
    task: Task
    keys: Annotated[Table[ClientId, MaskKey], Field(min_length=2, max_length=MAX_CLIENTS)]

    @property
    def agreement(self) -> str:
        """The agreement's hash."""
        return self.task.agreement

    @property
    def number(self) -> int:
        """The round."""
        return self.task.number

    @property
    def context(self) -> str:
        """Hash of all that silos in one sum must have in common, to which their masks are bound.

        It covers agreement, run, round, sample counts, the rows that were received, and the silos
        with their keys. Silos that were sent different models have masks that do not cancel.
        """
        task = self.task
        shared = {"agreement": task.agreement, "run": task.run, "round": task.number}
        shared |= {"sizes": task.sizes}
        shared |= {"rows": {name: entry.rows for name, entry in sorted(task.downlink.items())}}
        shared |= {"keys": {member: self.keys[member].key for member in sorted(self.keys)}}
        text = json.dumps(shared, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


class Answer(Body):
    """A silo's answer to a task or to a request for its part in a sum; the uplink's bytes are
    enclosed with it.

    Attributes:
        task: hash of the task that this answers.
        uplink: SHA-256 of the uplink's bytes; "" for none.
        rows: the silo's signature on each model row of its uplink, for the silos that the server
            relays it to.
        fault: why there is no uplink: the kind of error and one line without paths.
        missing: hashes of rows that the silo needs and does not have.
        held: hashes of rows that it keeps.
        mask: its key for the round's sum, in place of an uplink, with secure aggregation.
        continued: the round that it has continued from in place of ``settled``, 0 for none, if it
            was taken again.
    """

    message_type = "answer"
    longest = 16 * 2**20
    agreement: Sha256
    run: Token
    number: Number = Field(ge=1)
    silo: SiloName
    task: Sha256
    samples: Count
    uplink: Sha256 | Literal[""] = ""
    rows: Table[Label, Hex] = Field({}, max_length=20)
    loss: Measured | None = None
    scores: Annotated[tuple[Score, ...], Field(max_length=2 * MOST_JUDGED), FailFast()] = ()
    seconds: Seconds = 0.0
    fault: Line = ""
    missing: Hashes = ()
    held: Hashes = ()
    mask: MaskKey | None = None
    continued: Number | None = None


class Refusal(Body):
    """A silo will not, or cannot, do what it was asked; one line without paths gives the reason."""

    message_type = "refusal"
    silo: SiloName
    fault: Line


class Hello(Body):
    """The server's request for a silo's identity; ``nonce`` prevents the replay of an old
    answer.

    ``newcomers``: the place of each silo that joined later: its split of its rows, and so how many
    are for training, follows from its place.
    """

    message_type = "hello"
    longest = 2**21  # a name of 40 characters and a number for each of 10,000 places
    agreement: Sha256
    run: Token
    nonce: Token
    newcomers: Table[SiloName, ClientId] = Field({}, max_length=MAX_CLIENTS)


class HelloReply(Body):
    """A silo's identity and its number of training samples."""

    message_type = "hello-reply"
    agreement: Sha256
    run: Token
    nonce: Token
    silo: SiloName
    samples: Count
    fault: Line = ""


def read(body_type: type[B], text: str) -> B:
    """Parse a message's body, within bounds in length, depth and every field.

    Raises ProtocolError naming the first invalid field.
    """
    if len(text) > body_type.longest:
        raise ProtocolError(
            f"{body_type.message_type}: {len(text)} characters; the limit is {body_type.longest}"
        )
    try:
        return body_type.model_validate_json(text)
    except ValidationError as fault:
        raise ProtocolError(
            f"{body_type.message_type}: cannot be read ({first(fault)}); check that both sides run "
            "the same version"
        ) from None


def row_statement(agreement: str, run: str, origin: RowOrigin, digest: str) -> dict[str, Any]:
    """The signed content of a row: silo, round, tensor, and its hash."""
    fields = {"silo": origin.silo, "round": origin.round, "tensor": origin.tensor}
    return {"agreement": agreement, "run": run, **fields, "digest": digest}

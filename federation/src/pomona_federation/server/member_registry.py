"""Registry of members, ``roster.json``: which silo has which place, written by the server and by
its operator.

A silo's place is its permanent client id. It becomes a member in the first round that begins after
it has reported its number of samples, and stops being one with the round after its revocation. A
round's roster never changes afterwards, so a server that continues after a kill sees the same one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass

from pomona.core.bounds import MAX_CLIENTS, Count, Number, plain
from pomona.core.errors import ConfigError, StorageError, suggestion
from pomona.core.files import text, writing
from pomona.core.round import weights
from pomona.core.settings import Settings
from pomona.storage.lock import waiting_lock
from pomona_federation.agreement import SHARE, Certificate, Federation, SiloName
from pomona_federation.audit_log import write_line
from pomona_federation.json_store import read_json, write_json
from pomona_federation.keys import signed
from pomona_federation.messages.message_bodies import RENEWALS, CertifiedKey
from pomona_federation.unused_uplinks import Reason, UnusableError

if TYPE_CHECKING:
    from pomona.core.round import Roster


ROSTER = "roster.json"


@dataclass(frozen=True)
class RegisteredMember:
    """One silo.

    Attributes:
        key: its public key, one OpenSSH line; empty without keys.
        certificate: the authority's OpenSSH certificate for name and key; empty for founders, whom
            every kit knows, until their key is renewed.
        earlier: its previous keys, the oldest first.
        readmitted_in: from which round on it was taken again after a restore; None if it was not.
        size: its training samples; None until reported.
        joined, left: its first and its last round; None while open.
        revoked: not a member from the next round on.
    """

    name: SiloName
    key: Annotated[str, Field(max_length=2000)] = ""
    certificate: Certificate = ""
    size: Count | None = None
    joined: Number | None = None
    left: Number | None = None
    revoked: bool = False
    earlier: Annotated[tuple[CertifiedKey, ...], Field(max_length=RENEWALS)] = ()
    readmitted_in: Number | None = None


class RegistryFile(Settings):
    """Content of the file: the entries, and the last round whose roster is settled."""

    settled: Number
    silos: tuple[RegisteredMember, ...] = Field(max_length=MAX_CLIENTS)


class MemberRegistry:
    """The registry of a server's kit; an entry's position is its silo's place.

    Implements the loop's ``MembershipSchedule``.

    The registry in ``run/`` defines the members, and holds the sizes and rounds of the kit's own
    study. Each further study has its own registry for sizes and rounds, and takes the members from
    the first.
    """

    def __init__(
        self,
        folder: Path,
        federation: Federation,
        greet: Callable[[], None] = lambda: None,
        members: "MemberRegistry | None" = None,
        share: float = SHARE,
    ) -> None:
        """Open the registry in a folder, or start one with the founders of a kit.

        Args:
            folder: of the file; that of ``run/`` has the founders' keys in ``keys/`` next to it.
            federation: defines the founders.
            greet: called before a round's roster is settled, to admit silos that have come in the
                meantime.
            members: the registry in ``run/``, for the registry of a further study.
            share: largest share of one silo in a mean.
        """
        self.path, self._places, self._greet = folder / ROSTER, federation.places, greet
        self.share, self._max_samples = share, federation.most_samples
        self._insecure, self._members = federation.insecure, members
        if not self.path.exists():
            with self._locked():
                if not self.path.exists():
                    self._write([] if members else _founders(folder.parent / "keys", federation), 0)

    @property
    def entries(self) -> list[RegisteredMember]:
        """All silos that are or were members, by place."""
        return self._read()[0]

    def client_id(self, name: str) -> int:
        """A silo's client id: its place. Raises ConfigError for an unknown name."""
        names = [e.name for e in self.entries]
        if name not in names:
            raise ConfigError(f"no silo {name!r}; {suggestion(name, names)}")
        return names.index(name)

    def add(self, name: str, key: str, certificate: str) -> int:
        """Give a newcomer the next place.

        Raises ConfigError if none is free, or the name is taken or invalid.
        """
        try:
            entry = RegisteredMember(name, key, certificate)
        except ValidationError as fault:
            raise ConfigError(
                f"{plain(name, 60)!r} cannot be a silo ({plain(fault.errors()[0]['msg'], 200)})"
            ) from None
        with self._locked():
            entries, settled = self._read()
            if name in [e.name for e in entries]:
                raise ConfigError(
                    f"silo {name!r} is registered already; give the newcomer another name"
                )
            if len(entries) >= self._places:
                raise ConfigError(
                    f"all {self._places} places are taken; their number is fixed in the agreement"
                )
            self._audit("added", name)
            self._write([*entries, entry], settled)
        return len(entries)

    def revoke(self, name: str) -> None:
        """End a silo's membership from the next round on.

        Raises ConfigError for an unknown silo.
        """
        client = self.client_id(name)
        self._audit("revoked", name)
        self._change(client, revoked=True)

    def renew(self, name: str, key: CertifiedKey, previous: CertifiedKey) -> None:
        """Replace a silo's key at once.

        Raises ConfigError for an unknown silo, or one renewed too often.
        """
        client = self.client_id(name)
        entry = self.entries[client]
        if len(entry.earlier) >= RENEWALS:
            raise ConfigError(
                f"{name} has had {RENEWALS} keys before; revoke it, and add it under a new name"
            )
        self._audit("renewed", name)
        self._change(
            client, key=key.key, certificate=key.certificate, earlier=(*entry.earlier, previous)
        )

    def readmit(self, name: str, audit: Callable[[int], None] = lambda _: None) -> int:
        """Take a silo again whose state is older than the study's; returns the first such round,
        with which ``audit`` is called before.

        Raises ConfigError for an unknown or revoked silo, or one without a round in the study.
        """
        client = self.client_id(name)
        entry = self.entries[client]
        if entry.revoked or entry.joined is None:
            problem = "is revoked" if entry.revoked else "has not taken part in the study yet"
            raise ConfigError(f"{name} {problem}, so it cannot be readmitted")
        first_round = self._read()[1] + 1
        audit(first_round)
        self._change(client, readmitted_in=first_round)
        return first_round

    def require_signed(
        self, client: int, message_type: str, statement: Mapping[str, Any], signature: str
    ) -> None:
        """Raise ProtocolError unless the client's silo has signed this; without keys nothing is
        signed.
        """
        entry = self.entries[client]
        if not self._insecure and not signed(entry.key, message_type, statement, signature):
            raise UnusableError(Reason.SIGNATURE, f"the signature is not {entry.name}'s")

    def register(self, client: int, size: int) -> None:
        """Record a silo's number of samples; the first reported size is final.

        Raises ConfigError for a different later size, or for more than the agreed maximum.
        """
        if size > self._max_samples:
            raise ConfigError(
                f"{self.entries[client].name} reports {size:.4g} training samples, but "
                f"most_samples is {self._max_samples}"
            )
        registered = self.entries[client].size
        if registered is None:
            self._change(client, size=size)
        elif registered != size:
            raise ConfigError(
                f"{self.entries[client].name} has {size} training samples now, but {registered} "
                "are registered"
            )

    # Implementation of MembershipSchedule.

    def roster(self, number: int, guest: int | None = None) -> "Roster":
        """The roster of round ``number``, settled on first request, with everyone who joined or
        left by then.
        """
        from pomona.core.round import Roster

        assert guest is None, "a deployment has no clients that are never trained with"
        entries, settled = self._read()
        if number > settled:
            self._greet()
            with self._locked():
                entries = [_settled(e, number) for e in self._read()[0]]
                self._write(entries, number)
        sizes = [
            e.size or 0 if e.joined and e.joined <= number <= (e.left or number) else 0
            for e in entries
        ]
        return Roster((*sizes, *[0] * (self._places - len(sizes))), self.share)

    def members_until(self, number: int) -> tuple[int, ...]:
        """The silos that have been members in any round up to ``number``."""
        return tuple(i for i, e in enumerate(self.entries) if e.joined and e.joined <= number)

    def has_leavers(self, number: int) -> bool:  # noqa: ARG002 - the loop asks
        """Always False: no round is known in advance to be a silo's last; silos keep their models
        themselves.
        """
        return False

    def _audit(self, event: str, name: str) -> None:
        """Record what the operator does to a silo, before it counts."""
        write_line(self.path.parent, event, silo=name)

    def _change(self, client: int, **fields: Any) -> None:
        with self._locked():
            entries, settled = self._read()
            entries[client] = replace(entries[client], **fields)
            self._write(entries, settled)

    def _read(self) -> tuple[list[RegisteredMember], int]:
        page = read_json(RegistryFile, self.path)
        if page is None:
            raise StorageError(f"{self.path} is missing; restore it from a backup")
        if self._members is None:
            return list(page.silos), page.settled
        by_name = {entry.name: entry for entry in page.silos}
        return [
            _in_study(entry, by_name.get(entry.name)) for entry in self._members.entries
        ], page.settled

    def _write(self, entries: list[RegisteredMember], settled: int) -> None:
        with writing(self.path):
            write_json(self.path, RegistryFile(settled=settled, silos=tuple(entries)))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the file's lock against the other process that writes it."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with waiting_lock(self.path.parent / ".roster.lock"):
            yield


def _founders(keys: Path, federation: Federation) -> list[RegisteredMember]:
    """The founding members, with the public keys in a folder of the kit."""
    names = [silo.name for silo in federation.silo]
    return [
        RegisteredMember(n, "" if federation.insecure else text(keys / f"{n}.pub").strip())
        for n in names
    ]


def _in_study(member: RegisteredMember, entry: RegisteredMember | None) -> RegisteredMember:
    """A member as the federation knows it, with its size and rounds in one study."""
    entry = entry or RegisteredMember(member.name)
    return replace(
        member,
        size=entry.size,
        joined=entry.joined,
        left=entry.left,
        readmitted_in=entry.readmitted_in,
    )


def member_ids(entries: Sequence[RegisteredMember]) -> dict[str, int]:
    """Client ids by name of the silos that are members now or from the next round on."""
    return {entry.name: client for client, entry in enumerate(entries) if not entry.revoked}


def samples(entries: Sequence[RegisteredMember]) -> dict[str, int]:
    """Registered training samples of the silos that are members now or from the next round on."""
    return {e.name: e.size for e in entries if e.size and not e.revoked}


def weight_by_name(samples: Mapping[str, int], largest: float) -> dict[str, float]:
    """Each silo's weight in a mean over all of them, by name; ``largest`` is the agreed maximum
    share.
    """
    return dict(zip(samples, weights(list(samples.values()), largest), strict=True))


def weight_notes(samples: Mapping[str, int], largest: float) -> Sequence[str]:
    """A line for each silo whose weight is limited, or is more than half of a mean over all."""
    claimed, lines = weight_by_name(samples, 1.0), []
    for name, weight in weight_by_name(samples, largest).items():
        claim = (
            f"{name} claims {samples[name]} training samples, {100 * claimed[name]:.3g} % of all"
        )
        if weight < claimed[name] * (1 - 1e-9):
            lines.append(
                f"{claim}; it counts for {100 * weight:.3g} % (largest_share = {largest:g})"
            )
        elif weight > 0.5 and len(samples) > 1:
            lines.append(
                f"{claim}, and counts for more than all others together "
                f"(largest_share = {largest:g})"
            )
    return lines


def _settled(entry: RegisteredMember, number: int) -> RegisteredMember:
    """An entry at the start of round ``number``."""
    if entry.joined is None and entry.size and not entry.revoked:
        return replace(entry, joined=number)
    if entry.revoked and entry.joined is not None and entry.left is None:
        return replace(entry, left=number - 1)
    return entry

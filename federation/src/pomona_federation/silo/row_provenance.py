"""Provenance of the rows in a task: another silo's row counts only with that silo's signature.

One row of each later newcomer is the exception: the server makes the newcomer's starting row, so it
has no signature. A silo accepts the first such row, and no other in its place.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import Field

from pomona.core.bounds import MAX_CLIENTS, ClientId, Count, Number, Sha256
from pomona.core.errors import ProtocolError
from pomona.core.settings import Settings
from pomona_federation import certificates, keys
from pomona_federation.agreement import SiloName, StudyAgreement
from pomona_federation.json_store import read_sealed, write_sealed
from pomona_federation.keys import signed
from pomona_federation.messages.message_bodies import (
    MaskKey,
    Newcomer,
    Renewal,
    RowOrigin,
    Task,
    Token,
    mask_statement,
    row_statement,
)
from pomona_federation.messages.tensor_bytes import require_keys
from pomona_federation.silo.silo_in_study import Silo


class NewestKeys(Settings):
    """The serial number of the newest key seen for each silo whose key was renewed."""

    serials: dict[SiloName, Count] = Field({}, max_length=MAX_CLIENTS)


@dataclass(frozen=True)
class PeerKeys:
    """Keys of peers, from the kit and from tasks.

    ``state/renewed.json`` of the kit records the renewed ones seen.
    """

    folder: Path
    terms: StudyAgreement

    def certified(self, silo: str, key: str, certificate: str) -> bool:
        """Whether a certificate is the authority's for a silo's key."""
        authority = certificates.content(self.folder / "certs" / "ca.crt")
        federation = self.terms.federation.name
        return keys.certified(authority, federation, silo, key.encode(), certificate.encode())

    def require(self, task: Task) -> None:
        """Raise ProtocolError for a renewed key that the authority has not certified, or that is
        not the newest.
        """
        newest = self._newest.serials
        for renewal in task.renewals:
            if not all(self.certified(renewal.silo, k.key, k.certificate) for k in renewal.keys):
                raise ProtocolError(
                    f"{renewal.silo} is reported to have another key, without the authority's "
                    "certificates of its keys; ask the server's operator"
                )
            serials = [keys.serial(k.certificate.encode()) for k in renewal.keys]
            if serials != sorted(set(serials)) or serials[-1] < newest.get(renewal.silo, 0):
                raise ProtocolError(
                    f"the key of {renewal.silo} is older than the one shown before; ask the "
                    "server's operator"
                )

    def signing_keys(
        self, peer: str, task: Task, number: int, first_rounds: Sequence[int]
    ) -> tuple[str, ...]:
        """The keys that may have signed a row of a peer's round.

        Raises ProtocolError if none is known.

        Args:
            peer: the silo.
            task: that includes the row; its renewals have been verified.
            number: claimed round of the row.
            first_rounds: the rounds of this run in which this silo first saw each key of the peer
                except its first.
        """
        if renewal := next((r for r in task.renewals if r.silo == peer), None):
            earlier = zip(renewal.keys[:-1], first_rounds, strict=True)
            return (renewal.keys[-1].key, *(k.key for k, first in earlier if number < first))
        return (self.newest(peer, task),)

    def newest(self, peer: str, task: Task) -> str:
        """The key with which a peer signs now. Raises ProtocolError if none is known."""
        if renewal := next((r for r in task.renewals if r.silo == peer), None):
            return renewal.keys[-1].key
        if peer in self._newest.serials:
            raise ProtocolError(
                f"the renewed key of {peer} is no longer shown; ask the server's operator"
            )
        if newcomer := next((i for i in task.newcomers if i.silo == peer), None):
            return newcomer.key
        path = self.folder / "keys" / "peers" / f"{peer}.pub"
        if not path.exists():
            raise ProtocolError(
                f"no public key of {peer} is known; put it at keys/peers/{peer}.pub"
            )
        return keys.public(path).decode()

    def note(self, renewals: Sequence[Renewal]) -> None:
        """Record the newest keys of an accepted task."""
        serials = dict(self._newest.serials)
        updated = serials | {r.silo: keys.serial(r.keys[-1].certificate.encode()) for r in renewals}
        if updated != serials:
            write_sealed(self._path, NewestKeys(serials=updated))

    @cached_property
    def _newest(self) -> NewestKeys:
        return read_sealed(NewestKeys, self._path) or NewestKeys()

    @property
    def _path(self) -> Path:
        return self.folder / "state" / "renewed.json"


def first_rounds(renewal: Renewal, previous: Sequence[int], number: int) -> tuple[int, ...]:
    """The rounds in which each key except a silo's first was first seen; new ones count from round
    ``number``.

    Raises ProtocolError if there are fewer keys than before.
    """
    added = len(renewal.keys) - 1 - len(previous)
    if added < 0:
        raise ProtocolError(
            f"fewer keys of {renewal.silo} are shown than before; ask the server's operator"
        )
    return (*previous, *[number] * added)


def names(terms: StudyAgreement, task: Task) -> dict[int, str]:
    """Silos by place: founders from the agreement, newcomers as the authority certified them."""
    founders = dict(enumerate(s.name for s in terms.federation.silo))
    return {i.place: i.silo for i in task.newcomers} | founders


class PeerHistory(Settings):
    """Peers as seen in the tasks of one run, against replayed or swapped rows.

    ``rounds``: of the last signed row by name, 0 for a member of round 1, which starts with a row
    that everyone can compute. ``places``: the name of each newcomer's place. ``unsigned``: the one
    unsigned row of a newcomer, by name.
    ``shown``: the rounds in which each key of a silo except its first was first seen, by name.
    """

    run: Token | None = None
    rounds: dict[SiloName, Number] = Field({}, max_length=MAX_CLIENTS)
    places: dict[ClientId, SiloName] = Field({}, max_length=MAX_CLIENTS)
    unsigned: dict[SiloName, Sha256] = Field({}, max_length=MAX_CLIENTS)
    shown: dict[SiloName, tuple[Number, ...]] = Field({}, max_length=MAX_CLIENTS)


@dataclass(frozen=True)
class Provenance:
    """Verifies newcomers and signed rows, against the kit and earlier tasks.

    ``seen.json`` in the study's state records what was seen of each peer.
    """

    silo: Silo

    def require_newcomers(self, task: Task) -> None:
        """Raise ProtocolError for a newcomer, or a renewed key, that the authority has not
        certified.

        The same applies to a newcomer at another silo's place.
        """
        occupants, founders = self._history(task).places, len(self.silo.terms.federation.silo)
        member_ids = {name: member for member, name in occupants.items()}
        introduced = {silo.name for silo in self.silo.terms.federation.silo}
        for i in task.newcomers:
            if i.silo in introduced or not founders <= i.place < self.silo.terms.federation.places:
                raise ProtocolError(
                    f"{i.silo} is introduced at place {i.place}, which is not free; ask the "
                    "operator"
                )
            if (
                occupants.setdefault(i.place, i.silo) != i.silo
                or member_ids.setdefault(i.silo, i.place) != i.place
            ):
                raise ProtocolError(
                    f"{i.silo} is introduced at place {i.place}, unlike before; ask the operator"
                )
            self._require_certified(i)
            introduced.add(i.silo)
        if not self.silo.terms.federation.insecure:
            self._keys.require(task)

    def _require_certified(self, newcomer: Newcomer) -> None:
        """Raise ProtocolError without the authority's certificate, unless there are no keys."""
        signed = newcomer.silo, newcomer.key, newcomer.certificate
        if not self.silo.terms.federation.insecure and not self._keys.certified(*signed):
            raise ProtocolError(
                f"{newcomer.silo} is introduced without the authority's certificate; ask the "
                "server's operator"
            )

    def require(
        self,
        task: Task,
        relays: Mapping[str, str],
        rows: Mapping[str, bytes],
        initial: Callable[[str, int], bytes],
    ) -> None:
        """Raise ProtocolError for a row that its silo has not signed, or that is older than an
        earlier one.

        Args:
            task: from the server; its newcomers and the forms of its entries have been verified.
            relays: the entries with rows of single silos, and the name of the uplink's tensor that
                each was.
            rows: bytes by hash.
            initial: for an entry and a place, the initial row, which every member can compute and
                none signs.
        """
        if self.silo.terms.federation.insecure:
            return
        peers, history = names(self.silo.terms, task), self._history(task)
        self._note_members(task, peers, history)
        for key, tensor in relays.items():
            for j, digest in task.downlink[key].rows.items():
                origin, peer = task.downlink[key].origins.get(j), peers[j]
                if origin is not None:
                    self._require_signed(task, key, tensor, peer, origin, digest, history)
                    history.rounds[peer] = origin.round
                elif not _may_be_unsigned(peer, digest, initial(key, j) == rows[digest], history):
                    raise ProtocolError(
                        f"{key}: the row of {peer} is not signed by {peer}; ask the server's "
                        "operator"
                    )
        write_sealed(self._path, history)
        self._keys.note(task.renewals)

    def require_mask_keys(self, task: Task, mask_keys: Mapping[int, MaskKey]) -> None:
        """Raise ProtocolError for a key of a sum that its silo has not signed, that cannot be used,
        or that two silos have; by place. The task's newcomers and renewals have been verified.
        """
        peers = names(self.silo.terms, task)
        if strangers := sorted(set(mask_keys) - {i for i in peers if task.sizes[i]}):
            raise ProtocolError(
                f"a sum with place {strangers[0]}, which has no member; ask the server's operator"
            )
        require_keys({peers[member]: mask.key for member, mask in mask_keys.items()})
        for member, mask in () if self.silo.terms.federation.insecure else mask_keys.items():
            if member == task.place:  # its own, compared with its private key
                continue
            statement = mask_statement(task, peers[member], mask.key)
            if not signed(
                self._keys.newest(peers[member], task), "mask", statement, mask.signature
            ):
                raise ProtocolError(
                    f"the key of {peers[member]} for the sum is not signed by {peers[member]}; ask "
                    "the server's operator"
                )

    def _note_members(self, task: Task, peers: Mapping[int, str], history: PeerHistory) -> None:
        """Note who begins with round 1, newcomers' places, and renewed keys."""
        if task.number == 1:
            for member in (peers[i] for i, size in enumerate(task.sizes) if size and i in peers):
                history.rounds.setdefault(member, 0)
        history.places.update({i.place: i.silo for i in task.newcomers})
        history.shown.update(
            {
                r.silo: first_rounds(r, history.shown.get(r.silo, ()), task.number)
                for r in task.renewals
            }
        )

    def _require_signed(
        self,
        task: Task,
        key: str,
        tensor: str,
        peer: str,
        origin: RowOrigin,
        digest: str,
        history: PeerHistory,
    ) -> None:
        if origin.silo != peer or origin.tensor != tensor or origin.round > task.number:
            raise ProtocolError(
                f"{key}: a row for {peer} is labelled as {origin.tensor} of {origin.silo}"
            )
        if origin.round < history.rounds.get(peer, 0):
            raise ProtocolError(f"{key}: a row of {peer} is older than an earlier one")
        statement = row_statement(task.agreement, task.run, origin, digest)
        keys = self._keys.signing_keys(peer, task, origin.round, history.shown.get(peer, ()))
        if not any(signed(public_key, "row", statement, origin.signature) for public_key in keys):
            raise ProtocolError(f"{key}: the signature on the row of {peer} is not {peer}'s")

    @cached_property
    def _keys(self) -> PeerKeys:
        return PeerKeys(self.silo.folder, self.silo.terms)

    def _history(self, task: Task) -> PeerHistory:
        """Peers as seen in the task's run so far, for the caller to add to."""
        recorded = read_sealed(PeerHistory, self._path) or PeerHistory()
        if recorded.run in {None, task.run}:
            return recorded.model_copy(update={"run": task.run})
        return PeerHistory(run=task.run)

    @property
    def _path(self) -> Path:
        return self.silo.state / "seen.json"


def _may_be_unsigned(peer: str, digest: str, initial: bool, history: PeerHistory) -> bool:
    """Whether a row may be unsigned: the initial row of a silo that never signed, or a newcomer's
    one starting row.
    """
    if history.rounds.get(peer, 0) > 0:
        return False
    return initial or (
        peer not in history.rounds and history.unsigned.setdefault(peer, digest) == digest
    )

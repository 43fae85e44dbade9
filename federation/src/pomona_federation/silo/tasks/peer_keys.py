"""The keys by which another silo's rows are verified: its first, from the kit or introduced, and those that came later.

A key that was renewed is introduced by the authority's certificates of all keys that its silo has had, whose serial
numbers say their order. Rows that were signed before stay in use until their silo has trained again; so an earlier key
holds for rows of rounds before the one in which this silo was first shown the next key, and for no others. Once a
renewed key was shown, in whichever study, an older state of affairs is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import Field

from pomona.core.bounds import PLACES, Count
from pomona.core.errors import ProtocolError
from pomona.core.settings import Settings
from pomona_federation.agreement import Federation, SiloName
from pomona_federation.json_store import read_json, write_json
from pomona_federation.messages.message_bodies import Renewal, Task
from pomona_federation.pki import certificates, keys


class NewestKeys(Settings):
    """The serial number of the newest key seen of each silo whose key was renewed."""

    serials: dict[SiloName, Count] = Field({}, max_length=PLACES)


@dataclass(frozen=True)
class PeerKeys:
    """Keys of peers, by the kit and by tasks. ``state/renewed.json`` of the kit holds what was seen of renewed ones."""

    folder: Path
    federation: Federation

    def certified(self, silo: str, key: str, certificate: str) -> bool:
        """Whether a certificate is the authority's of a silo's key."""
        return keys.certified(self._authority, self.federation.name, silo, key.encode(), certificate.encode())

    def require(self, task: Task) -> None:
        """Raise ProtocolError for a renewed key that the authority has not certified, or that is not the newest."""
        newest = self._newest.serials
        for renewal in task.renewals:
            if not all(self.certified(renewal.silo, k.key, k.certificate) for k in renewal.keys):
                raise ProtocolError(
                    f"{renewal.silo} is said to have another key without the authority's certificates of its keys; ask "
                    "the server's operator"
                )
            serials = [keys.serial(k.certificate.encode()) for k in renewal.keys]
            if serials != sorted(set(serials)) or serials[-1] < newest.get(renewal.silo, 0):
                raise ProtocolError(f"an older key of {renewal.silo} is shown than before; ask the server's operator")

    def holding(self, peer: str, task: Task, number: int, shown: Sequence[int]) -> tuple[str, ...]:
        """The keys that a row of a peer's round may be signed with. Raises ProtocolError where none is known.

        Args:
            peer: the silo.
            task: that brings the row; its renewals have been verified.
            number: of the round that the row is said to be of.
            shown: the rounds in which this silo was first shown each key of the peer's but its first, in this run.
        """
        if renewal := next((r for r in task.renewals if r.silo == peer), None):
            earlier = zip(renewal.keys[:-1], shown, strict=True)
            return (renewal.keys[-1].key, *(k.key for k, begin in earlier if number < begin))
        if peer in self._newest.serials:
            raise ProtocolError(f"the renewed key of {peer} is shown no more; ask the server's operator")
        if newcomer := next((i for i in task.newcomers if i.silo == peer), None):
            return (newcomer.key,)
        path = self.folder / "keys" / "peers" / f"{peer}.pub"
        if not path.exists():
            raise ProtocolError(f"no public key of {peer} is known; put it at keys/peers/{peer}.pub")
        return (keys.public(path).decode(),)

    def note(self, renewals: Sequence[Renewal]) -> None:
        """Write down the newest keys of a task that was accepted."""
        known = dict(self._newest.serials)
        seen = known | {r.silo: keys.serial(r.keys[-1].certificate.encode()) for r in renewals}
        if seen != known:
            write_json(self._path, NewestKeys(serials=seen))

    @cached_property
    def _newest(self) -> NewestKeys:
        return read_json(NewestKeys, self._path) or NewestKeys()

    @cached_property
    def _authority(self) -> bytes:
        return certificates.content(self.folder / "certs" / "ca.crt")

    @property
    def _path(self) -> Path:
        return self.folder / "state" / "renewed.json"


def first_shown(renewal: Renewal, known: Sequence[int], number: int) -> tuple[int, ...]:
    """The rounds in which each key but a silo's first was first shown; those that are new in round ``number``.

    Raises ProtocolError where fewer keys are shown than before.
    """
    new = len(renewal.keys) - 1 - len(known)
    if new < 0:
        raise ProtocolError(f"fewer keys of {renewal.silo} are shown than before; ask the server's operator")
    return (*known, *[number] * new)

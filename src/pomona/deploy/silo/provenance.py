"""Whose rows a task brings: a row that is another silo's counts only with that silo's signature."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pomona.deploy.federation import Federation
from pomona.deploy.trust.keys import certified
from pomona.deploy.trust.signing import signed
from pomona.deploy.wire import Introduction, Origin, Task, row_statement
from pomona.errors import ProtocolError
from pomona.federation.durable import publish


def names(federation: Federation, task: Task) -> dict[int, str]:
    """Who has which place: the founders by the agreement, newcomers as the authority certified them."""
    founders = dict(enumerate(s.name for s in federation.silo))
    return {i.place: i.silo for i in task.introductions} | founders


@dataclass(frozen=True)
class Provenance:
    """What a silo knows of others, from its kit and from the tasks before.

    Attributes:
        folder: the silo's kit. ``state/seen.json`` in it holds the round of the last row of each peer.
        federation: what was agreed.
    """

    folder: Path
    federation: Federation

    def require(
        self, task: Task, key: str, tensor: str, rows: Mapping[str, bytes], initial: Callable[[int], bytes]
    ) -> None:
        """Raise ProtocolError for a row of an offer that its silo has not signed, or that is older than one before.

        Args:
            task: from the server.
            key: of the offer in it.
            tensor: the uplink's tensor that the offer's rows were.
            rows: bytes by hash.
            initial: a place's row as the run starts, which everybody can make and nobody signs.
        """
        if self.federation.insecure:
            return
        offer, peers, seen = task.offers[key], names(self.federation, task), self.folder / "state" / "seen.json"
        known: dict[str, int] = json.loads(seen.read_text()) if seen.exists() else {}
        if task.number == 1:  # these begin with rows that everybody can make; a later newcomer's is the server's word
            known = dict.fromkeys((peers[i] for i, size in enumerate(task.sizes) if size), 0) | known
        for j, digest in offer.rows.items():
            origin, peer = offer.origins.get(j), peers.get(j, f"place {j}")
            if origin is not None:
                self._require_signed(task, key, tensor, peer, origin, digest, known.get(peer, 0))
                known[peer] = origin.round
            elif peer in known and initial(j) != rows[digest]:
                raise ProtocolError(f"{key}: the row of {peer} is not signed by {peer}; ask the server's operator")
        publish(seen.parent, [json.dumps(known).encode()], lambda _: seen.name, ".seen")

    def _require_signed(
        self, task: Task, key: str, tensor: str, peer: str, origin: Origin, digest: str, last: int
    ) -> None:
        if origin.silo != peer or origin.tensor != tensor or origin.round > task.number:
            raise ProtocolError(f"{key}: a row for {peer} is said to be {origin.tensor} of {origin.silo}")
        if origin.round < last:
            raise ProtocolError(f"{key}: a row of {peer} is older than one that came before")
        about = row_statement(task.agreement, task.run, origin, digest)
        if not signed(self._key(peer, task), "row", about, origin.signature):
            raise ProtocolError(f"{key}: the signature on the row of {peer} is not {peer}'s")

    def _key(self, peer: str, task: Task) -> str:
        """A silo's public key: from the kit, or introduced with the authority's word for it."""
        for i in task.introductions:
            if i.silo == peer and self._vouched(i):
                return i.key
        path = self.folder / "keys" / "peers" / f"{peer}.pub"
        if not path.exists():
            raise ProtocolError(f"no public key of {peer} is known; put it at keys/peers/{peer}.pub")
        return path.read_text()

    def _vouched(self, i: Introduction) -> bool:
        authority = (self.folder / "certs" / "ca.crt").read_bytes()
        return certified(authority, i.silo, i.key.encode(), bytes.fromhex(i.certificate))

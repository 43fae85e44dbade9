"""The start of a study: the id of its run, and waiting for the participating silos."""

import secrets
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol

from pomona.core.errors import QuorumError
from pomona.core.settings import Settings
from pomona_federation import versions
from pomona_federation.agreement import StudyAgreement
from pomona_federation.json_store import read_json, write_json
from pomona_federation.messages.message_bodies import Token
from pomona_federation.server.members.member_registry import MemberRegistry
from pomona_federation.versions import Versions, own, require_begun


class Identity(Settings):
    """A run's id and the versions that it was started with, in ``run.json``."""

    run: Token
    begun: Versions | None = None


def run_id(out: Path) -> str:
    """The run's id, drawn once. Raises StorageError for a damaged file, CheckpointError for another version's."""
    path = out / "run.json"
    known = read_json(Identity, path)
    if known is None:
        known = Identity(run=secrets.token_hex(8), begun=own())
        write_json(path, known)
    require_begun(known.begun, "the run")
    return known.run


class Gatherer(Protocol):
    """A carrier of messages: it knows which places have identified themselves, and can wait for others."""

    @property
    def registry(self) -> MemberRegistry:
        """The member registry."""

    @property
    def known(self) -> frozenset[int]:
        """The places whose nodes have identified themselves."""

    def gather(self, seconds: float, missing: Callable[[], Sequence[str]]) -> None:
        """Greet until no silo is ``missing``, or for this long."""


def gather_silos(
    transport: Gatherer,
    agreed: StudyAgreement,
    standing: Path,
    awaited: Callable[[Collection[str]], Collection[str]] = frozenset,
) -> None:
    """Wait for all current members, through arrivals and revocations. Raises QuorumError.

    It does not wait for silos that are not ``awaited``, such as one that declines meanwhile, nor for those whose
    versions, as last noted in ``standing`` (the kit's folder ``run/``), do not work with the server's.
    """

    def members() -> list[tuple[int, str]]:
        known = [(place, e.name) for place, e in enumerate(transport.registry.entries) if not e.revoked]
        wanted = awaited([name for _, name in known])
        return [(place, name) for place, name in known if name in wanted]

    def missing() -> list[str]:
        other = {name for name, said in versions.noted(standing).items() if not said.works_with(versions.own())}
        return [name for place, name in members() if place not in transport.known and name not in other]

    transport.gather(agreed.study.wait, missing)
    everybody = [name for _, name in members()]
    away = [name for place, name in members() if place not in transport.known]
    if len(everybody) - len(away) < agreed.quorum:
        raise QuorumError(
            f"{len(everybody) - len(away)} of {len(everybody)} silos came within {agreed.study.wait:g} s, "
            f"{agreed.quorum} are needed (missing: {', '.join(sorted(away))}); have them started, then resume"
        )

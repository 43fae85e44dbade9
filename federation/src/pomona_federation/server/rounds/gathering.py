"""Waiting for the silos that take part, before a study begins."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol

from pomona.core.errors import QuorumError
from pomona_federation import versions
from pomona_federation.agreement import Federation
from pomona_federation.server.members.member_registry import MemberRegistry


class Gatherer(Protocol):
    """Whoever carries messages: it knows which places have said who they are, and can wait for others."""

    @property
    def registry(self) -> MemberRegistry:
        """Who is a member."""

    @property
    def known(self) -> frozenset[int]:
        """The places whose nodes have said who they are."""

    def gather(self, seconds: float, missing: Callable[[], Sequence[str]]) -> None:
        """Greet until no silo is ``missing`` any more, or for so long."""


def gather_silos(
    transport: Gatherer,
    federation: Federation,
    standing: Path,
    awaited: Callable[[Collection[str]], Collection[str]] = frozenset,
) -> None:
    """Wait for all silos that are members now, whoever comes or is revoked meanwhile. Raises QuorumError.

    Not waited for are those that are not ``awaited``, as one that declines meanwhile, and those whose versions do not
    work with the server's, as they have last said in ``standing``, the kit's folder ``run/``.
    """

    def members() -> list[tuple[int, str]]:
        known = [(place, e.name) for place, e in enumerate(transport.registry.entries) if not e.revoked]
        wanted = awaited([name for _, name in known])
        return [(place, name) for place, name in known if name in wanted]

    def missing() -> list[str]:
        other = {name for name, said in versions.noted(standing).items() if not said.works_with(versions.own())}
        return [name for place, name in members() if place not in transport.known and name not in other]

    transport.gather(federation.wait, missing)
    everybody = [name for _, name in members()]
    away = [name for place, name in members() if place not in transport.known]
    if len(everybody) - len(away) < federation.quorum:
        raise QuorumError(
            f"{len(everybody) - len(away)} of {len(everybody)} silos came within {federation.wait:g} s, "
            f"{federation.quorum} are needed (missing: {', '.join(sorted(away))}); have them started, then resume"
        )

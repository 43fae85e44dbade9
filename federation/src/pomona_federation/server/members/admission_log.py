"""Log of admission decisions: one line in the server's audit per uplink, used or not, with norms and limits."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from pomona.federation.admission import UNBOUNDED, Admission
from pomona_federation.audit import Audit
from pomona_federation.server.members.member_registry import MemberRegistry

EVENT = "admission"


@dataclass(frozen=True)
class AdmissionLog:
    """Logs each decision of the round loop.

    A line has the round, the silo, whether its uplink was ``admitted`` and, if not, the reason; for an uplink of the
    right form also, by tensor, the L2 ``norms`` and their ``limits``. Null stands for a norm that is not finite, and
    for a limit while too few norms are known to compute one.
    """

    audit: Audit
    registry: MemberRegistry

    def __call__(self, number: int, verdict: Admission) -> None:
        """Log the decisions of one exchange. Raises StorageError."""
        names = [entry.name for entry in self.registry.entries]
        decisions = [
            *((a.reply.client, "") for a in verdict.accepted),
            *((r.client, r.reason) for r in verdict.rejected),
        ]
        for client, reason in decisions:
            line = {"round": number, "silo": names[client], "admitted": not reason}
            measured = verdict.norms.get(client)
            limits = {} if measured is None else {"norms": _figures(measured), "limits": _figures(verdict.bounds)}
            self.audit.write(EVENT, **line, **limits, **({"reason": reason} if reason else {}))


def _figures(values: Mapping[str, float]) -> dict[str, float | None]:
    """Each value to six digits; None for one that is not finite."""
    return {name: float(f"{v:.6g}") if isfinite(v) and v < UNBOUNDED else None for name, v in values.items()}

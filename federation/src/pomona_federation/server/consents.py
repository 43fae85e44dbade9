"""The silos' decisions on a study at the server, ``consents.json``: signed acceptances and
refusals.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from pomona.core.bounds import MAX_CLIENTS, Count, Finite, Hex
from pomona.core.errors import ProtocolError
from pomona.core.settings import Settings
from pomona.storage.lock import waiting_lock
from pomona_federation.agreement import SiloName
from pomona_federation.json_store import read_json, write_json
from pomona_federation.messages.study_bodies import Decision
from pomona_federation.unused_uplinks import Reason

CONSENTS = "consents.json"
# of a silo's decision on a study: each is a line of the audit log, and disks are finite
MOST_CHANGES = 100


class SignedDecision(Settings):
    """A decision, the silo's signature on it, its time (seconds since 1970), and the number of
    earlier changes.
    """

    accepted: bool
    signature: Hex
    time: Finite
    changes: Count = 0


class ConsentsFile(Settings):
    """All decisions on a study, by silo."""

    silos: dict[SiloName, SignedDecision] = Field({}, max_length=MAX_CLIENTS)


@dataclass(frozen=True)
class Consents:
    """Decisions on the study of a folder."""

    folder: Path

    @property
    def decisions(self) -> dict[SiloName, SignedDecision]:
        """Each silo's last decision."""
        return (read_json(ConsentsFile, self.folder / CONSENTS) or ConsentsFile()).silos

    @property
    def declined(self) -> frozenset[str]:
        """The silos that will not take part."""
        return frozenset(silo for silo, decision in self.decisions.items() if not decision.accepted)

    def unused(self, silo: str) -> Reason | None:
        """Why a silo takes no part by its own decision; None if it has accepted, or if none has
        decided, as on the kit's own study.
        """
        decisions = self.decisions
        if silo in decisions:
            return None if decisions[silo].accepted else Reason.DECLINED
        return Reason.UNDECIDED if decisions else None

    def awaited(self, silos: Collection[str]) -> frozenset[str]:
        """The silos that a study waits for: those that accepted; for the kit's own, which needs no
        consent, all.
        """
        decisions = self.decisions
        accepted = {silo for silo, decision in decisions.items() if decision.accepted}
        return frozenset(silos) & accepted if accepted else frozenset(silos) - decisions.keys()

    def is_new(self, decision: Decision) -> bool:
        """Whether a decision is new from its silo.

        Raises ProtocolError if the silo has changed it too often.
        """
        previous = self.decisions.get(decision.silo)
        if previous is None or previous.accepted == decision.accepted:
            return previous is None
        if previous.changes >= MOST_CHANGES:
            raise ProtocolError(
                f"{decision.silo} has changed its decision {MOST_CHANGES} times; the last one "
                "counts"
            )
        return True

    def record(self, decision: Decision, signature: str) -> None:
        """Record a decision, durably, if it is new.

        Raises ProtocolError as ``is_new``, and StorageError.
        """
        with waiting_lock(self.folder / ".consents.lock"):
            if not self.is_new(decision):
                return
            decisions = self.decisions
            changes = decisions[decision.silo].changes + 1 if decision.silo in decisions else 0
            record = SignedDecision(
                accepted=decision.accepted, signature=signature, time=time.time(), changes=changes
            )
            write_json(
                self.folder / CONSENTS, ConsentsFile(silos={**decisions, decision.silo: record})
            )

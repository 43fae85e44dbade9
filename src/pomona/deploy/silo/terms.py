"""What a silo holds fast: what it agreed to, whose run it works for, which place is its own, and what that allows.

A task is judged here by its text alone, before a row of it is looked at. ``state/agreement.json`` holds the agreement
from the first hello on, run and place from the first task on.
"""

from dataclasses import dataclass
from pathlib import Path

from pomona.bounds import Place, Sha256
from pomona.deploy.federation import Federation
from pomona.deploy.memories import recall, remember
from pomona.deploy.silo.provenance import names
from pomona.deploy.wire import Offer, Task, Token
from pomona.errors import ProtocolError
from pomona.settings import Settings

PIN = "agreement.json"
START_OVER = "if that is meant, remove state/agreement.json"


class Pin(Settings):
    """What is held fast: the agreement, and since the first task the run and this silo's place."""

    agreement: Sha256
    run: Token | None = None
    place: Place | None = None


@dataclass(frozen=True)
class Terms:
    """A silo's terms.

    Attributes:
        state: the silo's folder for what changes.
        federation: what was agreed.
        silo: the silo's name.
    """

    state: Path
    federation: Federation
    silo: str

    def require_agreed(self, agreement: str, run: str) -> None:
        """Raise ProtocolError unless the server means what this silo has agreed to, and go on meaning it."""
        mine = self.federation.agreement
        pinned = self._pinned() or self._pin(Pin(agreement=mine))
        if mine != pinned.agreement:
            raise ProtocolError(
                "federation.toml is no longer what this silo agreed to when it first started; restore it, or, if the "
                "change is meant, remove state/agreement.json"
            )
        if agreement != mine:
            raise ProtocolError(
                "the server runs something else than this silo agreed to; compare federation.toml with the server's"
            )
        if pinned.run not in {None, run}:
            raise ProtocolError(
                f"the server has begun another run ({run}) than the one that this silo works for ({pinned.run}); "
                f"{START_OVER}"
            )

    def require(self, task: Task, samples: int, width: int) -> None:
        """Raise ProtocolError unless a task is one that this silo agreed to.

        Args:
            task: from the server; the introductions in it have been verified.
            samples: training samples of this silo.
            width: numbers of a model.
        """
        self.require_agreed(task.agreement, task.run)
        self._require_own(task, samples)
        last = self.federation.config().rounds + (not task.trains)  # the closing visit evaluates
        if not task.settled < task.number <= last:
            raise ProtocolError(
                f"round {task.number} after round {task.settled}, but {last} is the last of the rounds agreed on"
            )
        for key, offer in task.offers.items():
            self._require_whole(task, key, offer)
            if offer.width > 4 * (width + self.federation.places):
                raise ProtocolError(f"{key}: a row of {offer.width} numbers, the model agreed on has {width}")

    def hold(self, task: Task) -> None:
        """Hold fast whose run this is and which place is this silo's, durably."""
        known = self._pinned()
        if known is None or known.place is None:
            self._pin(Pin(agreement=self.federation.agreement, run=task.run, place=task.place))

    def _require_own(self, task: Task, samples: int) -> None:
        """The place is this silo's, and the server counts it as it is."""
        who = names(self.federation, task).get(task.place, "nobody")
        if who != self.silo:
            raise ProtocolError(f"a task for place {task.place}, which is {who}'s; this silo is {self.silo}")
        known = self._pinned()
        if known and known.place not in {None, task.place}:
            raise ProtocolError(f"a task for place {task.place}, but this silo has place {known.place}; {START_OVER}")
        if len(task.sizes) != self.federation.places:
            raise ProtocolError(f"a task with {len(task.sizes)} places, agreed are {self.federation.places}")
        if task.sizes[task.place] != samples:
            raise ProtocolError(
                f"the server counts {task.sizes[task.place]} training samples of this silo, which has {samples}; put "
                "the data back, or have the silo revoked and added under a new name"
            )

    def _require_whole(self, task: Task, key: str, offer: Offer) -> None:
        """An offer names rows that it brings, of others who are members."""
        if not offer.many:
            if set(offer.rows) != {0} or offer.index != (0,):
                raise ProtocolError(f"{key}: one row was to come; check the server's version")
            return
        others = [j for j in offer.index if j != task.place]
        if set(others) != set(offer.rows) or len(others) != len(set(others)):
            raise ProtocolError(f"{key} speaks of rows that there are not; check the server's version")
        members = {j for j in names(self.federation, task) if task.sizes[j]}
        if strangers := sorted(set(others) - members):
            raise ProtocolError(f"{key}: a row for place {strangers[0]}, which is nobody's; ask the server's operator")

    def _pinned(self) -> Pin | None:
        return recall(Pin, self.state / PIN)

    def _pin(self, said: Pin) -> Pin:
        remember(self.state / PIN, said)
        return said

"""What a silo holds fast: what it agreed to, whose run it works for, which place is its own, and what that allows.

A task is judged here by its text alone, before a row of it is looked at. ``state/agreement.json`` holds the agreement
from the first hello on, run and place from the first task on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from pomona.core.bounds import Label, Place, Sha256
from pomona.core.errors import ProtocolError
from pomona.core.settings import Settings
from pomona.deploy.agreement import Federation
from pomona.deploy.json_store import recall, remember
from pomona.deploy.messages import EntryForm, Offer, Task, Token
from pomona.deploy.silo.provenance import names
from pomona.deploy.silo.task_tensors import InitialDownlink

PIN = "agreement.json"
START_OVER = "if that is meant, remove state/agreement.json"


class Pin(Settings):
    """What is held fast: the agreement, and since the first task the run, this silo's place, what tasks are made of."""

    agreement: Sha256
    run: Token | None = None
    place: Place | None = None
    forms: dict[Label, EntryForm] | None = Field(None, max_length=20)


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

    def require(self, task: Task, samples: int) -> None:
        """Raise ProtocolError unless a task is one that this silo agreed to.

        Args:
            task: from the server; the introductions in it have been verified.
            samples: training samples of this silo.
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

    def forms(self, beginning: InitialDownlink) -> dict[str, EntryForm]:
        """The form of each entry that a task of this run has: held fast, or, before a first task, as a run begins."""
        known = self._pinned()
        return known.forms if known and known.forms is not None else beginning.forms

    def hold(self, task: Task, forms: dict[str, EntryForm]) -> None:
        """Hold fast whose run this is, which place is this silo's and what tasks are made of, durably."""
        known = self._pinned()
        if known is None or known.place is None:
            self._pin(Pin(agreement=self.federation.agreement, run=task.run, place=task.place, forms=forms))

    def require_forms(self, task: Task, forms: Mapping[str, EntryForm]) -> None:
        """Raise ProtocolError unless each entry of a task, and no other, has the form that the method gives it."""
        if missing := sorted(forms.keys() ^ task.offers.keys()):
            raise ProtocolError(f"{missing[0]}: only one side knows this entry; check that both run the same version")
        for key, offer in task.offers.items():
            if offer.form != forms[key]:
                raise ProtocolError(
                    f"{key}: {_worded(offer.form)} came, the model and method agreed on have {_worded(forms[key])}"
                )

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
        if not offer.form.many:
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


def _worded(form: EntryForm) -> str:
    rows = "rows of single silos" if form.many else "one row"
    return f"{rows} of {form.width} numbers {form.dtype}"

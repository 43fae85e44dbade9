"""Task policy of a silo: which of the server's tasks it accepts.

A task is checked here by its text alone, before any of its rows is read. ``state/agreement.json``
pins the agreement with the first hello, run and place with the first task. ``state/asked.json``
records the last tasks: a silo trains once a round and evaluates once a round, since a server that
could ask repeatedly would learn how any model performs on the silo's data. The same task again gets
the same answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from pomona.core.bounds import Number, Sha256
from pomona.core.errors import ConfigError, ProtocolError
from pomona.core.settings import Settings
from pomona_federation.json_store import read_sealed, write_sealed
from pomona_federation.messages.message_bodies import (
    DownlinkEntry,
    EntryForm,
    Hello,
    SumRequest,
    Task,
    Token,
)
from pomona_federation.silo.consent_rules import local_now
from pomona_federation.silo.row_provenance import Provenance, names
from pomona_federation.silo.silo_in_study import PINNED, PinnedAgreement, Silo, note_id
from pomona_federation.silo.silo_scenario import InitialDownlink
from pomona_federation.versions import installed, require_begun

MAX_RUNS = 10_000  # most runs of a study
REMOVE_PIN = "if that is intended, remove state/agreement.json"


@dataclass(frozen=True)
class TaskPolicy:
    """Accepts or refuses tasks by the agreement and what was pinned."""

    silo: Silo

    def require_agreed(self, agreement: str, run: str) -> None:
        """Raise ProtocolError unless agreement and run are the agreed ones and the time is within
        the silo's hours.
        """
        self.silo.consent.require_time(local_now())
        mine = self._agreement()
        pinned = self._pinned() or self._pin(PinnedAgreement(agreement=mine, begun=installed()))
        require_begun(pinned.begun, "this silo's part in the study")
        if mine != pinned.agreement:
            raise ProtocolError(
                "federation.toml, or own code that it names, has changed since this silo first "
                "agreed to it; restore it, or, if the change is intended, remove "
                "state/agreement.json"
            )
        if agreement != mine:
            raise ProtocolError(
                "the server runs something other than what this silo agreed to; compare "
                "federation.toml, and own code that it names, with the server's"
            )
        if pinned.run not in {None, run}:
            raise ProtocolError(
                f"the server has started run {run}, but this silo works for run {pinned.run}; "
                f"{REMOVE_PIN}"
            )

    def note_place(self, hello: Hello) -> None:
        """Keep the place that the server has admitted this silo to, if it is not a founder.

        Raises ProtocolError for another place than before.
        """
        if (number := hello.newcomers.get(self.silo.file.name)) is not None:
            note_id(self.silo.folder, self.silo.federation, self.silo.file.name, number)

    def _agreement(self) -> str:
        """The agreement's hash.

        Raises ProtocolError if it cannot be computed here because custom code is missing.
        """
        try:
            return self.silo.terms.agreement
        except ConfigError as fault:
            raise ProtocolError(str(fault)) from None

    def require(self, task: Task, provenance: Provenance) -> None:
        """Raise ProtocolError unless this silo has agreed to such a task.

        The silo's data are not read for a task of another agreement.

        Args:
            task: from the server.
            provenance: verifies its newcomers.
        """
        self.require_agreed(task.agreement, task.run)
        provenance.require_newcomers(task)
        self._require_own(task)
        terms = self.silo.terms
        n_members = sum(task.sizes[member] > 0 for member in names(terms, task))
        self.silo.consent.require_members(n_members)
        last = terms.config.rounds + (not task.trains)  # the closing visit evaluates
        if not task.settled < task.number <= last:
            raise ProtocolError(
                f"round {task.number} after round {task.settled}, but {last} is the last of the "
                "rounds agreed on"
            )
        for key, entry in task.downlink.items():
            self._require_whole(task, key, entry)

    def entry_forms(self, initial: InitialDownlink) -> dict[str, EntryForm]:
        """The form of each entry in tasks of this run: as pinned or, before the first task, as a
        run starts.
        """
        pinned = self._pinned()
        return pinned.forms if pinned and pinned.forms is not None else initial.entry_forms

    def pin(self, task: Task, entry_forms: dict[str, EntryForm], rows: str) -> None:
        """Pin an agreed task's run, this silo's place, the form of tasks' entries and its data's
        hash, durably.
        """
        pinned = self._pinned()
        if pinned is None or pinned.place is None:
            initial_versions = pinned.begun if pinned else installed()
            fields = {"run": task.run, "place": task.place, "forms": entry_forms, "rows": rows}
            self._pin(PinnedAgreement(agreement=task.agreement, begun=initial_versions, **fields))

    def require_forms(self, task: Task, entry_forms: Mapping[str, EntryForm]) -> None:
        """Raise ProtocolError unless a task has exactly the method's entries, each in the method's
        form.
        """
        if missing := sorted(entry_forms.keys() ^ task.downlink.keys()):
            raise ProtocolError(
                f"{missing[0]}: only one side knows this entry; check that both run the same "
                "version"
            )
        for key, entry in task.downlink.items():
            if entry.form != entry_forms[key]:
                raise ProtocolError(
                    f"{key}: received {_worded(entry.form)}, but the agreed model and method have "
                    f"{_worded(entry_forms[key])}"
                )

    def _require_own(self, task: Task) -> None:
        """Require that the place is this silo's, with its actual number of samples."""
        me, owner = self.silo.file.name, names(self.silo.terms, task).get(task.place, "nobody")
        if owner != me:
            raise ProtocolError(
                f"a task for place {task.place}, which is {owner}'s; this silo is {me}"
            )
        pinned = self._pinned()
        if pinned and pinned.place not in {None, task.place}:
            raise ProtocolError(
                f"a task for place {task.place}, but this silo has place {pinned.place}; "
                f"{REMOVE_PIN}"
            )
        note_id(self.silo.folder, self.silo.federation, me, task.place)
        for sizes in filter(None, (task.sizes, task.joined)):
            if len(sizes) != (n_places := self.silo.terms.federation.places):
                raise ProtocolError(
                    f"a task with {len(sizes)} places; the agreement says {n_places}"
                )
            if sizes[task.place] != self.silo.samples:
                raise ProtocolError(
                    f"the server counts {sizes[task.place]} training samples of this silo, which "
                    f"has {self.silo.samples}; put the data back, or have the silo revoked and "
                    "added under a new name"
                )
        self.silo.require_same_rows()

    def _require_whole(self, task: Task, key: str, entry: DownlinkEntry) -> None:
        """Require that an entry names only rows that the task includes, from current members."""
        if not entry.form.many:
            if set(entry.rows) != {0} or entry.index != (0,):
                raise ProtocolError(f"{key}: one row was expected; check the server's version")
            return
        peers = [j for j in entry.index if j != task.place]
        if set(peers) != set(entry.rows) or len(peers) != len(set(peers)):
            raise ProtocolError(f"{key} names rows that do not exist; check the server's version")
        members = {j for j in names(self.silo.terms, task) if task.sizes[j]}
        if strangers := sorted(set(peers) - members):
            raise ProtocolError(
                f"{key}: a row for place {strangers[0]}, which has no member; ask the server's "
                "operator"
            )

    def _pinned(self) -> PinnedAgreement | None:
        return read_sealed(PinnedAgreement, self.silo.state / PINNED)

    def _pin(self, pinned: PinnedAgreement) -> PinnedAgreement:
        write_sealed(self.silo.state / PINNED, pinned)
        return pinned


class LastTasks(Settings):
    """The last task of each kind in a run: its round, and its question.

    ``settled``: the newest of this silo's rounds that a task continued from. ``summed``: the round
    and context of the last sum. ``left``: earlier runs, whose rounds are no longer known.
    """

    run: Token
    left: tuple[Token, ...] = Field((), max_length=MAX_RUNS)
    settled: Number = 0
    training: tuple[Number, Sha256 | Literal[""]] = (0, "")
    summed: tuple[Number, Sha256 | Literal[""]] = (0, "")
    evaluation: tuple[Number, Sha256 | Literal[""]] = (0, "")


@dataclass(frozen=True)
class TaskLog:
    """The last tasks, in a file of a silo's state."""

    path: Path

    def require_new(self, task: Task) -> None:
        """Raise ProtocolError for a round before the last one, or for a different task in a round
        that was asked before.

        A late task of an earlier round would replace the models of a later visit.

        Also for one that starts anew after this silo's rounds have counted: a method's start may
        ask more of the data than its rounds do.
        """
        tasks = self._last_tasks(task)
        if tasks.settled and not task.settled:
            raise ProtocolError(
                f"round {task.number} is to start over, after this silo's round {tasks.settled} "
                "has counted; if the server went back on purpose, remove state/asked.json"
            )
        number, question = tasks.training if task.trains else tasks.evaluation
        newest = max(tasks.training[0], tasks.evaluation[0])
        if task.number < newest or (task.number == number and task.question != question):
            verb = "trained with" if newest == tasks.training[0] else "evaluated"
            raise ProtocolError(
                f"round {task.number} is asked again with a different task, after round {newest} "
                f"was {verb} once; if the server went back on purpose, remove state/asked.json"
            )

    def note(self, task: Task) -> None:
        """Record an accepted task, durably, before it is done."""
        tasks, key = self._last_tasks(task), "training" if task.trains else "evaluation"
        news = {key: (task.number, task.question), "settled": max(tasks.settled, task.settled)}
        write_sealed(self.path, tasks.model_copy(update=news))

    def one_sum(self, request: SumRequest) -> None:
        """Record a sum, durably, before this silo's part in it is made.

        The same sum may be asked for again.

        Raises ProtocolError for a second sum of a round: the difference of two sums of the same
        models is the model of the silo that only one of them has.
        """
        tasks = self._last_tasks(request.task)
        number = tasks.summed[0]
        if (request.number, request.context) == tasks.summed:
            return  # the same bytes, also after a later round: the server may have gone back
        if request.number <= number:
            raise ProtocolError(
                f"round {request.number} is to be summed over other silos, after this silo has "
                f"masked its part in a sum of round {number}; have the silos of that sum started, "
                "and the server resumed"
            )
        if request.number < tasks.training[0]:
            raise ProtocolError(
                f"a sum of round {request.number}, after this silo has trained in round "
                f"{tasks.training[0]}; check the server's version"
            )
        write_sealed(
            self.path, tasks.model_copy(update={"summed": (request.number, request.context)})
        )

    def _last_tasks(self, task: Task) -> LastTasks:
        """The last tasks in the task's run.

        Raises ProtocolError for a run that was left for another: its rounds would be asked again.
        """
        tasks = read_sealed(LastTasks, self.path) or LastTasks(run=task.run)
        if task.run in tasks.left:
            raise ProtocolError(
                f"the server goes back to run {task.run}, which this silo has left for run "
                f"{tasks.run}; if that is intended, remove state/asked.json"
            )
        if tasks.run == task.run:
            return tasks
        return LastTasks(run=task.run, left=(*tasks.left, tasks.run))


def _worded(entry_form: EntryForm) -> str:
    rows = "rows of single silos" if entry_form.many else "one row"
    return f"{rows} of {entry_form.width} numbers {entry_form.dtype}"

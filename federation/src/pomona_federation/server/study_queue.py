"""The studies of a server in order: ``run/`` is the folder of the kit's own study,
``run/studies/NAME/`` of others.

A submitted study waits until the silos have decided on it, runs after the studies before it, and
keeps its folder. An evaluation is completed with the data of the study that it evaluates, for silos
to agree to.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pomona.core.errors import ConfigError, suggestion
from pomona.core.files import writing
from pomona.core.toml import named_file
from pomona.storage.lock import locked
from pomona.storage.run_status import Paused, read_status, write_status
from pomona_federation.agreement import Federation, StudyAgreement
from pomona_federation.audit_log import write_line
from pomona_federation.server import submissions
from pomona_federation.server.consents import Consents
from pomona_federation.server.member_registry import ROSTER, MemberRegistry, member_ids
from pomona_federation.server.registry_admin import entries
from pomona_federation.server.submissions import FINAL_STATES, QueuedStudy, State, SubmittedStudy
from pomona_federation.study import KIT, LONGEST, EvaluationStudy, Study, SurveyStudy, read_study


def draining(run: Path) -> bool:
    """Whether the operator lets no round and no study begin; ``run``: the kit's folder."""
    return (run / DRAIN).exists()


def require_undrained(run: Path) -> None:
    """Raise Paused if the operator lets no round begin."""
    if draining(run):
        raise Paused(DRAINED)


STOPPED = 143  # exit code of a study that is to continue later
DRAINED = "the server is drained; `pomona server undrain` continues"
DRAIN = "drain"  # file in run/: while it is there, no round and no study begins


@dataclass(frozen=True)
class StudyQueue:
    """The studies in a server's kit; its federation and members are read once."""

    kit: Path

    @cached_property
    def federation(self) -> Federation:
        """The federation of the kit."""
        return Federation.read(self.kit / "federation.toml")

    @cached_property
    def members(self) -> frozenset[str]:
        """The names of the current members."""
        return frozenset(member_ids(entries(self.kit)))

    @property
    def all(self) -> list[QueuedStudy]:
        """All studies, in order. Raises StorageError for a file that cannot be read."""
        initial = [QueuedStudy(KIT, self.kit / "run")] if self.federation.study else []
        return [*initial, *submissions.in_order(self.kit)]

    def study(self, name: str) -> QueuedStudy:
        """A study by name. Raises ConfigError."""
        studies = {study.name: study for study in self.all}
        if name not in studies:
            if name == KIT:
                raise ConfigError(
                    "this federation's kit came with no study; name one of `pomona server study "
                    "list`"
                )
            raise ConfigError(f"no study {name!r}; {suggestion(name, sorted(studies))}")
        return studies[name]

    def state(self, study: QueuedStudy) -> State:
        """The state of a study; "running" may be left over from a killed server."""
        if study.submission and study.submission.aborted:
            return "aborted"
        if status := read_status(study.folder):
            return status.state
        return "queued" if study.submission is None else self._decided(study, study.submission)

    def next(self) -> QueuedStudy | None:
        """The study to run now: the first that is neither finished nor undecided; a started one
        comes first; none while the server is drained.
        """
        if draining(self.kit / "run"):
            return None
        states = [(study, self.state(study)) for study in self.all]
        started = [study for study, state in states if state in {"running", "interrupted"}]
        queued = [study for study, state in states if state == "queued"]
        return next(iter([*started, *queued]), None)

    @property
    def current(self) -> QueuedStudy | None:
        """The running study; else the one that ran last, or is first in line; None without any."""
        studies = self.all
        ran = [
            (status.state == "running", status.time, k)
            for k, s in enumerate(studies)
            if (status := read_status(s.folder))
        ]
        return studies[max(ran)[2]] if ran else next(iter(studies), None)

    @property
    def has_run(self) -> bool:
        """Whether any study has ever run."""
        return any(read_status(study.folder) for study in self.all)

    @property
    def open(self) -> list[QueuedStudy]:
        """The unfinished studies."""
        return [study for study in self.all if self.state(study) not in FINAL_STATES]

    def failed(self, last: bool) -> list[str]:
        """The failed studies that a start continues: the kit's own and, on ``resume``, the one that
        ran last.
        """
        current = self.current if last else None
        names = {KIT, current.name if current else KIT}
        return [s.name for s in self.all if s.name in names and self.state(s) == "failed"]

    @property
    def declined(self) -> frozenset[str]:
        """Names of the studies that too many members have declined; one more member can reopen
        them.
        """
        return frozenset(study.name for study in self.all if self.state(study) == "declined")

    def submit(self, path: Path) -> SubmittedStudy:
        """Add a ``STUDY.toml`` to the queue.

        Raises ConfigError, StorageError, or LockedError during another's.
        """
        with locked(self.kit / "run" / submissions.STUDIES):
            return self._add(path, read_study(path))

    def _add(self, path: Path, study: Study) -> SubmittedStudy:
        # SuperLink and supervisors read the queue, and have no use for PyTorch: 250 MB, and seconds
        from pomona_federation.agreed_scenario import require_other_seed, require_possible

        federation, studies = self.federation, self.all
        with named_file(path):
            if isinstance(study, EvaluationStudy) and study.evaluate.of is not None:
                evaluated = self.study(study.evaluate.of)
                study = submissions.with_models(study, evaluated, federation, self.kit)
            if study.name in {s.name for s in studies}:
                raise ConfigError(
                    f"there is a study {study.name!r} already; give this one another name"
                )
        number = 1 + max((s.submission.number for s in studies if s.submission), default=0)
        terms = federation.terms_of(study)
        with named_file(path):
            require_possible(terms)
            require_other_seed(terms, self._summed_before)
            if terms.quorum > (count := len(self.members)):
                raise ConfigError(
                    f"a round needs {terms.quorum} silos, and there are {count} members: add "
                    "silos first, or lower quorum or secure_aggregation.minimum"
                )
            if len(study.text.encode()) > LONGEST:
                raise ConfigError(
                    f"more than {LONGEST} bytes, which no silo reads; shorten classes or words"
                )
        if study.weights and not isinstance(study, SurveyStudy):
            study = submissions.keep_weights(self.kit, study, study.weights, terms)
        submission = SubmittedStudy(
            number=number, submitted=time.time(), agreement=terms.agreement, study=study
        )
        self._audit("proposed", submission.study.name)
        submission.write(self.kit)
        return submission

    @property
    def _summed_before(self) -> Iterator[StudyAgreement]:
        """The agreements on studies that ran, or will: an aborted one may have summed nothing."""
        for study in self.all:
            if read_status(study.folder) or self.state(study) not in FINAL_STATES:
                yield study.terms(self.federation, self.kit)

    def drain(self, enabled: bool) -> None:
        """Let no further round and no study begin, or let them begin again. Raises StorageError."""
        run = self.kit / "run"
        if enabled == draining(run):
            return
        with writing(run):
            write_line(run, "drained" if enabled else "undrained")
            (run / DRAIN).touch(mode=0o600) if enabled else (run / DRAIN).unlink()

    def abort(self, name: str) -> None:
        """Keep a study from running, or stop it.

        Raises ConfigError for a finished study or one without a name.
        """
        study = self.study(name)
        if not study.submission:
            raise ConfigError(
                "the kit's own study ends with `pomona server stop`; name one that was submitted"
            )
        if (state := self.state(study)) in FINAL_STATES:
            raise ConfigError(f"study {name!r} is {state} already; nothing to abort")
        self._audit("aborted", name)
        study.submission.model_copy(update={"aborted": True}).write(self.kit)

    def start(self, name: str) -> tuple[str, ...]:
        """Start a study with the silos that have accepted, without waiting for the rest.

        Returns the undecided.

        Raises ConfigError if it is not waiting for decisions, or too few have accepted.
        """
        study = self.study(name)
        if not study.submission or self.state(study) != "proposed":
            raise ConfigError(
                f"study {study.name} is {self.state(study)}; only a study that waits for "
                "decisions can be begun"
            )
        accepted, declined = self._decisions(study)
        if len(accepted) < (quorum := study.terms(self.federation, self.kit).quorum):
            raise ConfigError(
                f"study {name!r} has {len(accepted)} of the {quorum} acceptances that it needs; "
                "wait for more silos"
            )
        self._audit("begun", name)
        study.submission.model_copy(update={"begun": True}).write(self.kit)
        return tuple(sorted(self.members - accepted - declined))

    def resume(self, name: str) -> None:
        """Put an aborted or failed study back into the queue, from its last committed round."""
        study = self.study(name)
        if (state := self.state(study)) not in {"aborted", "failed"}:
            raise ConfigError(
                f"study {name!r} is {state}; only a study that failed or was aborted can be resumed"
            )
        self._audit("resumed", name)
        if study.submission:
            study.submission.model_copy(update={"aborted": False}).write(self.kit)
        if (status := read_status(study.folder)) and status.state == "failed":
            update = {"state": "interrupted", "code": STOPPED}
            write_status(study.folder, status.model_copy(update=update))

    def readmit(self, silo: str, name: str | None = None) -> tuple[str, int]:
        """Take a silo again in a begun study that continues from a round which its backup lacks.

        Args:
            silo: its name.
            name: of the study; None for the current one.

        Returns:
            The study's name, and the first round in which the silo is taken again.

        Raises:
            ConfigError: no such study or silo, the silo has no round in it, or the study's method
                keeps in the server what a silo's lost rounds have changed.
        """
        study = self.study(name) if name else self.current
        if study is None or not (study.at_work / ROSTER).exists():
            raise ConfigError("no such study has begun; a silo joins a new one by itself")
        terms = study.terms(self.federation, self.kit)
        if not terms.survey and (sums := terms.config.method.method().server.mirrors):
            raise ConfigError(
                f"study {study.name}: the server's {sums} count rounds that {silo} has lost and "
                "would count them twice; it is left out of this study, and takes part in the next"
            )
        members = None if terms.from_kit else MemberRegistry(self.kit / "run", self.federation)
        registry = MemberRegistry(study.at_work, self.federation, members=members)
        first_round = registry.readmit(
            silo, lambda number: self._audit("readmitted", study.name, silo=silo, round=number)
        )
        return study.name, first_round

    def _decided(self, study: QueuedStudy, submission: SubmittedStudy) -> State:
        """Whether all members have accepted, or enough of them by the deadline."""
        accepted, declined = self._decisions(study)
        quorum = study.terms(self.federation, self.kit).quorum
        if len(self.members - declined) < quorum:
            return "declined"
        if len(accepted) >= quorum and (submission.due or accepted | declined == self.members):
            return "queued"
        return "proposed"

    def missing_acceptances(self, study: QueuedStudy) -> str:
        """Why a study has not begun although the silos' time to decide is over; else ""."""
        if not study.submission or not study.submission.due or self.state(study) != "proposed":
            return ""
        accepted, _ = self._decisions(study)
        quorum = study.terms(self.federation, self.kit).quorum
        return f"the time to decide is over: {len(accepted)} of {quorum} needed have accepted"

    def _decisions(self, study: QueuedStudy) -> tuple[frozenset[str], frozenset[str]]:
        """The members that have accepted a study, and those that have declined it."""
        decisions = Consents(study.folder).decisions
        decided = self.members & decisions.keys()
        accepted = frozenset(silo for silo in decided if decisions[silo].accepted)
        return accepted, decided - accepted

    def _audit(self, event: str, name: str, **fields: object) -> None:
        """Record what the operator, or a start of the server, does to a study, before it counts."""
        write_line(self.kit / "run", event, study=name, **fields)

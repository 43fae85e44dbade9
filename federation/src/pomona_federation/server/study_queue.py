"""The studies of a server in order: ``run/`` is the folder of the kit's own study,
``run/studies/NAME/`` of others.

A submitted study waits until the silos have decided on it, runs after the studies before it, and
keeps its folder. An evaluation is completed with the data of the study that it evaluates, for silos
to agree to.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

from pomona.core.bounds import Count, Finite, Sha256
from pomona.core.errors import ConfigError, StorageError, suggestion
from pomona.core.files import blocks, opened, publish, writing
from pomona.core.settings import Settings
from pomona.core.toml import Tree, named_file
from pomona.storage.lock import locked
from pomona.storage.run_status import Paused, read_status, write_status
from pomona_federation.agreement import Federation, StudyAgreement
from pomona_federation.audit_log import write_line
from pomona_federation.json_store import read_json, write_json
from pomona_federation.server.consents import Consents
from pomona_federation.server.member_registry import ROSTER, MemberRegistry, member_ids
from pomona_federation.server.registry_admin import entries
from pomona_federation.study import (
    JUDGING,
    KIT,
    LONGEST,
    TRIALS,
    EvaluationStudy,
    RunStudy,
    Study,
    SurveyStudy,
    TrainingStudy,
    read_study,
    weights_file,
)


def draining(run: Path) -> bool:
    """Whether the operator lets no round and no study begin; ``run``: the kit's folder."""
    return (run / DRAIN).exists()


def require_undrained(run: Path) -> None:
    """Raise Paused if the operator lets no round begin."""
    if draining(run):
        raise Paused(DRAINED)


STUDIES, SUBMITTED = "studies", "study.json"
STOPPED = 143  # exit code of a study that is to continue later
DRAINED = "the server is drained; `pomona server undrain` continues"
DRAIN = "drain"  # file in run/: while it is there, no round and no study begins
State = Literal[
    "proposed", "queued", "running", "finished", "interrupted", "failed", "declined", "aborted"
]
FINAL_STATES: frozenset[State] = frozenset({"finished", "failed", "declined", "aborted"})


class SubmittedStudy(Settings):
    """A study as submitted; ``number`` orders them, ``submitted`` is in seconds since 1970.

    Attributes:
        aborted: it is not to run, or not to continue
        begun: it starts with those that have accepted, without the undecided
    """

    number: Count
    submitted: Finite
    agreement: Sha256
    study: Study
    aborted: bool = False
    begun: bool = False


@dataclass(frozen=True)
class QueuedStudy:
    """One study of a server.

    Attributes:
        name: ``KIT`` for the one that the kit came with.
        folder: of its run.
        submission: the submitted study; None for the kit's own, which a silo accepts by starting.
    """

    name: str
    folder: Path
    submission: SubmittedStudy | None = None

    @property
    def at_work(self) -> Path:
        """The folder of the current or last rounds: for a search, its newest trial's."""
        return max((self.folder / TRIALS).glob("[0-9][0-9][0-9]"), default=self.folder)

    def terms(self, federation: Federation, kit: Path) -> StudyAgreement:
        """The agreement on this study; first weights come from the kit's folder ``weights``."""
        study = self.submission.study.placed(kit) if self.submission else federation.study
        assert study, "only a kit's own study has no file"
        return federation.terms_of(study)


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
        return [*initial, *self._submitted()]

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
        return next(
            iter([*started, *(study for study, state in states if state == "queued")]), None
        )

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
        with locked(self.kit / "run" / STUDIES):
            return self._add(path, read_study(path))

    def _add(self, path: Path, study: Study) -> SubmittedStudy:
        # SuperLink and supervisors read the queue, and have no use for PyTorch: 250 MB, and seconds
        from pomona_federation.agreed_scenario import require_possible

        federation, studies = self.federation, self.all
        with named_file(path):
            study = self._completed(study)
            if study.name in {s.name for s in studies}:
                raise ConfigError(
                    f"there is a study {study.name!r} already; give this one another name"
                )
        number = 1 + max((s.submission.number for s in studies if s.submission), default=0)
        terms = federation.terms_of(study)
        with named_file(path):
            require_possible(terms)
            self._require_other_seed(terms)
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
            study = self._keep_weights(study, study.weights, str(terms.config.model.init_sha256))
        submission = SubmittedStudy(
            number=number, submitted=time.time(), agreement=terms.agreement, study=study
        )
        self._audit("proposed", submission.study.name)
        self._write(submission)
        return submission

    def _completed(self, study: Study) -> Study:
        """An evaluation with hash and members of the study whose models it evaluates; any other
        study as it is.

        Section task, the network and the seed are taken from that study, unless they are given.

        Raises ConfigError if there is no such study, or no silo has taken part in it.
        """
        if not isinstance(study, EvaluationStudy) or study.evaluate.of is None:
            return study
        evaluated = self.study(study.evaluate.of)
        source = evaluated.terms(self.federation, self.kit)
        trained = source.study
        if not isinstance(trained, TrainingStudy):
            raise ConfigError(
                f"evaluate.of = {study.evaluate.of!r} is of kind {trained.kind}, which does not "
                "train models"
            )
        clients = {
            entry.name: client
            for client, entry in enumerate(
                entries(self.kit, None if source.from_kit else evaluated.folder)
            )
            if entry.joined is not None and not entry.revoked
        }
        if not clients:
            raise ConfigError(f"no silo has a model of {study.evaluate.of} yet; let it run first")
        terms = study.evaluate.model_copy(update={"agreement": source.agreement, "models": clients})
        run: Tree = {key: trained.run[key] for key in JUDGING if key in trained.run} | study.run
        changes = {"evaluate": terms, "run": run, "task": study.task or trained.task}
        return study.model_copy(update=changes)

    def _require_other_seed(self, terms: StudyAgreement) -> None:
        """Require that a study with secure aggregation names its seed, if an earlier one has that
        which it would take by default.

        With one seed, each silo whose rows stay repeats its first change, to the bit, and refuses
        to have it summed over other silos or sample counts.

        Raises ConfigError with a seed that none has.
        """
        earlier = [  # that ran, or will: an aborted one has summed nothing before
            s.terms(self.federation, self.kit)
            for s in self.all
            if read_status(s.folder) or self.state(s) not in FINAL_STATES
        ]
        seeds = {k: t.study.name for t in earlier if t.least_in_a_sum for k in t.seeds or (0,)}
        if terms.least_in_a_sum and 0 in seeds and not terms.seeds:
            raise ConfigError(
                f"run.seed is 0 unless set, as in {seeds[0]}, whose changes were summed too: silos "
                "repeat their first change, and refuse to sum it if a silo's rows, the silos, or "
                f"max_norm have changed since; set seed = {max(seeds) + 1} in [run]"
            )

    def _keep_weights(self, study: RunStudy, source: Path, sha256: str) -> RunStudy:
        """Copy first weights into the kit; the study then names them by their hash.

        Raises StorageError.
        """
        with writing(source):
            target = weights_file(self.kit, sha256)
            with opened(source) as file:
                publish(target, blocks(file), f".{target.stem}")
        return study.with_weights(None, sha256)

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
        self._write(study.submission.model_copy(update={"aborted": True}))

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
        self._write(study.submission.model_copy(update={"begun": True}))
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
            self._write(study.submission.model_copy(update={"aborted": False}))
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
        if len(accepted) >= quorum and (_is_due(submission) or accepted | declined == self.members):
            return "queued"
        return "proposed"

    def missing_acceptances(self, study: QueuedStudy) -> str:
        """Why a study has not begun although the silos' time to decide is over; else ""."""
        if not study.submission or not _is_due(study.submission) or self.state(study) != "proposed":
            return ""
        accepted, _ = self._decisions(study)
        quorum = study.terms(self.federation, self.kit).quorum
        return f"the time to decide is over: {len(accepted)} of {quorum} needed have accepted"

    def _decisions(self, study: QueuedStudy) -> tuple[frozenset[str], frozenset[str]]:
        """The members that have accepted a study, and those that have declined it."""
        decisions = Consents(study.folder).decisions
        accepted = frozenset(
            silo for silo in self.members & decisions.keys() if decisions[silo].accepted
        )
        return accepted, (self.members & decisions.keys()) - accepted

    def _submitted(self) -> Sequence[QueuedStudy]:
        return sorted(
            self._read_all(), key=lambda study: study.submission.number if study.submission else 0
        )

    def _read_all(self) -> Iterator[QueuedStudy]:
        studies = self.kit / "run" / STUDIES
        for folder in studies.iterdir() if studies.is_dir() else ():
            try:
                written = (folder / SUBMITTED).stat().st_mtime_ns
            except (FileNotFoundError, NotADirectoryError):
                continue  # a kill fell between the folder and its file; or an unrelated file
            submission = _read(folder / SUBMITTED, written)
            if submission is None:
                continue
            if submission.study.name != folder.name:
                raise StorageError(
                    f"{folder / SUBMITTED} is of study {submission.study.name!r}; restore it from "
                    "a backup"
                )
            yield QueuedStudy(folder.name, folder, submission)

    def _audit(self, event: str, name: str, **fields: object) -> None:
        """Record what the operator, or a start of the server, does to a study, before it counts."""
        write_line(self.kit / "run", event, study=name, **fields)

    def _write(self, submission: SubmittedStudy) -> None:
        folder = self.kit / "run" / STUDIES / submission.study.name
        with writing(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_json(folder / SUBMITTED, submission)


@lru_cache(maxsize=100)
def _read(path: Path, written: int) -> SubmittedStudy | None:
    """A study's file, cached: the gate and the supervisor ask every few seconds, and it may contain
    a vocabulary.
    """
    return read_json(SubmittedStudy, path)


def _is_due(submission: SubmittedStudy) -> bool:
    """Whether a study starts without those that have not decided."""
    return submission.begun or time.time() >= submission.submitted + submission.study.decide

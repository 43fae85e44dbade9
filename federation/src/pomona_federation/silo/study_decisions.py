"""The studies that a silo knows, in ``state/studies/``: their texts, and its administrator's
decisions.

A study's folder is named after it and its hash. Next to ``study.json`` are the files that the
silo keeps for that study alone.
"""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from pomona.core.bounds import Line, Sha256, plain
from pomona.core.errors import ConfigError, ProtocolError
from pomona.core.settings import Settings
from pomona.storage.lock import waiting_lock
from pomona_federation.agreement import Federation, StudyAgreement
from pomona_federation.audit_log import Audit, tail, write_line
from pomona_federation.json_store import read_json, seal, write_json
from pomona_federation.silo.consent_rules import ConsentTerms
from pomona_federation.silo.history import FILE as HISTORY
from pomona_federation.silo.state_origin import ensure_origin
from pomona_federation.study import TRIALS, Study
from pomona_federation.study_sections import MOST_TRIALS
from pomona_federation.supervision.process_logs import clock

STUDIES, FILE = "studies", "study.json"
ANSWERS = "survey.json"  # a survey's answers, in its study's folder
# most studies, and bytes of them, that are kept though no person has accepted them
MAX_PENDING, MOST_BYTES = 100, 2**26
MIN_DIGITS = 8  # digits of its hash that name a study
DECISION = ("event", "study", "agreement", "by", "why", "terms")  # of a line in the audit log
ANSWER_FILES = (HISTORY, ANSWERS)  # present in a study's folder once the silo has answered in it
Status = Literal["pending", "accepted", "declined"]


_QUIET: dict[Path, tuple[int, ...]] = {}  # stamps of study files without a decision for the server


class StudyDecision(Settings):
    """A study and the decision on it.

    Attributes:
        agreement: its hash, computed here.
        by, when, why: who decided, when, and by which rule of policy.toml or for which reason.
        sent: whether the server knows the decision
        terms: limits since it was accepted by rule; None if a person decided.
        trials: hashes of a search's trials, computed here; accepting the search accepts them all
    """

    agreement: Sha256
    study: Study
    status: Status = "pending"
    by: Line = ""
    when: Line = ""
    why: Line = ""
    sent: bool = False
    terms: ConsentTerms | None = None
    trials: tuple[Sha256, ...] = Field((), max_length=MOST_TRIALS)

    @property
    def record(self) -> dict[str, Any]:
        """The decision as recorded in the audit log."""
        fields = {"event": self.status, "study": self.study.name, "agreement": self.agreement}
        fields |= {"by": self.by} | ({"why": self.why} if self.why else {})
        return fields | ({"terms": self.terms.model_dump(mode="json")} if self.terms else {})

    @property
    def seal(self) -> str:
        """This machine's seal of the decision. Raises StorageError."""
        return seal("decision", json.dumps(self.record, sort_keys=True))

    def require_accepted(self) -> None:
        """Raise ProtocolError unless it was accepted."""
        if self.status == "pending":
            raise ProtocolError(
                f"study {self.study.name} waits for this silo's administrator; run there: pomona "
                "silo studies"
            )
        if self.status == "declined":
            raise ProtocolError(f"study {self.study.name} was declined by this silo")

    def trial(self, agreement: str) -> int | None:
        """Number of the trial with this hash in a search; None for other kinds of study.

        Raises ProtocolError for the hash of a search itself, under which nothing runs.
        """
        if not self.trials:
            return None
        if agreement not in self.trials:
            raise ProtocolError(
                f"study {self.study.name} is a search: its trials run, each by its own hash"
            )
        return self.trials.index(agreement)


def stamp(path: Path) -> tuple[int, ...]:
    """Fingerprint of a file (inode, size, mtime, ctime). Raises OSError."""
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


@dataclass(frozen=True)
class StudyDecisions:
    """The studies in a silo's kit."""

    kit: Path
    foreign: bool = False  # whether another machine's decisions, from a backup, are shown too

    @property
    def all(self) -> list[StudyDecision]:
        """All of them, by name. Raises StorageError for a file that cannot be read."""
        return list(self._read())

    @property
    def hashes(self) -> set[str]:
        """The hashes of all studies, from their folders' names; no study is read."""
        return {path.parent.name.rpartition("-")[2] for path in self._files()}

    def unsent(self) -> list[StudyDecision]:
        """Studies with a decision that the server may not know, by name.

        Each file is read only once while it stays unchanged with nothing to report: studies may be
        large, and a supervisor asks often. Raises StorageError for a file that cannot be read.
        """
        decisions = []
        for path in self._files():
            with suppress(FileNotFoundError):
                current = stamp(path)
                if _QUIET.get(path) == current:
                    continue
                decision = self._verified(read_json(StudyDecision, path))
                if decision and decision.status != "pending" and not decision.sent:
                    decisions.append(decision)
                else:
                    _QUIET[path] = current
        return decisions

    def find(self, agreement: str) -> StudyDecision | None:
        """The known study with this hash, or with a trial of this hash; None if unknown."""
        decisions = (
            decision
            for pattern in (f"*-{agreement}", f"*/{TRIALS}/*-{agreement}/../..")
            for decision in self._read(pattern)
        )
        return next(
            (
                decision
                for decision in decisions
                if agreement in {decision.agreement, *decision.trials}
            ),
            None,
        )

    def lookup(self, query: str) -> StudyDecision:
        """The study with this name, or these first digits of its hash (8 or more).

        Raises ConfigError unless unique.
        """
        studies = self.matching(query)
        if len(studies) != 1:
            count = f"{len(studies)} studies" if studies else "no study"
            raise ConfigError(
                f"{count} {query!r}; `pomona silo studies --ask` asks the server, and lists names "
                "and hashes: give the hash"
            )
        return studies[0]

    def matching(self, query: str) -> list[StudyDecision]:
        """The known studies with this name, or these first digits of their hash (8 or more)."""
        digits = query.replace(" ", "")
        by_hash = len(digits) >= MIN_DIGITS
        return [
            decision
            for decision in self._read()
            if decision.study.name == query or (by_hash and decision.agreement.startswith(digits))
        ]

    def folder(self, decision: StudyDecision, trial: int | None = None) -> Path:
        """The folder of the files that the silo keeps for a study, or for a trial of a search.

        Its name contains the full hash, since a server could choose a part of it.
        """
        folder = self.kit / "state" / STUDIES / f"{decision.study.name}-{decision.agreement}"
        return (
            folder if trial is None else folder / TRIALS / f"{trial:03d}-{decision.trials[trial]}"
        )

    def folders(self, decision: StudyDecision) -> list[Path]:
        """The folders of its rounds: for a search those of its trials, in order."""
        return [self.folder(decision, trial) for trial in range(len(decision.trials))] or [
            self.folder(decision)
        ]

    def terms(
        self, federation: Federation, decision: StudyDecision, trial: int | None = None
    ) -> StudyAgreement:
        """The federation with a study's terms, or a trial's; first weights come from the kit's
        folder ``weights``.
        """
        terms = federation.terms_of(decision.study.placed(self.kit))
        return terms if trial is None else terms.trials[trial]

    def propose(self, decision: StudyDecision) -> None:
        """Keep a study offered by the server; a known one stays as it is.

        Raises ProtocolError if the server offers more than a silo keeps without its administrator's
        decision, and OSError.
        """
        with self._lock():
            if self.find(decision.agreement) is None:
                self._require_room(decision)
                self._write(decision)
                fields = {"study": decision.study.name, "agreement": decision.agreement}
                write_line(self.kit / "state", "proposed", **fields)

    def decide(
        self,
        decision: StudyDecision,
        accepted: bool,
        author: str,
        reason: str = "",
        terms: ConsentTerms | None = None,
        policy: str | None = None,
    ) -> StudyDecision:
        """Record a decision: in the silo's audit log first, then where tasks are checked against
        it. Raises OSError.

        Args:
            decision: the study.
            accepted: or declined.
            author: who or what has decided.
            reason: the reason.
            terms: limits on the study; None for its agreement alone.
            policy: SHA-256 of the deciding rules file, if any; rules never override a person's
                decision made since they were applied.

        Returns:
            The study in its new state.
        """
        status: Status = "accepted" if accepted else "declined"
        author, reason = plain(author), plain(reason)  # as it will be read back
        time = clock()
        changes = {
            "status": status,
            "by": author,
            "when": time,
            "why": reason,
            "sent": False,
            "terms": terms,
        }
        with self._changing(decision) as current:
            if policy and current.status != "pending":
                return current
            updated = decision.model_copy(update=changes)
            rules = {"policy": policy} if policy else {}
            write_line(self.kit / "state", **updated.record, seal=updated.seal, **rules)
            return self._write(updated)

    def remark(self, decision: StudyDecision, reason: str) -> StudyDecision:
        """Record why a study waits for its administrator, if it still does.

        Returns its current state.

        Raises OSError.
        """
        with self._changing(decision) as current:
            if current.status == "pending":
                return self._write(current.model_copy(update={"why": reason}))
            return current

    def reseal(self) -> None:
        """Record the decisions of a restored kit as this machine's in its audit log.

        Raises StorageError.
        """
        with Audit(self.kit / "state" / "audit.jsonl") as audit:
            for decision in StudyDecisions(self.kit, foreign=True).all:
                if decision.status != "pending":
                    audit.write(**decision.record, seal=decision.seal)

    def mark_sent(self, decision: StudyDecision) -> None:
        """Mark this decision as known to the server; a newer decision remains to be sent.

        Raises OSError.
        """
        with self._changing(decision) as current:
            if current == decision:
                self._write(decision.model_copy(update={"sent": True}))

    @contextmanager
    def _changing(self, decision: StudyDecision) -> Iterator[StudyDecision]:
        """Lock a study and give its current state."""
        with self._lock():
            yield self.find(decision.agreement) or decision

    def _lock(self) -> AbstractContextManager[None]:
        """Lock the studies against other processes, such as a command or the process that asks the
        server.

        Raises as ``state_origin.ensure_origin``.
        """
        ensure_origin(self.kit)
        return waiting_lock(self.kit / "state" / ".studies.lock")

    def _require_room(self, decision: StudyDecision) -> None:
        """Limit the studies that no person accepted and that have no results, so that no server
        fills a silo's disk.
        """
        idle = [
            k
            for k in self._read()
            if k.status != "accepted" or (k.terms is not None and not self._has_answers(k))
        ]
        size = sum(len(k.study.text) for k in (*idle, decision))
        if len(idle) >= MAX_PENDING or size > MOST_BYTES:
            raise ProtocolError(
                f"{len(idle)} studies, with {size / 1e6:.0f} MB, were offered, and not accepted "
                "or not begun; remove "
                f"the folders of old ones from state/{STUDIES}, and ask the server's operator"
            )

    def _has_answers(self, decision: StudyDecision) -> bool:
        return any(
            (folder / name).exists() for folder in self.folders(decision) for name in ANSWER_FILES
        )

    def _files(self, pattern: str = "*") -> Iterator[Path]:
        folders = sorted((self.kit / "state" / STUDIES).glob(pattern))
        return (folder / FILE for folder in folders if (folder / FILE).is_file())

    def _read(self, pattern: str = "*") -> Iterator[StudyDecision]:
        for path in self._files(pattern):
            if decision := self._verified(read_json(StudyDecision, path)):
                yield decision

    def _verified(self, decision: StudyDecision | None) -> StudyDecision | None:
        """A study as in its file; if its decision has no line in the audit log, it waits, with that
        reason.

        The last line on a study is its decision: by whom, why and under which terms; sealed on this
        machine.
        """
        if decision is None or decision.status == "pending":
            return decision
        log = self.kit / "state" / "audit.jsonl"
        last = tail(log, {"accepted", "declined"}, decision.agreement)
        matches = (
            last is not None
            and {key: last[key] for key in DECISION if key in last} == decision.record
        )
        if last is not None and matches and (self.foreign or last.get("seal") == decision.seal):
            return decision
        reason = (
            f"{FILE} says {decision.status} by {decision.by}, without its line in the audit log: "
            "decide on it here"
        )
        return decision.model_copy(
            update={"status": "pending", "by": "", "when": "", "why": reason, "terms": None}
        )

    def _write(self, decision: StudyDecision) -> StudyDecision:
        study_folder = self.folder(decision)
        for folder in (
            study_folder,
            *(self.folder(decision, trial) for trial in range(len(decision.trials))),
        ):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(study_folder / FILE, decision)
        return decision

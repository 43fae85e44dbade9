"""The studies that a silo knows, in ``state/studies/``: their texts, and its administrator's
decisions.

A study's folder is named after it and its hash. Beside ``study.json`` are the files that the silo
keeps for that study alone.
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
from pomona_federation.audit_log import Audit, last_line, write_line
from pomona_federation.json_store import read_json, write_json
from pomona_federation.silo.consent_rules import ConsentTerms
from pomona_federation.silo.history import FILE as HISTORY
from pomona_federation.silo.own_state import begin, seal
from pomona_federation.study import MOST_TRIALS, TRIALS, Study
from pomona_federation.supervision.process_logs import clock

STUDIES, FILE = "studies", "study.json"
ANSWERS = "survey.json"  # a survey's answers, in its study's folder
MOST, MOST_BYTES = 100, 2**26  # most kept studies that are neither accepted nor decided by a rule
LEAST = 8  # digits of its hash that name a study
DECISION = ("event", "study", "agreement", "by", "why", "terms")  # of a line in the audit log
BEGUN = (HISTORY, ANSWERS)  # present in a study's folder once the silo has answered in it
Status = Literal["pending", "accepted", "declined"]


_QUIET: dict[Path, tuple[int, ...]] = {}  # stamps of study files without a decision for the server


class KnownStudy(Settings):
    """A study and the decision on it.

    Attributes:
        agreement: its hash, computed here.
        by, when, why: who decided, when, and by which rule of policy.toml or for which reason.
        sent: whether the server knows.
        terms: limits since it was accepted by rule; None if a person decided.
        trials: the hashes of a search's trials, computed here; accepting the search accepts them
            all.
    """

    agreement: Sha256
    study: Study
    status: Status = "pending"
    by: Line = ""
    when: Line = ""
    why: Line = ""
    sent: bool = Field(False, description="whether the server knows the decision")
    terms: ConsentTerms | None = None
    trials: tuple[Sha256, ...] = Field(
        (), max_length=MOST_TRIALS, description="hashes of a search's trials"
    )

    @property
    def decision(self) -> dict[str, Any]:
        """The decision as recorded in the audit log."""
        about = {
            "event": self.status,
            "study": self.study.name,
            "agreement": self.agreement,
            "by": self.by,
        }
        about |= {"why": self.why} if self.why else {}
        return about | ({"terms": self.terms.model_dump(mode="json")} if self.terms else {})

    @property
    def seal(self) -> str:
        """This machine's seal of the decision. Raises StorageError."""
        return seal("decision", json.dumps(self.decision, sort_keys=True))

    def require_accepted(self) -> None:
        """Raise ProtocolError unless it was accepted."""
        if self.status == "pending":
            raise ProtocolError(
                f"study {self.study.name} waits for this silo's administrator; there: pomona silo "
                "studies"
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
    seen = path.stat()
    return seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns


@dataclass(frozen=True)
class KnownStudies:
    """The studies in a silo's kit."""

    kit: Path
    foreign: bool = False  # whether another machine's decisions, from a backup, are shown too

    @property
    def all(self) -> list[KnownStudy]:
        """All of them, by name. Raises StorageError for a file that cannot be read."""
        return list(self._found())

    @property
    def hashes(self) -> set[str]:
        """The hashes of all studies, from their folders' names; no study is read."""
        return {path.parent.name.rpartition("-")[2] for path in self._files()}

    def unsent(self) -> list[KnownStudy]:
        """Studies with a decision that the server may not know, by name.

        Each file is read only once while it stays unchanged with nothing to report: studies may be
        large, and a supervisor asks often. Raises StorageError for a file that cannot be read.
        """
        found = []
        for path in self._files():
            with suppress(FileNotFoundError):
                seen = stamp(path)
                if _QUIET.get(path) == seen:
                    continue
                known = self._backed(read_json(KnownStudy, path))
                if known and known.status != "pending" and not known.sent:
                    found.append(known)
                else:
                    _QUIET[path] = seen
        return found

    def find(self, agreement: str) -> KnownStudy | None:
        """The known study with this hash, or with a trial of this hash; None if there is none."""
        found = (
            known
            for own in (f"*-{agreement}", f"*/{TRIALS}/*-{agreement}/../..")
            for known in self._found(own)
        )
        return next(
            (known for known in found if agreement in {known.agreement, *known.trials}), None
        )

    def named(self, which: str) -> KnownStudy:
        """The study with this name, or these first digits of its hash (8 or more).

        Raises ConfigError unless unique.
        """
        studies = self.matching(which)
        if len(studies) != 1:
            count = f"{len(studies)} studies" if studies else "no study"
            raise ConfigError(
                f"{count} {which!r}; `pomona silo studies --ask` asks the server, and lists names "
                "and hashes: give the hash"
            )
        return studies[0]

    def matching(self, which: str) -> list[KnownStudy]:
        """The known studies with this name, or these first digits of their hash (8 or more)."""
        digits = which.replace(" ", "")
        by_hash = len(digits) >= LEAST
        return [
            known
            for known in self._found()
            if known.study.name == which or (by_hash and known.agreement.startswith(digits))
        ]

    def home(self, known: KnownStudy, trial: int | None = None) -> Path:
        """The folder of the files that the silo keeps for a study, or for a trial of a search.

        Its name contains the full hash, since a server could choose a part of it.
        """
        home = self.kit / "state" / STUDIES / f"{known.study.name}-{known.agreement}"
        return home if trial is None else home / TRIALS / f"{trial:03d}-{known.trials[trial]}"

    def homes(self, known: KnownStudy) -> list[Path]:
        """The folders of its rounds: for a search those of its trials, in order."""
        return [self.home(known, trial) for trial in range(len(known.trials))] or [self.home(known)]

    def agreed(
        self, federation: Federation, known: KnownStudy, trial: int | None = None
    ) -> StudyAgreement:
        """The federation with a study's terms, or a trial's; first weights come from the kit's
        folder ``weights``.
        """
        whole = federation.under(known.study.placed(self.kit))
        return whole if trial is None else whole.trials[trial]

    def propose(self, known: KnownStudy) -> None:
        """Keep a study offered by the server; a known one stays as it is.

        Raises ProtocolError if the server offers more than a silo keeps without its administrator's
        decision, and OSError.
        """
        with self._alone():
            if self.find(known.agreement) is None:
                self._require_room(known)
                self._write(known)
                about = {"study": known.study.name, "agreement": known.agreement}
                write_line(self.kit / "state", "proposed", **about)

    def decide(
        self,
        known: KnownStudy,
        accepted: bool,
        by: str,
        why: str = "",
        terms: ConsentTerms | None = None,
        policy: str | None = None,
    ) -> KnownStudy:
        """Record a decision: in the silo's audit log first, then where tasks are checked against
        it. Raises OSError.

        Args:
            known: the study.
            accepted: or declined.
            by: who or what has decided.
            why: the reason.
            terms: limits on the study; None for its agreement alone.
            policy: SHA-256 of the deciding rules file, if any; rules never override a person's
                decision made since they were applied.

        Returns:
            The study in its new state.
        """
        status: Status = "accepted" if accepted else "declined"
        by, why = plain(by), plain(why)  # as it will be read back
        when = clock()
        news = {"status": status, "by": by, "when": when, "why": why, "sent": False, "terms": terms}
        with self._changing(known) as now:
            if policy and now.status != "pending":
                return now
            made = known.model_copy(update=news)
            rules = {"policy": policy} if policy else {}
            write_line(self.kit / "state", **made.decision, seal=made.seal, **rules)
            return self._write(made)

    def remark(self, known: KnownStudy, why: str) -> KnownStudy:
        """Record why a study waits for its administrator, if it still does.

        Returns its current state.

        Raises OSError.
        """
        with self._changing(known) as now:
            return (
                self._write(now.model_copy(update={"why": why})) if now.status == "pending" else now
            )

    def reseal(self) -> None:
        """Record the decisions of a restored kit as this machine's in its audit log.

        Raises StorageError.
        """
        with Audit(self.kit / "state" / "audit.jsonl") as audit:
            for known in KnownStudies(self.kit, foreign=True).all:
                if known.status != "pending":
                    audit.write(**known.decision, seal=known.seal)

    def mark_sent(self, known: KnownStudy) -> None:
        """Mark this decision as known to the server; a newer decision remains to be sent.

        Raises OSError.
        """
        with self._changing(known) as now:
            if now == known:
                self._write(known.model_copy(update={"sent": True}))

    @contextmanager
    def _changing(self, known: KnownStudy) -> Iterator[KnownStudy]:
        """Lock a study and give its current state."""
        with self._alone():
            yield self.find(known.agreement) or known

    def _alone(self) -> AbstractContextManager[None]:
        """Lock the studies against other processes, such as a command or the process that asks the
        server.

        Raises as ``own_state.begin``.
        """
        begin(self.kit)
        return waiting_lock(self.kit / "state" / ".studies.lock")

    def _require_room(self, known: KnownStudy) -> None:
        """Limit the studies that no person accepted and that have no results, so that no server
        fills a silo's disk.
        """
        idle = [
            k
            for k in self._found()
            if k.status != "accepted" or (k.terms is not None and not self._begun(k))
        ]
        size = sum(len(k.study.text) for k in (*idle, known))
        if len(idle) >= MOST or size > MOST_BYTES:
            raise ProtocolError(
                f"{len(idle)} studies, with {size / 1e6:.0f} MB, were offered, and not accepted "
                "or not begun; remove "
                f"the folders of old ones from state/{STUDIES}, and ask the server's operator"
            )

    def _begun(self, known: KnownStudy) -> bool:
        return any((home / name).exists() for home in self.homes(known) for name in BEGUN)

    def _files(self, folders: str = "*") -> Iterator[Path]:
        homes = sorted((self.kit / "state" / STUDIES).glob(folders))
        return (home / FILE for home in homes if (home / FILE).is_file())

    def _found(self, folders: str = "*") -> Iterator[KnownStudy]:
        for path in self._files(folders):
            if known := self._backed(read_json(KnownStudy, path)):
                yield known

    def _backed(self, known: KnownStudy | None) -> KnownStudy | None:
        """A study as in its file; if its decision has no line in the audit log, it waits, with that
        reason.

        The last line on a study is its decision: by whom, why and under which terms; sealed on this
        machine.
        """
        if known is None or known.status == "pending":
            return known
        log = self.kit / "state" / "audit.jsonl"
        last = last_line(log, {"accepted", "declined"}, known.agreement)
        said = (
            last is not None
            and {key: last[key] for key in DECISION if key in last} == known.decision
        )
        if last is not None and said and (self.foreign or last.get("seal") == known.seal):
            return known
        why = (
            f"{FILE} says {known.status} by {known.by}, without its line in the audit log: "
            "decide on it here"
        )
        return known.model_copy(
            update={"status": "pending", "by": "", "when": "", "why": why, "terms": None}
        )

    def _write(self, known: KnownStudy) -> KnownStudy:
        home = self.home(known)
        for folder in (home, *(self.home(known, trial) for trial in range(len(known.trials)))):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(home / FILE, known)
        return known

"""A silo's requests to the server about studies: it sends its decisions, and adds new studies.

The process that supervises the node asks. For new studies it starts ``python -m
pomona_federation.silo.study_proposals KIT``: interpreting a study needs PyTorch, which a supervisor
should not hold for weeks.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pomona.core.bounds import parse
from pomona.core.errors import ConfigError, PomonaError, ProtocolError, worded
from pomona.core.registry import importable
from pomona.storage.lock import waiting_lock
from pomona_federation import versions
from pomona_federation.agreement import Federation
from pomona_federation.keys import Signer
from pomona_federation.messages.study_bodies import (
    MOST_DECISIONS,
    STUDIES,
    STUDY_VERSIONS,
    Decision,
    OpenStudies,
    SiloVersions,
    StudyVisit,
    TakenDecision,
)
from pomona_federation.named_code import named_code
from pomona_federation.silo import state_origin
from pomona_federation.silo.http_client import ServerRoute
from pomona_federation.silo.server_requests import TOTAL_TIMEOUT, request, signed
from pomona_federation.silo.settings import SiloFile
from pomona_federation.silo.study_decisions import StudyDecision, StudyDecisions
from pomona_federation.study import LONGEST, Study, SurveyStudy, parse_study
from pomona_federation.supervision.process_logs import LogFile, OutputLog
from pomona_federation.supervision.supervisor import start
from pomona_federation.versions import mismatch, note

MARKS, LOCK = "state/taking-in", "state/.taking-in.lock"  # in a kit
TEXT = 600.0  # seconds until a study's text must be complete; LONGEST bytes take 70 s at 2 Mbit/s
# a path and what to POST to it, if anything -> the answer
Fetch = Callable[[str, bytes | None], bytes]


def over_the_network(kit: Path) -> Fetch:
    """Requests to the server of a kit's federation, signed with its silo's key.

    Each raises ProtocolError.
    """
    federation = Federation.read(kit / "federation.toml")
    route = ServerRoute.of_kit(kit, SiloFile.load(kit / "silo.toml"), federation)
    key = kit / "keys" / "silo.key"

    def fetch(path: str, body: bytes | None) -> bytes:
        headers = {} if federation.insecure else signed(key)
        # the supervisor makes visits, a separate process fetches texts
        timeout = TOTAL_TIMEOUT if body else TEXT
        return request(
            route, path, headers, body=body, max_bytes=LONGEST, total_timeout=timeout
        ).text

    return fetch


def compare(kit: Path, fetch: Fetch) -> versions.Versions:
    """Send the installed versions to the server, and return the server's. Writes nothing.

    Raises ProtocolError if the server does not answer.
    """
    installed = SiloVersions(
        silo=SiloFile.load(kit / "silo.toml").name, versions=versions.installed()
    )
    answer = fetch(STUDY_VERSIONS, installed.model_dump_json().encode())
    try:
        return versions.Versions.model_validate(parse(answer, ProtocolError))
    except ValueError:
        raise ProtocolError(
            "the server's versions cannot be read; ask its administrator for them"
        ) from None


def visit(kit: Path, fetch: Fetch) -> list[str]:
    """Send this silo's decisions to the server.

    Returns the hashes of open studies that are not known here.

    Raises ProtocolError if the server does not answer, or with something else.
    """
    studies, silo = StudyDecisions(kit), SiloFile.load(kit / "silo.toml").name
    federation = Federation.read(kit / "federation.toml")
    unsent = studies.unsent()[:MOST_DECISIONS]
    signer = Signer(None if federation.insecure else kit / "keys" / "silo.key") if unsent else None
    decisions = []
    for decision in unsent:
        message = Decision(
            silo=silo, study=decision.agreement, accepted=decision.status == "accepted"
        )
        decisions.append(
            TakenDecision(
                decision=message,
                signature=signer.sign(message.message_type, message.statement) if signer else "",
            )
        )
    answer = fetch(
        STUDIES, StudyVisit(silo=silo, decisions=tuple(decisions)).model_dump_json().encode()
    )
    try:
        open_studies = OpenStudies.model_validate(parse(answer, ProtocolError))
    except ValueError:
        raise ProtocolError(
            "the server's list of studies cannot be read; is it of the same version?"
        ) from None
    for decision in unsent:
        studies.mark_sent(decision)
    hashes = studies.hashes
    return [agreement for agreement in open_studies.studies if agreement not in hashes]


def add_study(
    kit: Path, agreement: str, fetch: Fetch, echo: Callable[[str], None] = lambda _: None
) -> StudyDecision:
    """Fetch a study by its hash, verify it, and keep it for the administrator's decision.

    Raises PomonaError if it does not match its hash, or this silo cannot take part in it.
    """
    text = fetch(f"{STUDIES}/{agreement}", None)  # may take minutes: a shutdown leaves no mark
    with _exclusive(kit, echo):
        with _marked(kit, agreement):
            study = parse_study(text)
            require_harmless(study, SiloFile.load(kit / "silo.toml"))
            decision = StudyDecision(agreement=agreement, study=study)
            terms = StudyDecisions(kit).terms(Federation.read(kit / "federation.toml"), decision)
            if terms.agreement != agreement:
                raise ProtocolError(
                    f"study {study.name} has another hash here than at the server; compare "
                    "Pomona's version, the kit's federation.toml, and own code that the study names"
                )
            trials = tuple(trial.agreement for trial in terms.trials)
        decision = decision.model_copy(update={"trials": trials})
        StudyDecisions(kit).propose(decision)  # it has been read: a kill now is no fault of it
    return decision


def require_harmless(study: Study, file: SiloFile) -> None:
    """Raise ConfigError for a study that names a file, or custom code that this silo has not
    allowed by name.

    This is checked before anything of the study is resolved, which would import that code.
    """
    if isinstance(study, SurveyStudy):
        return
    if refused := [name for name in named_code(study.run) if name not in file.code]:
        raise ConfigError(
            f"study {study.name} would run own code, {refused[0]}; if that is intended, read its "
            f"file, put it into the kit, and name it in silo.toml: code = [{refused[0]!r}]"
        )
    model = study.run.get("model")
    if isinstance(model, dict) and "init" in model:
        raise ConfigError(
            f"study {study.name} names a file of initial weights by its path; only its hash may "
            "be sent"
        )


def consider(kit: Path, fetch: Fetch, echo: Callable[[str], None]) -> None:
    """Add all new studies, apply the kit's rules to all waiting ones, and report what remains to be
    done.
    """
    state_origin.ensure_origin(kit)
    importable(kit)
    offered = visit(kit, fetch)
    for mark in (kit / MARKS).glob("*"):
        if mark.name not in offered:  # a server could offer any number of them
            mark.unlink(missing_ok=True)
    for agreement in offered:
        try:
            add_study(kit, agreement, fetch, echo)
        except Exception as fault:  # whatever a study holds, the others are added
            echo(f"study {agreement[:16]} cannot be taken in: {_fault_text(fault)}")
    studies = StudyDecisions(kit)
    for waiting in [decision for decision in studies.all if decision.status == "pending"]:
        with _exclusive(kit, echo):
            decision = studies.find(waiting.agreement)  # as another process may have left it
            if decision and decision.status == "pending":
                echo(_apply_rules(kit, decision))


@contextmanager
def _exclusive(kit: Path, echo: Callable[[str], None]) -> Iterator[None]:
    """Let one process at a time work on a study: the mark of another is taken for a killed one's.

    The lock file's time is when that began.
    """
    path = kit / LOCK
    with waiting_lock(path, waits=lambda: echo("another process works on a study; this one waits")):
        path.touch()
        yield


@contextmanager
def _marked(kit: Path, agreement: str) -> Iterator[None]:
    """Keep a marker file while a study is being added; a killed process leaves it behind.

    Raises ProtocolError if there is one already.
    """
    mark = kit / MARKS / agreement
    mark.parent.mkdir(parents=True, exist_ok=True)
    if mark.exists():
        raise ProtocolError(
            f"the process that did so was killed, probably for lack of memory; remove {mark} to "
            "try it again"
        )
    mark.touch()
    try:
        yield
    finally:
        mark.unlink(missing_ok=True)


def _apply_rules(kit: Path, decision: StudyDecision) -> str:
    """Apply the kit's consent rules to a waiting study. Returns the outcome in a line."""
    from pomona_federation.silo.consent_policy import apply_policy

    label = f"study {decision.study.name} ({decision.agreement[:16]})"
    try:
        decision = apply_policy(kit, decision)
    except Exception as fault:  # whatever a study holds, the others are checked
        return (
            f"{label} waits for a decision, since the rules cannot be applied: {_fault_text(fault)}"
        )
    if decision.status != "pending":
        return f"{label} is {decision.status} by {decision.by}: {decision.why}"
    return f"{label} waits for a decision: pomona silo studies" + (
        f" ({decision.why})" if decision.why else ""
    )


def _fault_text(fault: Exception) -> str:
    return str(fault) if isinstance(fault, PomonaError) else worded(fault)


def main() -> None:
    """Add new studies for the kit named on the command line."""
    kit = Path(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        consider(kit, over_the_network(kit), lambda text: print(text, flush=True))  # noqa: T201 - its output is its log
    except (PomonaError, OSError) as fault:
        sys.exit(f"error: {fault}")


if __name__ == "__main__":
    main()


LOG = "studies.log"
RETRY_SECONDS = 600.0  # seconds before another attempt at a study that could not be added
HANGS = 3600.0  # seconds at one study after which the process that adds studies is killed


@dataclass
class StudyWatch:
    """Asks the server for a silo's kit; reading a study, which takes long, is left to a separate
    process.

    Attributes:
        kit: the silo's.
        log: called with every line for the operator.
    """

    kit: Path
    log: Callable[[str], None]
    _next_attempts: dict[str, float] = field(default_factory=dict)  # their times, by study
    _began: float = 0.0  # when the process was started, or was seen to begin the next study
    _lock: int = 0  # time of the lock file then, in ns
    _trouble: str = ""
    _compared: bool = False  # whether the server's versions are known to work with those here
    _process: subprocess.Popen[bytes] | None = None

    def poll(self) -> None:
        """Send decisions, and have new studies added."""
        if self._process and self._process.poll() is None:
            previous, self._lock = self._lock, self._locked()
            if self._lock != previous:
                self._began = time.monotonic()
            elif time.monotonic() - self._began > HANGS:
                self._began = time.monotonic()
                os.killpg(self._process.pid, signal.SIGKILL)  # a study in work keeps its mark
                self.log(f"the process that adds studies took more than {HANGS:g} s; it is killed")
            return
        try:
            fetch = over_the_network(self.kit)
            if not self._compared:
                theirs = compare(self.kit, fetch)
                note(self.kit / "state", "server", theirs)
                if reason := mismatch(theirs, "server"):
                    raise ProtocolError(reason)
            self._consider(visit(self.kit, fetch))
            self._trouble, self._compared = "", True
        except Exception as fault:  # no answer of a server ends the supervisor
            self._compared = False  # the server may come back with another release
            problem = (
                str(fault)
                if isinstance(fault, (PomonaError, OSError, ValueError))
                else type(fault).__name__
            )
            if problem != self._trouble:
                self._trouble = problem
                self.log(f"the server could not be asked about studies: {problem}")

    def _consider(self, offered: Sequence[str]) -> None:
        """Have the studies with these hashes added, each again after a while if it still is not."""
        timestamp = time.monotonic()
        if not self._next_attempts.keys() >= set(offered):
            self.log("the server offers a study; `pomona silo studies` lists it in a moment")
        self._next_attempts = {
            agreement: self._next_attempts.get(agreement, timestamp) for agreement in offered
        }
        if ready := [
            agreement for agreement, attempt in self._next_attempts.items() if attempt <= timestamp
        ]:
            self._next_attempts |= dict.fromkeys(ready, timestamp + RETRY_SECONDS)
            self._start_process()

    def _locked(self) -> int:
        with suppress(OSError):
            return (self.kit / LOCK).stat().st_mtime_ns
        return 0

    def _start_process(self) -> None:
        self._began, self._lock = time.monotonic(), self._locked()
        command = [sys.executable, "-m", "pomona_federation.silo.study_proposals", str(self.kit)]
        self._process = start(command, dict(os.environ))
        assert self._process.stdout
        OutputLog(self._process.stdout, LogFile(self.kit / "state" / "logs" / LOG))

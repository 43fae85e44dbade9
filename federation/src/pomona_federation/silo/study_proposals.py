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
from pomona_federation.messages.message_bodies import (
    MOST_DECISIONS,
    STUDIES,
    STUDY_VERSIONS,
    Decision,
    OpenStudies,
    SiloVersions,
    StudyVisit,
    TakenDecision,
)
from pomona_federation.silo import own_state
from pomona_federation.silo.http_client import ServerRoute
from pomona_federation.silo.known_studies import KnownStudies, KnownStudy
from pomona_federation.silo.server_requests import WHOLE, request, signed
from pomona_federation.silo.settings import SiloFile
from pomona_federation.study import LONGEST, Study, SurveyStudy, named_code, parse_study
from pomona_federation.supervision.process_logs import LogFile, OutputLog
from pomona_federation.supervision.processes import start
from pomona_federation.versions import mismatch, note

MARKS, LOCK = "state/taking-in", "state/.taking-in.lock"  # in a kit
TEXT = 600.0  # seconds until a study's text must be complete; LONGEST bytes take 70 s at 2 Mbit/s
# a path and what to POST to it, if anything -> the answer
Ask = Callable[[str, bytes | None], bytes]


def over_the_network(kit: Path) -> Ask:
    """Requests to the server of a kit's federation, signed with its silo's key.

    Each raises ProtocolError.
    """
    federation = Federation.read(kit / "federation.toml")
    way, key = (
        ServerRoute.of(kit, SiloFile.load(kit / "silo.toml"), federation),
        kit / "keys" / "silo.key",
    )

    def ask(path: str, body: bytes | None) -> bytes:
        headers = {} if federation.insecure else signed(key)
        # the supervisor makes visits, a separate process fetches texts
        whole = WHOLE if body else TEXT
        return request(way, path, headers, body=body, most=LONGEST, whole=whole).text

    return ask


def compare(kit: Path, ask: Ask) -> versions.Versions:
    """Send the installed versions to the server, and return the server's. Writes nothing.

    Raises ProtocolError if the server does not answer.
    """
    said = SiloVersions(silo=SiloFile.load(kit / "silo.toml").name, versions=versions.own())
    answer = ask(STUDY_VERSIONS, said.model_dump_json().encode())
    try:
        return versions.Versions.model_validate(parse(answer, ProtocolError))
    except ValueError:
        raise ProtocolError(
            "the server's versions cannot be read; ask its administrator for them"
        ) from None


def visit(kit: Path, ask: Ask) -> list[str]:
    """Send this silo's decisions to the server.

    Returns the hashes of open studies that are not known here.

    Raises ProtocolError if the server does not answer, or with something else.
    """
    studies, silo = KnownStudies(kit), SiloFile.load(kit / "silo.toml").name
    federation = Federation.read(kit / "federation.toml")
    unsent = studies.unsent()[:MOST_DECISIONS]
    signer = Signer(None if federation.insecure else kit / "keys" / "silo.key") if unsent else None
    taken = []
    for known in unsent:
        said = Decision(silo=silo, study=known.agreement, accepted=known.status == "accepted")
        taken.append(
            TakenDecision(
                decision=said, signature=signer.sign(said.kind, said.statement) if signer else ""
            )
        )
    answer = ask(STUDIES, StudyVisit(silo=silo, decisions=tuple(taken)).model_dump_json().encode())
    try:
        found = OpenStudies.model_validate(parse(answer, ProtocolError))
    except ValueError:
        raise ProtocolError(
            "the server's list of studies cannot be read; is it of the same version?"
        ) from None
    for known in unsent:
        studies.mark_sent(known)
    here = studies.hashes
    return [agreement for agreement in found.studies if agreement not in here]


def take_in(
    kit: Path, agreement: str, ask: Ask, say: Callable[[str], None] = lambda _: None
) -> KnownStudy:
    """Fetch a study by its hash, verify it, and keep it for the administrator's decision.

    Raises PomonaError if it does not match its hash, or this silo cannot take part in it.
    """
    text = ask(f"{STUDIES}/{agreement}", None)  # may take minutes: a shutdown leaves no mark
    with _alone(kit, say), _marked(kit, agreement):
        study = parse_study(text)
        require_harmless(study, SiloFile.load(kit / "silo.toml"))
        known = KnownStudy(agreement=agreement, study=study)
        agreed = KnownStudies(kit).agreed(Federation.read(kit / "federation.toml"), known)
        if agreed.agreement != agreement:
            raise ProtocolError(
                f"study {study.name} has another hash here than at the server; compare Pomona's "
                "version, the kit's federation.toml, and own code that the study names"
            )
        known = known.model_copy(
            update={"trials": tuple(trial.agreement for trial in agreed.trials)}
        )
        KnownStudies(kit).propose(known)
    return known


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
            f"study {study.name} names a file of first weights by its path; the hash alone may "
            "travel"
        )


def consider(kit: Path, ask: Ask, say: Callable[[str], None]) -> None:
    """Add all new studies, apply the kit's rules to all waiting ones, and report what remains to be
    done.
    """
    own_state.begin(kit)
    importable(kit)
    offered = visit(kit, ask)
    for mark in (kit / MARKS).glob("*"):
        if mark.name not in offered:  # a server could offer any number of them
            mark.unlink(missing_ok=True)
    for agreement in offered:
        try:
            take_in(kit, agreement, ask, say)
        except Exception as fault:  # whatever a study holds, the others are added
            say(f"study {agreement[:16]} cannot be taken in: {_said(fault)}")
    studies = KnownStudies(kit)
    for waiting in [known for known in studies.all if known.status == "pending"]:
        with _alone(kit, say):
            known = studies.find(waiting.agreement)  # as another process may have left it
            if known and known.status == "pending":
                say(_judged(kit, known))


@contextmanager
def _alone(kit: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Let one process at a time work on a study: the mark of another is taken for a killed one's.

    The lock file's time is when that began.
    """
    path = kit / LOCK
    with waiting_lock(path, waits=lambda: say("another process works on a study; this one waits")):
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


def _judged(kit: Path, known: KnownStudy) -> str:
    """Apply the kit's consent rules to a waiting study. Returns the outcome in a line."""
    from pomona_federation.silo.consent_policy import decided

    about = f"study {known.study.name} ({known.agreement[:16]})"
    try:
        known = decided(kit, known)
    except Exception as fault:  # whatever a study holds, the others are checked
        return f"{about} waits for a decision, since the rules cannot be applied: {_said(fault)}"
    if known.status != "pending":
        return f"{about} is {known.status} by {known.by}: {known.why}"
    return f"{about} waits for a decision: pomona silo studies" + (
        f" ({known.why})" if known.why else ""
    )


def _said(fault: Exception) -> str:
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
AGAIN = 600.0  # seconds before another attempt at a study that could not be added
HANGS = 3600.0  # seconds at one study after which the process that adds studies is killed


@dataclass
class StudyWatch:
    """Asks the server for a silo's kit; reading a study, which takes long, is left to a separate
    process.

    Attributes:
        kit: the silo's.
        say: called with every line for the operator.
    """

    kit: Path
    say: Callable[[str], None]
    _due: dict[str, float] = field(default_factory=dict)  # time of the next attempt, by study
    _began: float = 0.0  # when the process was started, or was seen to begin the next study
    _lock: int = 0  # time of the lock file then, in ns
    _trouble: str = ""
    _compared: bool = False  # whether the server's versions are known to work with those here
    _process: subprocess.Popen[bytes] | None = None

    def look(self) -> None:
        """Send decisions, and have new studies added."""
        if self._process and self._process.poll() is None:
            before, self._lock = self._lock, self._locked()
            if self._lock != before:
                self._began = time.monotonic()
            elif time.monotonic() - self._began > HANGS:
                self._began = time.monotonic()
                os.killpg(self._process.pid, signal.SIGKILL)  # a study in work keeps its mark
                self.say(f"the process that adds studies took more than {HANGS:g} s; it is killed")
            return
        try:
            ask = over_the_network(self.kit)
            if not self._compared:
                theirs = compare(self.kit, ask)
                note(self.kit / "state", "server", theirs)
                if why := mismatch(theirs, "server"):
                    raise ProtocolError(why)
            self._consider(visit(self.kit, ask))
            self._trouble, self._compared = "", True
        except Exception as fault:  # no answer of a server ends the supervisor
            self._compared = False  # the server may come back with another release
            told = (
                str(fault)
                if isinstance(fault, (PomonaError, OSError, ValueError))
                else type(fault).__name__
            )
            if told != self._trouble:
                self._trouble = told
                self.say(f"the server could not be asked about studies: {told}")

    def _consider(self, offered: Sequence[str]) -> None:
        """Have the studies with these hashes added, each again after a while if it still is not."""
        now = time.monotonic()
        if not self._due.keys() >= set(offered):
            self.say("the server offers a study; `pomona silo studies` lists it in a moment")
        self._due = {agreement: self._due.get(agreement, now) for agreement in offered}
        if due := [agreement for agreement, when in self._due.items() if when <= now]:
            self._due |= dict.fromkeys(due, now + AGAIN)
            self._take_in()

    def _locked(self) -> int:
        with suppress(OSError):
            return (self.kit / LOCK).stat().st_mtime_ns
        return 0

    def _take_in(self) -> None:
        self._began, self._lock = time.monotonic(), self._locked()
        words = [sys.executable, "-m", "pomona_federation.silo.study_proposals", str(self.kit)]
        self._process = start(words, dict(os.environ))
        assert self._process.stdout
        OutputLog(self._process.stdout, LogFile(self.kit / "state" / "logs" / LOG))

"""The gate's answers to silos about studies: the open studies, their texts, and the silos'
decisions on them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from pomona.core.bounds import first, parse
from pomona.core.errors import ConfigError, PomonaError, ProtocolError
from pomona.core.files import text
from pomona.core.settings import Settings
from pomona.storage.run_status import read_status
from pomona_federation import versions
from pomona_federation.audit_log import write_line
from pomona_federation.messages.message_bodies import (
    MOST_DECISIONS,
    STUDIES,
    STUDY_VERSIONS,
    OpenStudies,
    SiloVersions,
    StudyVisit,
    TakenDecision,
)
from pomona_federation.server import contacts
from pomona_federation.server.consents import Consents
from pomona_federation.server.member_registry import MemberRegistry
from pomona_federation.server.study_queue import OVER, QueuedStudy, StudyQueue
from pomona_federation.study import RESULTS

Row = dict[str, Any]


def overview(kit: Path) -> list[Row]:
    """A row for each study, in order."""
    queue = StudyQueue(kit)
    return [_row(queue, study) for study in queue.all]


def result_of(kit: Path, name: str, form: Literal["json", "md"]) -> str:
    """The text of a study's result file. Raises ConfigError if it has none, or none yet."""
    queue = StudyQueue(kit)
    study = queue.named(name)
    kind = study.known.study.kind if study.known else "train"
    if kind not in RESULTS:
        raise ConfigError(
            f"study {study.name} is of kind {kind}, whose results are models: `pomona report` "
            "shows them"
        )
    path = study.folder / f"{RESULTS[kind]}.{form}"
    try:
        return text(path)
    except FileNotFoundError:
        raise ConfigError(
            f"study {study.name} is {queue.state(study)} and has no result yet"
        ) from None


def _row(queue: StudyQueue, study: QueuedStudy) -> Row:
    known, decided = study.known, Consents(study.folder).decisions
    about = {"study": study.name, "hash": "", "kind": "train"}
    if known:
        about |= {"hash": known.agreement[:16], "kind": known.study.kind}
    return {
        **about,
        "state": queue.state(study),
        "round": getattr(read_status(study.at_work), "round", 0),
        "accepted": ", ".join(sorted(name for name, taken in decided.items() if taken.accepted)),
        "declined": ", ".join(
            sorted(name for name, taken in decided.items() if not taken.accepted)
        ),
        "undecided": ", ".join(sorted(queue.members - decided.keys())) if known else "",
        "submitted": f"{datetime.fromtimestamp(known.submitted, UTC):%Y-%m-%d %H:%M}Z"
        if known
        else "",
        "why": getattr(read_status(study.folder), "reason", "") or queue.short_of(study),
    }


Response = tuple[int, bytes]
T = TypeVar("T", bound=Settings)


@dataclass(frozen=True)
class StudyRequests:
    """Answers for the server of a kit; it trusts only what a silo has signed."""

    kit: Path

    def answer(self, who: str, path: str, body: bytes) -> Response:
        """Answer one request with an HTTP status and text.

        Args:
            who: the member whose key signed the request's head; "" in a federation without keys.
            path: of the request.
            body: of the request.
        """
        try:
            if path == STUDY_VERSIONS:
                return self._compared(who, body)
            if path != STUDIES:
                return self._text(path.removeprefix(f"{STUDIES}/"))
            return self._visited(who, body)
        except ProtocolError as fault:
            return 400, f"{fault}\n".encode()
        except (PomonaError, OSError):
            return 500, b"the server's files cannot be read\n"

    def _text(self, agreement: str) -> Response:
        for study in self._open():
            if study.known and study.known.agreement == agreement:
                return 200, study.known.study.text.encode()
        return 404, b"no such study\n"

    def _compared(self, who: str, body: bytes) -> Response:
        """Note a silo's installed versions, and return the server's."""
        said = _read(SiloVersions, body)
        _require_own(who, said.silo)
        registry = MemberRegistry(self.kit / "run", StudyQueue(self.kit).federation)
        _member(registry, said.silo)
        versions.note(self.kit / "run", said.silo, said.versions)
        return 200, versions.own().model_dump_json().encode()

    def _visited(self, who: str, body: bytes) -> Response:
        visit = _read(StudyVisit, body)
        _require_own(who, visit.silo)
        # of a silo with a key the gate hears its node
        if not who and visit.silo in StudyQueue(self.kit).members:
            contacts.note(self.kit / "run", visit.silo)
        if visit.decisions:
            self._note(visit.silo, visit.decisions)
        known = [study.known.agreement for study in self._open() if study.known]
        return 200, OpenStudies(studies=tuple(known[:MOST_DECISIONS])).model_dump_json().encode()

    def _note(self, silo: str, decisions: Sequence[TakenDecision]) -> None:
        """Record a silo's last decision on each study of the queue, after verifying its signature.

        Decisions on finished studies are recorded too: a study may be resumed, and the silo sends
        each decision once.
        """
        queue = StudyQueue(self.kit)
        registry = MemberRegistry(self.kit / "run", queue.federation)
        place = _member(registry, silo)
        if registry.entries[place].revoked or any(
            taken.decision.silo != silo for taken in decisions
        ):
            raise ProtocolError("a decision in another silo's name, or of one that was revoked")
        last = {taken.decision.study: taken for taken in decisions}
        for study in queue.all:
            if not study.known or study.known.agreement not in last:
                continue
            said, signature = (
                last[study.known.agreement].decision,
                last[study.known.agreement].signature,
            )
            registry.require_signed(place, said.kind, said.statement, signature)
            consents = Consents(study.folder)
            if consents.news(said):
                write_line(
                    self.kit / "run",
                    "accepted" if said.accepted else "declined",
                    silo=silo,
                    study=study.name,
                )
                consents.note(said, signature)

    def _open(self) -> list[QueuedStudy]:
        queue = StudyQueue(self.kit)
        return [study for study in queue.all if study.known and queue.state(study) not in OVER]


def _read(kind: type[T], body: bytes) -> T:
    tree = parse(body, lambda why: ProtocolError(f"a visit cannot be read: {why}"))
    try:
        return kind.model_validate(tree)
    except ValidationError as fault:
        raise ProtocolError(f"a visit cannot be read ({first(fault)})") from None


def _require_own(who: str, silo: str) -> None:
    if who not in {"", silo}:
        raise ProtocolError("a visit in another silo's name")


def _member(registry: MemberRegistry, silo: str) -> int:
    try:
        return registry.place(silo)
    except ConfigError:
        raise ProtocolError("no member has this name") from None

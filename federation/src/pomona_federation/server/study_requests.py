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
from pomona_federation.messages.study_bodies import (
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
from pomona_federation.server.study_queue import StudyQueue
from pomona_federation.server.submissions import FINAL_STATES, QueuedStudy
from pomona_federation.study import RESULTS

Row = dict[str, Any]


def overview(kit: Path) -> list[Row]:
    """A row for each study, in order."""
    queue = StudyQueue(kit)
    return [_row(queue, study) for study in queue.all]


def result_text(kit: Path, name: str, suffix: Literal["json", "md"]) -> str:
    """The text of a study's result file. Raises ConfigError if it has none, or none yet."""
    queue = StudyQueue(kit)
    study = queue.study(name)
    study_kind = study.submission.study.kind if study.submission else "train"
    if study_kind not in RESULTS:
        raise ConfigError(
            f"study {study.name} is of kind {study_kind}, which trains models; see them with "
            "`pomona report`"
        )
    path = study.folder / f"{RESULTS[study_kind]}.{suffix}"
    try:
        return text(path)
    except FileNotFoundError:
        raise ConfigError(
            f"study {study.name} is {queue.state(study)} and has no result yet"
        ) from None


def _row(queue: StudyQueue, study: QueuedStudy) -> Row:
    submission, decisions = study.submission, Consents(study.folder).decisions
    fields = {"study": study.name, "hash": "", "kind": "train"}
    if submission:
        fields |= {"hash": submission.agreement[:16], "kind": submission.study.kind}
    return {
        **fields,
        "state": queue.state(study),
        "round": getattr(read_status(study.at_work), "round", 0),
        "accepted": ", ".join(
            sorted(name for name, decision in decisions.items() if decision.accepted)
        ),
        "declined": ", ".join(
            sorted(name for name, decision in decisions.items() if not decision.accepted)
        ),
        "undecided": ", ".join(sorted(queue.members - decisions.keys())) if submission else "",
        "submitted": f"{datetime.fromtimestamp(submission.submitted, UTC):%Y-%m-%d %H:%M}Z"
        if submission
        else "",
        "why": getattr(read_status(study.folder), "reason", "") or queue.missing_acceptances(study),
    }


Response = tuple[int, bytes]
T = TypeVar("T", bound=Settings)


@dataclass(frozen=True)
class StudyRequests:
    """Answers for the server of a kit; it trusts only what a silo has signed."""

    kit: Path

    def answer(self, member: str, path: str, body: bytes) -> Response:
        """Answer one request with an HTTP status and text.

        Args:
            member: the member whose key signed the request's head; "" in a federation without keys.
            path: of the request.
            body: of the request.
        """
        try:
            if path == STUDY_VERSIONS:
                return self._exchange_versions(member, body)
            if path != STUDIES:
                return self._text(path.removeprefix(f"{STUDIES}/"))
            return self._visit(member, body)
        except ProtocolError as fault:
            return 400, f"{fault}\n".encode()
        except (PomonaError, OSError):
            return 500, b"the server's files cannot be read\n"

    def _text(self, agreement: str) -> Response:
        for study in self._open():
            if study.submission and study.submission.agreement == agreement:
                return 200, study.submission.study.text.encode()
        return 404, b"no such study\n"

    def _exchange_versions(self, member: str, body: bytes) -> Response:
        """Note a silo's installed versions, and return the server's."""
        message = _read(SiloVersions, body)
        _require_sender(member, message.silo)
        registry = MemberRegistry(self.kit / "run", StudyQueue(self.kit).federation)
        _member(registry, message.silo)
        versions.note(self.kit / "run", message.silo, message.versions)
        return 200, versions.installed().model_dump_json().encode()

    def _visit(self, member: str, body: bytes) -> Response:
        visit = _read(StudyVisit, body)
        _require_sender(member, visit.silo)
        # of a silo with a key the gate hears its node
        if not member and visit.silo in StudyQueue(self.kit).members:
            contacts.record(self.kit / "run", visit.silo)
        if visit.decisions:
            self._record(visit.silo, visit.decisions)
        agreements = [study.submission.agreement for study in self._open() if study.submission]
        return 200, OpenStudies(
            studies=tuple(agreements[:MOST_DECISIONS])
        ).model_dump_json().encode()

    def _record(self, silo: str, decisions: Sequence[TakenDecision]) -> None:
        """Record a silo's last decision on each study of the queue, after verifying its signature.

        Decisions on finished studies are recorded too: a study may be resumed, and the silo sends
        each decision once.
        """
        queue = StudyQueue(self.kit)
        registry = MemberRegistry(self.kit / "run", queue.federation)
        client = _member(registry, silo)
        if registry.entries[client].revoked or any(
            signed.decision.silo != silo for signed in decisions
        ):
            raise ProtocolError("a decision in another silo's name, or of a revoked silo")
        last = {signed.decision.study: signed for signed in decisions}
        for study in queue.all:
            if not study.submission or study.submission.agreement not in last:
                continue
            decision = last[study.submission.agreement].decision
            signature = last[study.submission.agreement].signature
            registry.require_signed(client, decision.message_type, decision.statement, signature)
            consents = Consents(study.folder)
            if consents.is_new(decision):
                write_line(
                    self.kit / "run",
                    "accepted" if decision.accepted else "declined",
                    silo=silo,
                    study=study.name,
                )
                consents.record(decision, signature)

    def _open(self) -> list[QueuedStudy]:
        queue = StudyQueue(self.kit)
        return [
            study
            for study in queue.all
            if study.submission and queue.state(study) not in FINAL_STATES
        ]


def _read(model: type[T], body: bytes) -> T:
    tree = parse(body, lambda reason: ProtocolError(f"a visit cannot be read: {reason}"))
    try:
        return model.model_validate(tree)
    except ValidationError as fault:
        raise ProtocolError(f"a visit cannot be read ({first(fault)})") from None


def _require_sender(member: str, silo: str) -> None:
    if member not in {"", silo}:
        raise ProtocolError("a visit in another silo's name")


def _member(registry: MemberRegistry, silo: str) -> int:
    try:
        return registry.client_id(silo)
    except ConfigError:
        raise ProtocolError("no member has this name") from None

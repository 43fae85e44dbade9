"""What a server's audit log and machine report to people: studies, absent silos, disk,
certificate.
"""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from pomona.core.bounds import MAX_CLIENTS, Count, Line, plain
from pomona.core.errors import ConfigError, DivergedError, QuorumError, StorageError
from pomona.core.settings import Settings
from pomona_federation import certificates
from pomona_federation.server.consents import Consents
from pomona_federation.server.settings import Event, NotifySettings
from pomona_federation.study import KIT

REASONS = {
    QuorumError.code: "too few silos took part",
    DivergedError.code: "training diverged",
    StorageError.code: "a disk is full or cannot be written",
}
STOPPED_IN_ORDER = {0, 130, 143}
RECOVERED = 1.5  # times the limit that must be free before a full disk is reported again


class Message(NamedTuple):
    """What a notice says."""

    event: Event
    text: str
    study: str = ""
    silo: str = ""


class Progress(Settings):
    """What is remembered of the log's earlier lines.

    Attributes:
        study: the study that the next lines are about.
        reported_begin: the last study whose begin was reported.
        last_code: the code of the last study that ended; 0 after a start.
        absent: rounds in a row without a silo, by name.
        reported: the disk and the certificate as last reported.
    """

    study: Line = KIT
    reported_begin: Line = ""
    last_code: int = 0
    absent: dict[Line, Count] = Field({}, max_length=MAX_CLIENTS)
    reported: dict[Line, Line] = Field({}, max_length=10)


@dataclass(frozen=True)
class ServerEvents:
    """Reads the lines of a server's audit log."""

    kit: Path
    settings: NotifySettings

    def read(
        self, lines: Iterable[Mapping[str, Any]], progress: Progress
    ) -> tuple[Progress, list[Message]]:
        """The progress after some lines, and what they report."""
        messages: list[Message] = []
        for line in lines:
            progress, reported = self._line(line, progress)
            messages += reported
        return progress, messages

    def _line(self, line: Mapping[str, Any], progress: Progress) -> tuple[Progress, list[Message]]:
        study = plain(str(line.get("study", KIT)))
        code = line.get("code")
        match line.get("event"):
            case "proposed":
                text = f"study {study} waits for the silos' decisions"
                return progress, [Message("proposed", text, study)]
            case "start":
                return self._study_begins(study, line.get("round"), progress)
            case "round":
                return self._counted(line, progress)
            case "ended" if isinstance(code, int):
                return progress.model_copy(update={"last_code": code}), [_study_ended(study, line)]
            case "stopped" if code not in {progress.last_code, *STOPPED_IN_ORDER}:
                return progress, [Message("failed", f"the server has stopped{_reason(code)}")]
        return progress, []

    def _study_begins(
        self, study: str, number: object, progress: Progress
    ) -> tuple[Progress, list[Message]]:
        """A study's start; its trials and its resumes start again."""
        absent = progress.absent if study == progress.study else {}
        updated = progress.model_copy(update={"study": study, "last_code": 0, "absent": absent})
        if number != 0 or study == progress.reported_begin:
            return updated, []
        return updated.model_copy(update={"reported_begin": study}), [
            Message("begun", f"study {study} has begun", study)
        ]

    def _counted(
        self, line: Mapping[str, Any], progress: Progress
    ) -> tuple[Progress, list[Message]]:
        study, limit = progress.study, self.settings.absent_rounds
        folder = self.kit / "run" if study == KIT else self.kit / "run" / "studies" / study
        absent = {plain(str(silo)) for silo in line.get("absent", ())} - Consents(folder).declined
        missed = absent.difference(line.get("undrawn", ()))  # others' counts stay
        counts = {silo: progress.absent.get(silo, 0) + (silo in missed) for silo in sorted(absent)}
        rounds = f"{limit} round{'s' * (limit > 1)} in a row"
        messages = [
            Message("absent", f"{silo} was absent in {rounds} of study {study}", study, silo)
            for silo, count in counts.items()
            if count == limit and silo in missed
        ]
        return progress.model_copy(update={"absent": counts}), messages

    def conditions(self, progress: Progress) -> tuple[Progress, list[Message]]:
        """The disk and the server's certificate, if they need a person and that is news."""
        free = shutil.disk_usage(self.kit).free / 1e9
        low = free < self.settings.free_gb * (RECOVERED if "disk" in progress.reported else 1)
        reported: dict[str, str] = {"disk": "low"} if low else {}
        texts: dict[Event, str] = {"disk": f"{free:.1f} GB are free on the server's disk"}
        try:
            expiry = certificates.expires(self.kit / "certs" / "server.crt")
            if warning := certificates.warning(expiry):
                reported["certificate"] = f"{warning.partition(' ')[0]} {expiry:%Y-%m-%d}"
                texts["certificate"] = f"the server's certificate {warning}"
        except ConfigError:  # a federation without TLS, or one whose server says so itself
            pass
        messages = [
            Message(event, text)
            for event, text in texts.items()
            if reported.get(event) not in {None, progress.reported.get(event)}
        ]
        return progress.model_copy(update={"reported": reported}), messages


def _study_ended(study: str, line: Mapping[str, Any]) -> Message:
    rounds = f" after round {number}" if (number := line.get("round")) else ""  # a survey has none
    match line.get("state"):
        case "finished":
            return Message("finished", f"study {study} has finished{rounds}", study)
        case "failed":
            text = f"study {study} has failed{rounds}{_reason(line.get('code'))}"
            return Message("failed", text, study)
    return Message("finished", f"study {study} was aborted by the operator{rounds}", study)


def _reason(code: object) -> str:
    reason = REASONS.get(code) if isinstance(code, int) else None
    return f" (code {code}{f': {reason}' if reason else ''}); `pomona server status` says more"

"""A server as operators see it: the state of its studies and their reports.

Its record and audit log grow by lines; each line is read once.
"""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

from pomona.core.bounds import plain
from pomona.metrics.client_statistics import summarize
from pomona.record import events
from pomona.record.events import EVENTS
from pomona.storage.hash_chain import parsed
from pomona_federation import status
from pomona_federation.agreement import Federation
from pomona_federation.server.study_queue import StudyQueue
from pomona_federation.server.submissions import QueuedStudy
from pomona_federation.study import KIT
from pomona_federation.supervision.process_logs import Followed
from pomona_federation.unused_uplinks import ADMITTED, UNUSED

ROUNDS = 40  # rounds whose silos are remembered
SPOKE = {"present", "received"}  # events backed by a silo's own signature
Key = tuple[str, str, str]  # model, stage, split


@dataclass
class RecordedRun:
    """The events of a run.

    Attributes:
        metric: the run's, as the record names it.
        means: the last mean over silos, by model, stage and split.
    """

    metric: str = ""
    means: dict[Key, float] = field(default_factory=dict)

    def add_line(self, line: bytes) -> None:
        """Add one event; an unreadable one is skipped."""
        try:
            event, body = events.read(line)
        except ValueError:
            return
        match event:
            case "start":
                self.metric = plain(str(body.get("metric", "")), 40)
            case "evaluation":
                mean = summarize(body.value, body.samples, metric=body.value_metric)["mean"]
                if mean is not None and math.isfinite(mean):
                    self.means[body.key] = mean


@dataclass
class AuditedStudy:
    """One study in the audit log.

    Attributes:
        uplinks: by silo, and ``ADMITTED`` or the stage in which they were left out; once for each
            round, however often a silo is asked again in it.
        committed: time of the last round, in ISO 8601.
        present: silos of the last ``ROUNDS`` rounds, by number.
    """

    uplinks: Counter[tuple[str, str]] = field(default_factory=Counter)
    committed: str = ""
    present: dict[int, frozenset[str]] = field(default_factory=dict)
    _outcomes: dict[str, tuple[object, str]] = field(default_factory=dict)  # last round, by silo

    def record_outcome(self, silo: str, number: object, outcome: str) -> None:
        """Count what became of a silo's uplink of a round."""
        if self._outcomes.get(silo) != (number, outcome):
            self._outcomes[silo] = number, outcome
            self.uplinks[silo, outcome] += 1

    def record_round(self, number: object, silos: object) -> None:
        """Add a round; one that is repeated, or of a search's next trial, replaces later ones."""
        if isinstance(number, int) and isinstance(silos, list):
            earlier = [(k, names) for k, names in self.present.items() if k < number]
            names = frozenset(plain(str(silo), 40) for silo in silos)
            self.present = dict([*earlier, (number, names)][-ROUNDS:])


@dataclass
class AuditedServer:
    """A server's audit log, which all its studies share.

    Attributes:
        last_messages: by silo, the time of its last message signed with its key, in ISO 8601.
        lost: processes that had to be restarted, by name.
        completed: whether the server was not started, or has ended because all studies were over.
        studies: by name.
    """

    last_messages: dict[str, str] = field(default_factory=dict)
    lost: Counter[str] = field(default_factory=Counter)
    completed: bool = True
    studies: dict[str, AuditedStudy] = field(default_factory=lambda: defaultdict(AuditedStudy))
    _study: str = KIT  # the study whose lines follow

    def add_line(self, line: bytes) -> None:
        """Add one line; a piece cut short by a kill is skipped."""
        fields = parsed(line)
        if fields is None:
            return
        event, timestamp, silo = (
            plain(str(fields.get(key, ""))) for key in ("event", "time", "silo")
        )
        if event == "start":
            self._study = plain(str(fields.get("study", KIT)))
        elif event in SPOKE:
            self.last_messages[silo] = timestamp
        elif event == "lost":
            self.lost[plain(str(fields.get("process")), 40)] += 1
        elif event in {"started", "stopped"}:
            self.completed = event == "stopped" and fields.get("code") == 0
        else:
            self._add_uplink_event(self.studies[self._study], event, timestamp, silo, fields)

    def _add_uplink_event(
        self, study: AuditedStudy, event: str, timestamp: str, silo: str, fields: dict[str, Any]
    ) -> None:
        if event == "round":
            study.committed = timestamp
            study.record_round(fields.get("round"), fields.get("present"))
        elif event == ADMITTED:
            study.record_outcome(silo, fields.get("round"), ADMITTED)
        elif event == UNUSED:
            study.record_outcome(silo, fields.get("round"), plain(str(fields.get("stage")), 40))


AUDIT = "audit.jsonl"
Row = dict[str, Any]


@dataclass(frozen=True)
class StudyView:
    """One study of a server.

    Attributes:
        status: as returned by ``status.server``.
        recorded: its events; for a search those of its newest trial.
        audited: its entries in the audit log.
        server: the whole audit log.
    """

    status: Row
    recorded: RecordedRun
    audited: AuditedStudy
    server: AuditedServer


@dataclass
class WatchedServer:
    """A server's kit; file contents are read once and kept."""

    kit: Path
    _audit: Followed[AuditedServer] = field(init=False)
    _records: dict[Path, Followed[RecordedRun]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        """Raise ConfigError for a folder that is not a kit."""
        Federation.read(self.kit / "federation.toml")
        self._audit = Followed(self.kit / "run" / AUDIT, AuditedServer)

    def studies(self) -> list[StudyView]:
        """The unfinished studies, and the last one that ran. Raises StorageError, ConfigError."""
        queue = StudyQueue(self.kit)
        chosen = {study.name: study for study in (queue.current, *queue.open) if study}
        return [self._view(study) for study in chosen.values()] or [self._view(None)]

    def _view(self, chosen: QueuedStudy | None) -> StudyView:
        name, folder = (chosen.name, chosen.folder) if chosen else (KIT, self.kit / "run")
        with self._lock:
            audited = self._audit.read_new()
            events = (chosen.at_work if chosen else folder) / EVENTS
            record = self._records.setdefault(events, Followed(events, RecordedRun)).read_new()
            row = status.server(self.kit, chosen.name if chosen else None)
            return StudyView(row, record, audited.studies[name], audited)


def moment(text: str) -> float | None:
    """An ISO 8601 time as seconds since 1970; None for any other text."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()

"""A server as operators see it: the state of its studies, their reports, and a bound on each silo's
epsilon.

Its record and audit log grow by lines; each line is read once.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

from pomona.core.bounds import plain
from pomona.core.errors import ConfigError
from pomona.metrics.client_statistics import summarize
from pomona.record import events
from pomona.record.events import EVENTS
from pomona.storage.hash_chain import parsed
from pomona_federation import status
from pomona_federation.agreement import Federation, StudyAgreement
from pomona_federation.server.study_queue import QueuedStudy, StudyQueue
from pomona_federation.study import KIT, SurveyStudy
from pomona_federation.supervision.followed_file import Followed
from pomona_federation.unused_uplinks import ADMITTED, UNUSED

ROUNDS = 40  # rounds whose silos are remembered
SPOKE = {"present", "received"}  # events backed by a silo's own signature
Key = tuple[str, str, str]  # model, stage, split


@dataclass
class RecordedRun:
    """The events of a run.

    Attributes:
        metric: the run's, as the record names it.
        bytes_down, bytes_up: bytes of models, over all rounds and silos.
        means: the last mean over silos, by model, stage and split.
    """

    metric: str = ""
    bytes_down: int = 0
    bytes_up: int = 0
    means: dict[Key, float] = field(default_factory=dict)

    def take(self, line: bytes) -> None:
        """Add one event; an unreadable one is skipped."""
        try:
            event, body = events.read(line)
        except ValueError:
            return
        match event:
            case "start":
                self.metric = body.get("metric", "")
            case "round":
                self.bytes_down += sum(body.bytes_down)
                self.bytes_up += sum(body.bytes_up)
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
        studies: by name.
    """

    last_messages: dict[str, str] = field(default_factory=dict)
    lost: Counter[str] = field(default_factory=Counter)
    studies: dict[str, AuditedStudy] = field(default_factory=lambda: defaultdict(AuditedStudy))
    _study: str = KIT  # the study whose lines follow

    def take(self, line: bytes) -> None:
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


@dataclass
class PrivacyAccount:
    """Computes the privacy cost of a federation's rounds, with a cache.

    Without privacy nothing is loaded.
    """

    terms: StudyAgreement
    _cache: dict[tuple[int, int], float | None] = field(default_factory=dict)

    def bounds(self, row: Mapping[str, Any]) -> dict[str, float | None]:
        """By silo, the largest epsilon that its rounds can have cost, including the current round.

        It follows from the agreed settings and each silo's registered samples, by the RDP
        accountant, which is quick and never below the silo's own account. Empty without privacy;
        None if Opacus is not installed.

        Args:
            row: as returned by ``status.server``.
        """
        if isinstance(study := self.terms.study, SurveyStudy) or "privacy" not in study.run:
            return {}
        last = row["round"] + (row["state"] == "running")
        members = [s for s in row["silos"] if s["samples"] and s["joined"]]
        rounds = {
            s["silo"]: max(0, min(s["left"] or last, last) - s["joined"] + 1) for s in members
        }
        return {s["silo"]: self._cached_bound(s["samples"], rounds[s["silo"]]) for s in members}

    def _cached_bound(self, samples: int, rounds: int) -> float | None:
        if (samples, rounds) not in self._cache:
            try:
                self._cache[samples, rounds] = self._bound(samples, rounds)
            except ConfigError:  # no accountant is installed, or it cannot handle these settings
                self._cache[samples, rounds] = None
        return self._cache[samples, rounds]

    def _bound(self, samples: int, rounds: int) -> float:
        from pomona.privacy.accounting import projected_epsilon

        config = self.terms.config
        assert config.privacy
        if config.void:
            return math.inf
        settings = config.privacy.model_copy(update={"accountant": "rdp"})
        cost = config.method.method().card.privacy.gradients
        return projected_epsilon(settings, cost, samples, config.batch_size, config.passes, rounds)


@dataclass(frozen=True)
class StudyView:
    """One study of a server.

    Attributes:
        folder: of its run.
        status: as returned by ``status.server``, with each silo's ``epsilon``.
        recorded: its events; for a search those of its newest trial.
        audited: its entries in the audit log.
        last_messages, lost: as in ``AuditedServer``.
    """

    folder: Path
    status: Row
    recorded: RecordedRun
    audited: AuditedStudy
    last_messages: Mapping[str, str]
    lost: Mapping[str, int]


@dataclass
class WatchedServer:
    """A server's kit; file contents are read once and kept."""

    kit: Path
    _audit: Followed[AuditedServer] = field(init=False)
    _records: dict[Path, Followed[RecordedRun]] = field(default_factory=dict)
    _accounts: dict[str, PrivacyAccount] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        """Raise ConfigError for a folder that is not a kit."""
        Federation.read(self.kit / "federation.toml")
        self._audit = Followed(self.kit / "run" / AUDIT, AuditedServer)

    def studies(self) -> list[StudyView]:
        """The unfinished studies, and the last one that ran. Raises StorageError, ConfigError."""
        queue = StudyQueue(self.kit)
        chosen = {study.name: study for study in (queue.current, *queue.open) if study}
        return [self._view(queue, study) for study in chosen.values()] or [self._view(queue, None)]

    def _view(self, queue: StudyQueue, chosen: QueuedStudy | None) -> StudyView:
        name, folder = (chosen.name, chosen.folder) if chosen else (KIT, self.kit / "run")
        with self._lock:
            audited = self._audit.look()
            events = (chosen.at_work if chosen else folder) / EVENTS
            record = self._records.setdefault(events, Followed(events, RecordedRun)).look()
            row = status.server(self.kit, chosen.name if chosen else None)
            if chosen and name not in self._accounts:
                self._accounts[name] = PrivacyAccount(chosen.terms(queue.federation, self.kit))
            epsilons = self._accounts[name].bounds(row) if chosen else {}
            silos = [{**silo, "epsilon": epsilons.get(silo["silo"])} for silo in row["silos"]]
            row = {**row, "silos": silos}
            return StudyView(
                folder, row, record, audited.studies[name], audited.last_messages, audited.lost
            )


def moment(text: str) -> float | None:
    """An ISO 8601 time as seconds since 1970; None for any other text."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()

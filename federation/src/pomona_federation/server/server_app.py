"""The ServerApp: the round loop over Flower, with record, checkpoints and status files in
``run/``.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import time

import torch

from pomona.core.files import writing
from pomona.core.registry import importable
from pomona.federation.admission import Admission, Rejection
from pomona.federation.callbacks import NullCallback
from pomona.federation.checkpointing import Checkpointing
from pomona.federation.loop import Loop
from pomona.lifecycle import close_record, open_record, resume_point, status_kept
from pomona.record.result import Result
from pomona.record.rows import Evaluation, RoundRow
from pomona.record.run_folder import RunRecord
from pomona.scenario import Scenario
from pomona.storage import checkpoint
from pomona.storage.lock import locked
from pomona.storage.run_status import FOLDER, Status, write_status
from pomona_federation.agreed_scenario import without_data
from pomona_federation.agreement import Federation, StudyAgreement
from pomona_federation.audit_log import Audit
from pomona_federation.json_store import write_json
from pomona_federation.messages.message_bus import MessageBus
from pomona_federation.server import evaluation_result
from pomona_federation.server.consents import Consents
from pomona_federation.server.flower_transport import FlowerTransport
from pomona_federation.server.handshake import run_id
from pomona_federation.server.member_registry import MemberRegistry, heavy, samples
from pomona_federation.server.registry_admin import entries
from pomona_federation.server.round_messages import log_admission
from pomona_federation.server.search_study import search
from pomona_federation.server.study_queue import StudyQueue
from pomona_federation.server.survey_app import conduct
from pomona_federation.study import KIT, EvaluationStudy, SearchStudy, SurveyStudy, TrainingStudy
from pomona_federation.supervision.process_logs import SERVER, logging_to
from pomona_federation.supervision.status_files import LIVE, LiveStatus

QUARANTINED = "not asked to train: its uplinks were refused too often in a row"
logger = logging.getLogger("pomona")


def coordinate(kit: Path, bus: MessageBus, study: str = KIT, pause: float = 1.0) -> None:
    """Run a study of a server's kit to its end, from its last committed round.

    Args:
        kit: the server's.
        bus: carries messages.
        study: its name.
        pause: seconds between looks for answers.

    Raises:
        PomonaError: as written to ``status.json`` in the study's folder.
    """
    os.umask(0o077)
    torch.set_num_threads(1)
    importable(kit)
    queued = StudyQueue(kit).named(study)
    out = queued.folder
    consents = Consents(out)
    with (
        logging_to(kit / "run" / "logs" / SERVER),
        locked(out / FOLDER),
        writing(out),
        status_kept(out),
    ):
        agreed = queued.agreed(Federation.load(kit / "federation.toml"), kit)

        def rounds(terms: StudyAgreement, folder: Path) -> Result:
            return _rounds(terms, kit / "run", folder, bus, pause, consents)

        match agreed.study:
            case SurveyStudy():
                conduct(agreed, kit / "run", out, bus, pause)
            case SearchStudy():
                search(agreed, queued.name, out, rounds)
            case EvaluationStudy():
                result = rounds(agreed, out)
                names = [entry.name for entry in entries(kit) if not entry.revoked]
                evaluation_result.write(agreed, result, names, sorted(consents.declined), out)
            case TrainingStudy():
                rounds(agreed, out)


def _rounds(
    agreed: StudyAgreement,
    kit_run: Path,
    out: Path,
    bus: MessageBus,
    pause: float,
    consents: Consents,
) -> Result:
    """Run all rounds of one agreement, in the folder ``out``.

    ``kit_run`` is the server's ``run/``, shared by all studies; silos that have declined are not
    waited for.
    """
    config, scenario = agreed.config, without_data(agreed)
    stamp = {"schema": checkpoint.SCHEMA, "agreement": agreed.agreement}
    point = resume_point(out, stamp)
    write_status(out, Status(state="running", round=point.number))
    with (
        Audit(kit_run / "audit.jsonl") as audit,
        RunRecord(out, config.tree(), point.after) as record,
    ):
        method = config.method.method()
        federation, share = agreed.federation, agreed.largest_share
        members = None if agreed.own else MemberRegistry(kit_run, federation, share=share)
        registry = MemberRegistry(out, federation, members=members, share=share)
        transport = FlowerTransport(
            agreed, kit_run, run_id(out), method.server, registry, bus, audit, pause
        )
        status = ServerStatusFile(out, transport, audit, record)
        for note in point.notes:
            status.note(note)
        about = {} if agreed.own else {"study": agreed.study.name}
        about |= {} if agreed.trial is None else {"trial": f"{agreed.trial:03d}"}
        audit.write(
            "start", round=point.number, agreement=agreed.agreement, run=transport.run, **about
        )
        transport.absent |= transport.exchange.gather(kit_run, consents.awaited)
        # From here on, silos that have arrived are admitted before a round's roster is settled.
        registry = MemberRegistry(out, federation, transport.greet, members, share)
        if not point.found:
            _open(record, agreed, scenario, registry)
        found = point.found and checkpoint.in_files(point.found, transport.scratch)
        commits = Checkpointing(out, 1, stamp, found)
        began = time()
        initial = scenario.initial.in_files(transport.scratch)
        parts = (config, method.server, registry, initial, transport, record, status, commits)
        metric = scenario.choice.metric
        loop = Loop(
            *parts, quorum=agreed.quorum, metric=metric, judged=status.judged, called=status.called
        )
        loop.run()
        result = close_record(record, time() - began)
        audit.write("finished", round=loop.last)
        return result


@dataclass
class ServerStatusFile(NullCallback):
    """The loop's callback and its ``judged``: writes ``live.json`` after each round, and the audit
    log.
    """

    out: Path
    transport: FlowerTransport
    audit: Audit
    record: RunRecord
    _heavy: Sequence[str] = ()
    _rejected: Sequence[Rejection] = ()
    _quarantined: frozenset[int] = frozenset()

    def begin(self) -> None:
        """Record that the connected silos have reported their sizes."""
        self._weigh()

    def note(self, text: str) -> None:
        """Show the operator a line."""
        self.audit.write("note", text=text)
        logger.info("%s", text)

    def called(self, client: int) -> str:
        """A client by its silo's name."""
        return self.transport.registry.entries[client].name

    def judged(self, number: int, verdict: Admission) -> None:
        """Log which uplinks a round uses; if it is tried again, the last decision counts."""
        self._rejected, self._quarantined = verdict.rejected, verdict.history.quarantined()
        log_admission(self.audit, self.transport.registry, number, verdict)

    def round(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:  # noqa: ARG002
        """Write the status of a committed round."""
        self._weigh()
        entries = self.transport.registry.entries
        present = [entries[i].name for i in row.cohort]
        refused = {
            entries[i].name: QUARANTINED for i in self._quarantined if not entries[i].revoked
        }
        refused |= {entries[r.client].name: r.reason for r in self._rejected}
        live = LiveStatus(
            rounds=self.record.config["rounds"],
            present=tuple(present),
            absent=tuple(e.name for e in entries if e.name not in present and not e.revoked),
            rejected=tuple(sorted(refused.keys() | self.transport.refused)),
            why=self.transport.absent | refused,
            bytes_down=sum(row.bytes_down),
            bytes_up=sum(row.bytes_up),
            seconds=row.seconds,
        )
        write_json(self.out / LIVE, live)
        self.audit.write("round", round=row.round, present=present, absent=list(live.absent))
        logger.info("committed with %d silos after %.1f s", len(present), row.seconds)
        for name, why in live.why.items():
            logger.warning("%s was not used: %s", name, why)

    def _weigh(self) -> None:
        """Record silos with too much weight, whenever that changes."""
        registry = self.transport.registry
        lines = heavy(samples(registry.entries), registry.share)
        for line in lines if lines != self._heavy else ():
            self.note(line)
        self._heavy = lines


def _open(
    record: RunRecord, agreed: StudyAgreement, scenario: Scenario, registry: MemberRegistry
) -> None:
    """Write the start event; what a server cannot know is null."""
    config, about = agreed.config, scenario.about()
    names = [e.name for e in registry.entries]
    about["clients"] = [
        *names,
        *(f"place {i}" for i in range(len(names), agreed.federation.places)),
    ]
    about["sizes"] = {
        "train": [
            *(e.size or 0 for e in registry.entries),
            *[0] * (agreed.federation.places - len(names)),
        ]
    }
    about["label_counts"] = None
    assert record.folder
    (record.folder / "config.toml").write_text(config.toml(), encoding="utf-8")
    open_record(record, scenario, about)

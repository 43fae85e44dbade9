"""The ServerApp: the round loop over Flower, with record, checkpoints and status files in
``run/``.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Any

import torch

from pomona.core.files import writing
from pomona.core.notes import Note
from pomona.core.registry import importable
from pomona.federation.admission import Admission, Rejection
from pomona.federation.callbacks import NullCallback
from pomona.federation.checkpointing import Checkpointing
from pomona.federation.loop import Loop
from pomona.lifecycle import close_record, open_record, recorded_status, resume_point
from pomona.record.result import Result
from pomona.record.rows import Evaluation, RoundRow
from pomona.record.run_folder import RunRecord
from pomona.scenario import Scenario
from pomona.scenario.description import about
from pomona.storage import checkpoint
from pomona.storage.lock import locked
from pomona.storage.run_status import FOLDER, Status, write_status
from pomona_federation.agreed_scenario import without_data
from pomona_federation.agreement import Federation, StudyAgreement
from pomona_federation.audit_log import Audit
from pomona_federation.json_store import write_json
from pomona_federation.messages.message_bus import MessageBus
from pomona_federation.server import study_result
from pomona_federation.server.consents import Consents
from pomona_federation.server.flower_transport import FlowerTransport
from pomona_federation.server.handshake import run_id
from pomona_federation.server.member_registry import (
    MemberRegistry,
    member_ids,
    samples,
    weight_notes,
)
from pomona_federation.server.registry_admin import entries
from pomona_federation.server.round_messages import log_admission
from pomona_federation.server.search_study import search
from pomona_federation.server.study_queue import StudyQueue, require_undrained
from pomona_federation.server.survey_app import conduct
from pomona_federation.study import KIT, EvaluationStudy, SearchStudy, SurveyStudy, TrainingStudy
from pomona_federation.supervision.process_logs import SERVER, logging_to
from pomona_federation.supervision.status_files import LIVE, LiveStatus, read_status_file
from pomona_federation.unused_uplinks import UNUSED, Reason, UnusedUplink

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
    queued = StudyQueue(kit).study(study)
    folder = queued.folder
    consents = Consents(folder)
    with (
        logging_to(kit / "run" / "logs" / SERVER),
        locked(folder / FOLDER),
        writing(folder),
        recorded_status(folder),
    ):
        terms = queued.terms(Federation.load(kit / "federation.toml"), kit)

        def rounds(run_terms: StudyAgreement, run_folder: Path) -> Result:
            return _run_rounds(run_terms, kit / "run", run_folder, bus, pause, consents)

        match terms.study:
            case SurveyStudy():
                conduct(terms, kit / "run", folder, bus, pause)
            case SearchStudy():
                search(terms, queued.name, folder, rounds)
            case EvaluationStudy():
                result = rounds(terms, folder)
                names = [*member_ids(entries(kit))]
                study_result.write(terms, result, names, sorted(consents.declined), folder)
            case TrainingStudy():
                rounds(terms, folder)


def _run_rounds(
    terms: StudyAgreement,
    kit_run: Path,
    folder: Path,
    bus: MessageBus,
    pause: float,
    consents: Consents,
) -> Result:
    """Run all rounds of one agreement, in the folder ``folder``.

    ``kit_run`` is the server's ``run/``, shared by all studies; silos that have declined are not
    waited for.
    """
    config, scenario = terms.config, without_data(terms)
    stamp = {"schema": checkpoint.SCHEMA, "agreement": terms.agreement}
    point = resume_point(folder, stamp)
    write_status(folder, Status(state="running", round=point.number))
    with (
        Audit(kit_run / "audit.jsonl") as audit,
        RunRecord(folder, config.tree(), point.valid_to) as record,
    ):
        method = config.method.method()
        federation, share = terms.federation, terms.largest_share
        members = None if terms.from_kit else MemberRegistry(kit_run, federation, share=share)
        registry = MemberRegistry(folder, federation, members=members, share=share)
        transport = FlowerTransport(
            terms,
            kit_run,
            run_id(folder),
            method.server,
            registry,
            bus,
            audit,
            pause,
            declined=lambda: consents.declined,
            width=max((p.stop for p in scenario.initial.parameters), default=0),
        )
        status = ServerStatusFile(folder, transport, audit, record, consents)
        for note in point.notes:
            status.on_note(note)
        fields = {} if terms.from_kit else {"study": terms.study.name}
        fields |= {} if terms.trial is None else {"trial": f"{terms.trial:03d}"}
        audit.write(
            "start", round=point.number, agreement=terms.agreement, run=transport.run, **fields
        )
        transport.exchange.gather(consents.awaited)
        # From here on, silos that have arrived are admitted before a round's roster is settled.
        registry = MemberRegistry(folder, federation, transport.greet, members, share)
        if not point.resume_from:
            _write_start(record, terms, scenario, registry)
        resume_from = point.resume_from and checkpoint.in_files(
            point.resume_from, transport.scratch
        )
        checkpoints = Checkpointing(folder, 1, stamp, resume_from)
        start_time = time()
        initial = scenario.initial.in_files(transport.scratch)
        metric = scenario.choice.metric
        loop = Loop(
            *(config, method.server, registry, initial, transport, record, status, checkpoints),
            quorum=terms.quorum,
            metric=metric,
            on_admission=status.on_admission,
            client_name=status.client_name,
        )
        loop.run()
        status.show(transport.unused)  # of the closing visit
        result = close_record(record, time() - start_time)
        audit.write("finished", round=loop.last)
        return result


@dataclass
class ServerStatusFile(NullCallback):
    """The loop's callback and its ``on_admission``: writes ``live.json`` after each round, and the
    audit log.
    """

    folder: Path
    transport: FlowerTransport
    audit: Audit
    record: RunRecord
    consents: Consents
    _weight_notes: Sequence[str] = ()
    _quarantined: frozenset[int] = frozenset()
    _live: LiveStatus = field(init=False)

    def __post_init__(self) -> None:
        self._live = read_status_file(LiveStatus, self.folder / LIVE)

    def on_run_begin(self) -> None:
        """Record that the connected silos have reported their sizes."""
        self._weigh()

    def on_note(self, text: str) -> None:
        """Show the operator a line."""
        self.audit.write("note", text=text)
        logger.info("%s", text)

    def client_name(self, client: int) -> str:
        """A client by its silo's name."""
        return self.transport.registry.entries[client].name

    def on_admission(self, number: int, verdict: Admission) -> None:
        """Log which uplinks a round uses; if it is tried again, the last decision counts."""
        self._quarantined, unused = verdict.history.quarantined(), self.transport.unused
        names = [entry.name for entry in self.transport.registry.entries]
        rejected = [self._rejection(names[r.client], number, r) for r in verdict.rejected]
        unused |= {rejection.silo: rejection for rejection in rejected}
        log_admission(self.audit, names, number, verdict, rejected)
        self.show(unused)

    def _rejection(self, silo: str, number: int, rejection: Rejection) -> UnusedUplink:
        """The record of a rejection; of an answer that could not be read the transport has it."""
        if rejection.check == "unreadable":
            return self.transport.unused[silo]
        reason = Reason(rejection.check)
        return UnusedUplink(silo=silo, round=number, reason=reason, detail=rejection.reason)

    def show(self, unused: Mapping[str, UnusedUplink], **news: Any) -> None:
        """Write ``live.json``, in which the last record of a silo stays."""
        names = {entry.name for entry in self.transport.registry.entries}
        records = {name: last for name, last in self._live.unused.items() if name in names}
        records |= self.transport.exchange.handshake.turned_away | dict(unused)
        self._live = self._live.model_copy(update={"unused": records, **news})
        write_json(self.folder / LIVE, self._live)

    def on_round_end(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:  # noqa: ARG002
        """Write the status of a committed round, and why silos that were not asked were not.

        Raises Paused if the server is drained.
        """
        self._weigh()
        for line in self.transport.readmitted:
            self.on_note(line)
            self.record.note(Note(line, "training", row.round))
        entries = self.transport.registry.entries
        present = [entries[i].name for i in row.cohort]
        absent = [e.name for e in entries if e.name not in present and not e.revoked]
        unused = self._unused(absent, row.round)
        self.show(
            unused,
            round=row.round,
            rounds=self.record.config["rounds"],
            present=tuple(present),
            bytes_down=sum(row.bytes_down),
            bytes_up=sum(row.bytes_up),
            seconds=row.seconds,
        )
        undrawn = [name for name, last in unused.items() if last.reason is Reason.NOT_DRAWN]
        names = {"present": present, "absent": absent, "undrawn": undrawn}
        self.audit.write("round", round=row.round, **names)
        logger.info("committed with %d silos after %.1f s", len(present), row.seconds)
        for last in unused.values():
            logger.warning("%s was not used: %s; %s", last.silo, last.sentence, last.remedy)
        require_undrained(self.transport.kit_run)

    def _unused(self, absent: Sequence[str], number: int) -> dict[str, UnusedUplink]:
        """Why the uplink of each absent silo was not used; those not asked are audited here."""
        unused = {name: u for name, u in self.transport.unused.items() if name in absent}
        for client, entry in enumerate(self.transport.registry.entries):
            if entry.name in absent and entry.name not in unused:
                unused[entry.name] = self._unasked(client, number)
                self.audit.write(UNUSED, **unused[entry.name].fields)
        return unused

    def _unasked(self, client: int, number: int) -> UnusedUplink:
        """Why a member was not asked in a round."""
        entry = self.transport.registry.entries[client]
        if client in self._quarantined:
            reason = Reason.QUARANTINE
        elif decision := self.consents.unused(entry.name):
            reason = decision
        elif entry.joined is not None and entry.joined <= number:
            reason = Reason.NOT_DRAWN
        else:
            return self.transport.exchange.absence(entry.name, number)
        return UnusedUplink(silo=entry.name, round=number, reason=reason)

    def _weigh(self) -> None:
        """Record silos with too much weight, whenever that changes."""
        registry = self.transport.registry
        lines = weight_notes(samples(registry.entries), registry.share)
        for line in lines if lines != self._weight_notes else ():
            self.on_note(line)
        self._weight_notes = lines


def _write_start(
    record: RunRecord, terms: StudyAgreement, scenario: Scenario, registry: MemberRegistry
) -> None:
    """Write the start event; what a server cannot know is null."""
    config, description = terms.config, about(scenario)
    names = [entry.name for entry in registry.entries]
    sizes = [entry.size or 0 for entry in registry.entries]
    free = range(len(names), terms.federation.places)
    description["clients"] = [*names, *(f"place {i}" for i in free)]
    description["sizes"] = {"train": [*sizes, *[0] * len(free)]}
    description["label_counts"] = None
    assert record.folder
    (record.folder / "config.toml").write_text(config.toml(), encoding="utf-8")
    open_record(record, config, len(scenario.initial()), scenario.network.frozen, description)

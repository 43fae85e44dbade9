"""The ServerApp: the round loop over Flower, with record, checkpoints and status files in ``run/``."""

import logging
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Any

import numpy as np
import torch

from pomona.core.errors import QuorumError
from pomona.core.registry import importable
from pomona.core.settings import Settings
from pomona.data.dataset import Dataset, network_shape
from pomona.deploy.agreement import Federation
from pomona.deploy.audit import Audit
from pomona.deploy.json_store import read_json, write_json
from pomona.deploy.message_bodies import Token
from pomona.deploy.message_bus import MessageBus
from pomona.deploy.process_logs import SERVER, logging_to
from pomona.deploy.server.flower_transport import FlowerTransport
from pomona.deploy.server.member_registry import MemberRegistry, heavy, samples
from pomona.deploy.status_files import LIVE, LiveStatus
from pomona.federation.checkpointing import Checkpointing
from pomona.federation.loop import Loop
from pomona.lifecycle import close_record, open_record, resume_point, status_kept
from pomona.partition.partition import ClientRows, Partition
from pomona.record.rows import Evaluation, RoundRow
from pomona.record.writer import RunRecord
from pomona.scenario import Scenario
from pomona.storage import checkpoint
from pomona.storage.atomic_io import writing
from pomona.storage.committed_rounds import FOLDER
from pomona.storage.lock import locked
from pomona.storage.run_status import Status, write_status
from pomona.tasks import TASKS

logger = logging.getLogger("pomona")


def coordinate(folder: Path, bus: MessageBus, pause: float = 1.0) -> None:
    """Run the federation of a server's kit to its end, from its last committed round.

    Args:
        folder: the kit.
        bus: carries messages.
        pause: seconds between looks for answers.

    Raises:
        PomonaError: as written to ``run/status.json``.
    """
    os.umask(0o077)
    torch.set_num_threads(1)
    importable(folder)
    out = folder / "run"
    with logging_to(out / "logs" / SERVER), locked(out / FOLDER), writing(out), status_kept(out):
        _coordinate(Federation.load(folder / "federation.toml"), out, bus, pause)


def _coordinate(federation: Federation, out: Path, bus: MessageBus, pause: float) -> None:
    config, scenario = federation.config(), blank(federation)
    stamp = {"schema": checkpoint.SCHEMA, "agreement": federation.agreement}
    point = resume_point(out, stamp)
    write_status(out, Status(state="running", round=point.number))
    with Audit(out / "audit.jsonl") as audit, RunRecord(out, config.tree(), point.after) as record:
        method = config.method.method()
        transport = FlowerTransport(
            federation, _run_id(out), method.server, MemberRegistry(out, federation), bus, audit, pause
        )
        status = ServerStatusFile(out, transport, audit, record)
        for note in point.notes:
            status.note(note)
        audit.write("start", round=point.number, agreement=federation.agreement, run=transport.run)
        gather_silos(transport, federation)
        # From here on, silos that have come meanwhile are let in before a round's roster is settled.
        registry = MemberRegistry(out, federation, transport.greet)
        if not point.found:
            _open(record, federation, scenario, registry)
        found = point.found and checkpoint.in_files(point.found, transport.scratch)
        commits = Checkpointing(out, 1, stamp, found)
        began = time()
        parts = (config, method.server, registry, scenario.initial, transport, record, status, commits)
        metric = scenario.choice.metric
        loop = Loop(*parts, quorum=federation.quorum, metric=metric)
        loop.run()
        close_record(record, time() - began)
        audit.write("finished", round=loop.last)


def gather_silos(transport: FlowerTransport, federation: Federation) -> None:
    """Wait for all silos that are members now, whoever comes or is revoked meanwhile. Raises QuorumError."""

    def missing() -> list[str]:
        return [e.name for i, e in enumerate(transport.registry.entries) if i not in transport.known and not e.revoked]

    transport.greet(federation.wait, missing)
    everybody = [e.name for e in transport.registry.entries if not e.revoked]
    away = missing()
    if len(everybody) - len(away) < federation.quorum:
        raise QuorumError(
            f"{len(everybody) - len(away)} of {len(everybody)} silos came within {federation.wait:g} s, "
            f"{federation.quorum} are needed (missing: {', '.join(sorted(away))}); have them started, then resume"
        )


@dataclass
class ServerStatusFile:
    """The loop's callback: writes ``live.json`` and the audit log after each round."""

    out: Path
    transport: FlowerTransport
    audit: Audit
    record: RunRecord
    _notes: list[str] = field(default_factory=list)
    _heavy: Sequence[str] = ()

    def begin(self) -> None:
        """The silos that are there have said how much data they have."""
        self._weigh()

    def note(self, text: str) -> None:
        """A line that the operator should see."""
        self._notes.append(text)
        self.audit.write("note", text=text)
        logger.info("%s", text)

    def round(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:
        """A round is committed."""
        self._weigh()
        entries = self.transport.registry.entries
        present = [entries[i].name for i in row.cohort]
        refused = {e.name: t for t in row.refused for i, e in enumerate(entries) if t.startswith(f"client {i},")}
        means = {f"{e.model}, {e.when}, {e.split}, round {e.round}": e.mean for e in evaluations}
        live = LiveStatus(
            round=row.round,
            rounds=self.record.config["rounds"],
            present=tuple(present),
            absent=tuple(e.name for e in entries if e.name not in present and not e.revoked),
            rejected=tuple(sorted(refused.keys() | self.transport.refused)),
            why=self.transport.absent | refused,
            bytes_down=sum(row.bytes_down),
            bytes_up=sum(row.bytes_up),
            seconds=row.seconds,
            metric=self.record.config["metric"],
            means=means,
            notes=tuple(self._notes),
            since=time(),
        )
        write_json(self.out / LIVE, live)
        self._notes = []
        self.audit.write("round", round=row.round, present=present, absent=list(live.absent))
        logger.info("committed with %d silos after %.1f s", len(present), row.seconds)
        for name, why in live.why.items():
            logger.warning("%s was not used: %s", name, why)

    def _weigh(self) -> None:
        """Note silos with too much weight, whenever that has changed."""
        registry = self.transport.registry
        lines = heavy(samples(registry.entries), registry.share)
        for line in lines if lines != self._heavy else ():
            self.note(line)
        self._heavy = lines


def blank(federation: Federation) -> Scenario:
    """The scenario of the agreed task without any data, which is all that the server knows."""
    task, config = federation.task, federation.config()
    x = np.zeros((0, *task.input_shape), task.dtype)
    fields: dict[str, Any] = {
        "shift": task.shift,
        "scale": task.scale,
        "vocabulary": task.vocabulary,
        "target_kind": task.targets,
        "target_shift": task.target_shift,
        "target_scale": task.target_scale,
        "edges": task.time_edges,
    }
    kind = TASKS[task.targets]
    y = (kind.held or kind.no_target)(task.outputs, network_shape(task.kind, task.input_shape))[np.newaxis][:0]
    dataset = Dataset(federation.name, task.kind, x, y, task.classes, 0, words=task.words, **fields)
    nobody = ClientRows(*(np.empty(0, np.int64) for _ in range(3)))
    partition = Partition((nobody,) * federation.places, {"fingerprint": ""})
    return Scenario(config, dataset, partition)


def _open(record: RunRecord, federation: Federation, scenario: Scenario, registry: MemberRegistry) -> None:
    """Write the start event; what a server cannot know is null."""
    config, about = federation.config(), scenario.about()
    names = [e.name for e in registry.entries]
    about["clients"] = [*names, *(f"place {i}" for i in range(len(names), federation.places))]
    about["sizes"] = {"train": [*(e.size or 0 for e in registry.entries), *[0] * (federation.places - len(names))]}
    about["label_counts"] = None
    assert record.folder
    (record.folder / "config.toml").write_text(config.toml(), encoding="utf-8")
    open_record(record, scenario, about)


class Identity(Settings):
    """A run's id, in ``run.json``."""

    run: Token


def _run_id(out: Path) -> str:
    """The run's id, drawn once. Raises StorageError for a file that is damaged."""
    path = out / "run.json"
    known = read_json(Identity, path)
    if known is None:
        known = Identity(run=secrets.token_hex(8))
        write_json(path, known)
    return known.run

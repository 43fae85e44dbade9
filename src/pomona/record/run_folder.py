"""A run's folder: events are written at once, views at the end; reading validates everything."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, StrictInt, ValidationError

from pomona.core.attack import Attack
from pomona.core.bounds import Line, Number, first, plain
from pomona.core.errors import (
    CheckpointError,
    ConfigError,
    DivergedError,
    LockedError,
    PomonaError,
    StorageError,
)
from pomona.core.files import opened, text, writing
from pomona.core.notes import Note
from pomona.core.table import csv_text
from pomona.core.toml import read_text
from pomona.record import events
from pomona.record.events import EVENTS, Event
from pomona.record.predictions import Answers, save
from pomona.record.result import Result, gather
from pomona.record.rows import Evaluation, RoundRow, client_rows, round_rows
from pomona.storage.run_status import changed, read_status


def require_free(folder: Path) -> None:
    """Raise LockedError if the folder already holds a run."""
    if any((folder / name).exists() for name in (EVENTS, "config.toml", "models", "private")):
        raise LockedError(
            f"{folder} already holds a run; give another --out, or continue with --resume"
        )


@dataclass(frozen=True)
class Mark:
    """Committed end of a record: number of bytes of its events, and their SHA-256 in hex."""

    bytes: int = 0
    sha256: str = hashlib.sha256().hexdigest()


def committed_events(folder: Path, mark: Mark) -> bytes:
    """Return a run's events up to a mark.

    Raises CheckpointError if they differ from the marked ones.
    """
    path = folder / EVENTS
    try:
        with opened(path) as file:
            committed = file.read(mark.bytes)
        sha256 = hashlib.sha256(committed).hexdigest()
    except OSError as fault:
        raise CheckpointError(
            f"{path} cannot be read ({fault.strerror}); restore it from a backup"
        ) from None
    if sha256 != mark.sha256:
        raise CheckpointError(
            f"{path} differs from the state at its last committed round; restore it from a "
            "backup, or start over in another folder"
        )
    return committed


class RunRecord:
    """Writes events immediately and keeps them for the Result.

    Args:
        folder: created, and locked for this run; None keeps the record in memory only.
        config: the resolved settings.
        mark: when resuming, the mark up to which events are valid; the rest is truncated.

    Raises:
        CheckpointError: the events up to ``mark`` are not the committed ones; nothing is changed.
        LockedError: the folder already has a run.
        StorageError: it cannot be written.
    """

    def __init__(
        self, folder: Path | None, config: dict[str, Any], mark: Mark | None = None
    ) -> None:
        self.folder = folder
        self.config = config
        self.events: list[Event] = []
        self._noted: set[Note] = set()
        self._answers: dict[int, Answers] = {}
        self._groups: dict[int, NDArray[np.int64]] = {}
        self._file: BinaryIO | None = None
        self._written = hashlib.sha256()
        if folder:
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
                if mark is None:
                    require_free(folder)
                    self._file = (folder / EVENTS).open("xb")
                else:
                    self._rewind(mark)

    def __enter__(self) -> "RunRecord":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()

    def _rewind(self, mark: Mark) -> None:
        """Go back to the events of the last committed round."""
        assert self.folder
        committed = committed_events(self.folder, mark)
        self._written.update(committed)
        self._file = (self.folder / EVENTS).open("r+b")
        self.events = [events.read(line) for line in committed.splitlines()]
        self._noted = {body for event_type, body in self.events if event_type == "note"}
        self._file.truncate(mark.bytes)
        self._file.seek(mark.bytes)

    def sync(self) -> Mark:
        """Make all events durable. Returns their end mark; the beginning for a record in memory."""
        if not self._file or not self.folder:
            return Mark()
        with writing(self.folder / EVENTS):
            os.fsync(self._file.fileno())
        return Mark(self._file.tell(), self._written.hexdigest())

    def event(self, event_type: str, **fields: Any) -> None:
        """Append one event, which survives a kill of this process once the call returns.

        It is stored in ``events`` as a reader parses it. Raises ConfigError if a reader would
        reject it.
        """
        try:
            line = json.dumps({"event": event_type, **fields}, allow_nan=False)
            self.events.append(events.read(line))
        except ValueError as fault:
            raise ConfigError(f"this run cannot be recorded: {fault}") from None
        if self._file and self.folder:
            data = line.encode() + b"\n"
            with writing(self.folder / EVENTS):
                self._file.write(data)
                self._file.flush()
                self._written.update(data)

    def evaluation(self, evaluation: Evaluation, event_type: str = "evaluation") -> None:
        """Append a named evaluation."""
        self.event(
            event_type,
            **{key: value for key, value in vars(evaluation).items() if key != "interval" or value},
        )

    def note(self, note: Note) -> None:
        """Append a note, unless the record has it."""
        if note not in self._noted:
            self._noted.add(note)
            self.event("note", **{key: v for key, v in vars(note).items() if v is not None})

    def round(self, row: RoundRow) -> None:
        """Append a round."""
        for name, values in row.info.items():
            if not np.isfinite(values).all():
                raise DivergedError(
                    f"round {row.round}: the method's {name} are not finite; lower its rates or lr"
                )
        self.event(
            "round",
            **{**vars(row), "info": {name: values.tolist() for name, values in row.info.items()}},
        )

    def answers(
        self, answers: Mapping[int, Answers], groups: Mapping[int, NDArray[np.int64]] | None = None
    ) -> None:
        """Store the evaluated models' predictions on the test samples by client, and the groups of
        these samples.
        """
        self._answers, self._groups = dict(answers), dict(groups or {})
        if self.folder:
            with writing(self.folder):
                save(self.folder, answers, groups)

    def close(self) -> Result:
        """Write the views and return the Result."""
        result = replace(
            gather(self.events, self.config, self.folder),
            answers=self._answers,
            test_groups=self._groups,
        )
        if self._file and self.folder:
            with writing(self.folder):
                self._file.close()
                _write_views(result, self.folder)
        return result


def _write_views(result: Result, folder: Path) -> None:
    rounds = round_rows(result.rounds, result.evaluations)
    clients = client_rows(result.about["clients"], result.rounds, result.evaluations, result.unseen)
    (folder / "rounds.csv").write_text(csv_text([*rounds]), encoding="utf-8")
    (folder / "clients.csv").write_text(csv_text([*clients]), encoding="utf-8")
    (folder / "summary.json").write_text(
        json.dumps(result.summary, indent=2) + "\n", encoding="utf-8"
    )


def load(folder: Path | str) -> Result:
    """Load a run from its folder.

    >>> import pomona
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     config = pomona.Config(method="separate", clients=3, rounds=1, lr=0.1)
    ...     result = pomona.run(config, out=f"{folder}/run")
    ...     load(f"{folder}/run").summary == result.summary
    True

    Raises:
        StorageError: the folder holds no readable run, or its files changed since the run ended.
    """
    folder = Path(folder)
    if not folder.exists():
        raise StorageError(f"{folder} does not exist; name the folder of a run")
    require_unchanged(folder, EVENTS, "config.toml")
    location = "config.toml"
    try:
        config = read_text(text(folder / location))
        _RecordedSettings.model_validate(config)
        entries = []
        with opened(folder / EVENTS) as lines:
            for number, line in enumerate(lines, start=1):
                location = f"{EVENTS}, line {number}"
                if line.endswith(b"\n"):  # a line without its newline was interrupted by a kill
                    entries.append(events.read(line))
        location = EVENTS
        result = gather(entries, config, folder)
        _require_consistent(result)
    except (OSError, ValueError, PomonaError) as fault:
        reason = first(fault) if isinstance(fault, ValidationError) else plain(str(fault), 200)
        raise StorageError(
            f"{folder} holds no readable run ({location}: {reason}); give a folder that "
            "`pomona run` wrote"
        ) from None
    return result


class _Name(BaseModel):
    name: Line


class _RecordedSettings(BaseModel):
    """Settings that a run's record must have."""

    method: _Name
    data: _Name
    partition: _Name | None = None  # unknown to a server
    rounds: Number
    seed: StrictInt | None = None
    attack: Attack | None = None


def _require_consistent(result: Result) -> None:
    """Raise ValueError without a start event, for unknown clients, and for repeated evaluations."""
    if not result.about:
        raise ValueError("its start is not recorded")
    n = result.clients
    participants = [e.clients for e in (*result.evaluations, *result.unseen)] + [
        r.cohort for r in result.rounds
    ]
    facts = (*result.final, *result.coefficients)
    clients = (f["client"] for f in facts if f["client"] is not None)  # None: of all
    highest = max((*chain(*participants), *clients), default=-1)
    if highest >= n:
        raise ValueError(f"it names client {highest}, but started with {n} clients")
    for rows in (result.evaluations, result.unseen):
        for (model, stage, split, number), times in Counter(
            (*e.key, e.round) for e in rows
        ).items():
            if times > 1:
                raise ValueError(
                    f"{times} evaluations of the {model} model, {stage}, on {split}, in round "
                    f"{number}"
                )


def require_unchanged(folder: Path, *names: str) -> None:
    """Raise StorageError if files of a finished run (all, or those named) have changed since."""
    status = read_status(folder)
    try:
        altered = changed(folder, status.sha256, names or status.sha256) if status else []
    except OSError as fault:
        raise StorageError(f"{folder} cannot be read ({fault}); restore it from a backup") from None
    if altered:
        raise StorageError(
            f"{folder}: {', '.join(altered)} changed since the run ended; restore from a backup, "
            "or run again"
        )

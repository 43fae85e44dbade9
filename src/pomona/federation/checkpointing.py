"""Checkpoint policy: a committed round durably contains everything that later rounds need.

A round counts once its checkpoint is on disk; after any interruption, a run resumes after it. The
record's events up to that moment are part of it: later ones are truncated on resuming.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pomona.config import Config
from pomona.config.machine import FREE
from pomona.core.errors import CheckpointError
from pomona.core.state import NamedTensors
from pomona.core.toml import Tree
from pomona.storage import checkpoint
from pomona.storage.checkpoint import Checkpoint
from pomona.storage.run_status import FOLDER, Status, write_status


def identity(config: Config, fingerprint: str, partition: str) -> dict[str, Any]:
    """Return the identity of a run, which must match to resume: settings, data, partition, file
    format.

    ``rounds`` is separate, since rounds may be added if a round does not depend on the total
    (``extends``).
    """
    tree = omit(config.tree(), FREE)
    has_schedule = config.method.method().card.needs.total_rounds or config.lr_schedule == "cosine"
    rounds, extends = tree.pop("rounds"), not has_schedule
    contents = {
        "schema": checkpoint.SCHEMA,
        "config": tree,
        "data": fingerprint,
        "partition": partition,
    }
    return {**contents, "rounds": rounds, "extends": extends}


def omit(tree: Tree, names: Iterable[str]) -> Tree:
    """Return a run's settings without those with these dotted keys."""
    remaining = {k: dict(v) if isinstance(v, dict) else v for k, v in tree.items()}
    for name in names:
        section, _, key = name.rpartition(".")
        (remaining.get(section, {}) if section else remaining).pop(key, None)
    return remaining


def require_same(folder: Path, stored: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Refuse to resume with other settings, data or format, or with fewer rounds.

    Raises CheckpointError with the keys that differ.
    """
    compared_apart = ("rounds", "extends")
    keys = checkpoint.differing(
        *(
            {k: v for k, v in settings.items() if k not in compared_apart}
            for settings in (stored, current)
        )
    )
    if keys:
        config_path = folder.parent / "config.toml"
        advice = "resume with those,"
        if config_path.exists():
            advice = f"resume with those, which {config_path} holds,"
        raise CheckpointError(
            f"{folder} belongs to a run with different values of {', '.join(keys)}; {advice} or "
            "start over in another folder"
        )
    stored_rounds, rounds = stored.get("rounds"), current.get("rounds")
    if stored_rounds != rounds and (
        reason := _reason_to_keep_rounds(stored_rounds, rounds, current)
    ):
        raise CheckpointError(
            f"{folder} belongs to a run with rounds = {stored_rounds}, not {rounds}: {reason}; "
            f"resume with rounds = {stored_rounds}, or start over in another folder"
        )


def _reason_to_keep_rounds(
    stored_rounds: int | None, rounds: int | None, current: Mapping[str, Any]
) -> str:
    """Return why a run cannot have the rounds asked for instead; empty if it can."""
    if stored_rounds is None or rounds is None or rounds < stored_rounds:
        return "a run can be given more rounds, not fewer"
    if current["extends"]:
        return ""
    method, schedule = current["config"]["method"]["name"], current["config"]["lr_schedule"]
    setting = "lr_schedule = cosine" if schedule == "cosine" else f"{method} with these settings"
    return f"{setting} schedules its steps over all rounds"


@dataclass(frozen=True)
class Checkpointing:
    """A run's committed rounds.

    Attributes:
        folder: the run's folder; None for a run in memory, which commits nothing.
        every: rounds between checkpoints.
        identity: stored in each checkpoint.
        resume_from: the round to resume after; None at the start.
    """

    folder: Path | None
    every: int
    identity: Mapping[str, Any]
    resume_from: Checkpoint | None = None

    def needs_checkpoint(self, number: int, total: int) -> bool:
        """Return whether round ``number`` is to be committed."""
        return self.folder is not None and (number % self.every == 0 or number == total)

    def commit(self, number: int, tensors: NamedTensors, meta: Mapping[str, Any]) -> None:
        """Make a round durable. Raises StorageError; earlier rounds are unaffected."""
        if self.folder is not None:
            checkpoint.save(
                self.folder / FOLDER, number, tensors, {"identity": self.identity, **meta}
            )
            write_status(self.folder, Status(state="running", round=number))


def find(folder: Path, current: Mapping[str, Any]) -> tuple[Checkpoint | None, list[str]]:
    """Return the round to resume after, and a line for each damaged checkpoint that was set aside.

    Raises CheckpointError if all are damaged, or if they belong to a run with other settings or
    data.
    """
    resume_from, corrupt = checkpoint.newest(folder / FOLDER)
    if resume_from:
        require_same(folder / FOLDER, resume_from.meta["identity"], current)
    checkpoint.set_aside(corrupt)
    return resume_from, [
        f"{reason}; continuing from round {resume_from.number if resume_from else 0}"
        for reason in corrupt.values()
    ]

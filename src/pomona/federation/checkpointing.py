"""Checkpoint policy: a committed round durably contains everything that later rounds need.

A round counts once its checkpoint is on disk; after any interruption, a run resumes after it. The
record's events up to that moment are part of it: later ones are truncated on resuming.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pomona.config import Config
from pomona.core.errors import CheckpointError
from pomona.core.state import Named
from pomona.core.toml import Tree
from pomona.storage import checkpoint
from pomona.storage.checkpoint import Checkpoint
from pomona.storage.run_status import FOLDER, Status, write_status

LOCAL = ("workers", "cluster", "state_memory", "checkpoint_every", "data.dir", "model.init")
"""Settings of the machine that a run uses."""
INERT = (*LOCAL, "privacy.epsilon_budget")
"""Settings that do not affect any number of a run."""
FREE = (*INERT, "membership.adapt_rounds")
"""Settings that may change between the parts of a run, since committed numbers do not depend on
them.
"""


def identity(config: Config, fingerprint: str, partition: str) -> dict[str, Any]:
    """Return the identity of a run, which must match to resume: settings, data, partition, file
    format.

    ``rounds`` is separate, since rounds may be added if a round does not depend on the total
    (``extends``).
    """
    tree = without(config.tree(), FREE)
    lays_out = config.method.method().card.needs.total_rounds or config.lr_schedule == "cosine"
    rounds, extends = tree.pop("rounds"), not lays_out
    same = {
        "schema": checkpoint.SCHEMA,
        "config": tree,
        "data": fingerprint,
        "partition": partition,
    }
    return {**same, "rounds": rounds, "extends": extends}


def without(tree: Tree, names: Iterable[str]) -> Tree:
    """Return a run's settings without those with these dotted keys."""
    kept = {k: dict(v) if isinstance(v, dict) else v for k, v in tree.items()}
    for name in names:
        section, _, key = name.rpartition(".")
        (kept.get(section, {}) if section else kept).pop(key, None)
    return kept


def require_same(place: Path, stored: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to resume with other settings, data or format, or with fewer rounds.

    Raises CheckpointError with the keys that differ.
    """
    apart = ("rounds", "extends")
    keys = checkpoint.differing(
        *({k: v for k, v in said.items() if k not in apart} for said in (stored, now))
    )
    if keys:
        own = place.parent / "config.toml"
        those = f"resume with those, which {own} holds," if own.exists() else "resume with those,"
        raise CheckpointError(
            f"{place} belongs to a run with other values of {', '.join(keys)}; {those} or start "
            "over in another folder"
        )
    then, asked = stored.get("rounds"), now.get("rounds")
    if then != asked and (reason := _final_length(then, asked, now)):
        raise CheckpointError(
            f"{place} belongs to a run of rounds = {then}, asked for are {asked}: {reason}; resume "
            f"with rounds = {then}, or start over in another folder"
        )


def _final_length(then: int | None, asked: int | None, now: Mapping[str, Any]) -> str:
    """Return why a run cannot have the rounds asked for instead; empty if it can."""
    if then is None or asked is None or asked < then:
        return "a run can be given more rounds, not fewer"
    if now["extends"]:
        return ""
    method, schedule = now["config"]["method"]["name"], now["config"]["lr_schedule"]
    who = "lr_schedule = cosine" if schedule == "cosine" else f"{method} with these settings"
    return f"{who} lays its schedule out over all rounds"


@dataclass(frozen=True)
class Checkpointing:
    """A run's committed rounds.

    Attributes:
        out: the run's folder; None for a run in memory, which commits nothing.
        every: rounds between checkpoints.
        identity: stored in each checkpoint.
        found: the round to resume after; None at the start.
    """

    out: Path | None
    every: int
    identity: Mapping[str, Any]
    found: Checkpoint | None = None

    def due(self, number: int, total: int) -> bool:
        """Return whether round ``number`` is to be committed."""
        return self.out is not None and (number % self.every == 0 or number == total)

    def commit(self, number: int, tensors: Named, meta: Mapping[str, Any]) -> None:
        """Make a round durable. Raises StorageError; earlier rounds are unaffected."""
        if self.out is not None:
            checkpoint.save(self.out / FOLDER, number, tensors, {"identity": self.identity, **meta})
            write_status(self.out, Status(state="running", round=number))


def find(out: Path, now: Mapping[str, Any]) -> tuple[Checkpoint | None, list[str]]:
    """Return the round to resume after, and a line for each damaged checkpoint that was set aside.

    Raises CheckpointError if all are damaged, or if they belong to a run with other settings or
    data.
    """
    found, corrupt = checkpoint.newest(out / FOLDER)
    if found:
        require_same(out / FOLDER, found.meta["identity"], now)
    checkpoint.set_aside(corrupt)
    return found, [
        f"{reason}; going on from round {found.number if found else 0}"
        for reason in corrupt.values()
    ]

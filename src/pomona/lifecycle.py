"""The lifecycle of a run, in the simulator and on a deployment's server: resuming, events, status.

The order of the calls is the same for both::

    with locked(folder):                       # one process per folder
        with recorded_status(folder):          # status.json records how the run ended, in any case
            point = resume_point(...)          # the last committed round, its place in the record
            with RunRecord(..., point.valid_to) as record:
                open_record(...)               # the start event, unless the run is resumed
                Loop(...).run()
                close_record(...)              # the end event, and the views
"""

import hashlib
import inspect
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from time import time
from typing import Any

from torch import Tensor

from pomona.config import Config, own_method, resolve
from pomona.config.machine import FREE, INERT
from pomona.core.errors import CheckpointError, ConfigError, LockedError, StorageError
from pomona.core.files import MAX_LOG_BYTES, content
from pomona.core.toml import read_file
from pomona.federation.checkpointing import find, identity, omit, require_same
from pomona.objective.engine import usable_engines
from pomona.record.events import EVENTS
from pomona.record.result import Result, gather
from pomona.record.run_folder import Mark, RunRecord, load, require_unchanged
from pomona.record.run_summary import summarise
from pomona.storage.checkpoint import Checkpoint, differing, newest
from pomona.storage.run_status import FOLDER, Paused, last_round, status_after, sums, write_status
from pomona.storage.safetensors_stream import digest


@dataclass(frozen=True)
class ResumePoint:
    """The point at which a run starts or resumes.

    Attributes:
        resume_from: the last committed round; None before the first.
        valid_to: position up to which the record is valid; None for a run without a record.
        notes: a line for each damaged checkpoint that was set aside.
    """

    resume_from: Checkpoint | None = None
    valid_to: Mark | None = None
    notes: tuple[str, ...] = ()

    @property
    def number(self) -> int:
        """Number of the last committed round; 0 before the first."""
        return self.resume_from.number if self.resume_from else 0


def resume_point(folder: Path, stamp: Mapping[str, Any]) -> ResumePoint:
    """Return the point at which a folder's run resumes; its start if nothing is committed.

    Args:
        folder: the run's folder.
        stamp: required identity of its checkpoints, see ``checkpointing.identity``.

    Raises:
        CheckpointError: all checkpoints are damaged, or they belong to another run.
    """
    resume_from, notes = find(folder, stamp)
    has_events = (folder / EVENTS).exists()  # possibly interrupted before its first commit
    valid_to = Mark(**resume_from.meta["events"]) if resume_from else Mark() if has_events else None
    return ResumePoint(resume_from, valid_to, tuple(notes))


@contextmanager
def recorded_status(folder: Path) -> Iterator[None]:
    """Write to ``status.json`` how a run ends: finished after its last committed round, or
    the reason for another end.

    A process that is asked to stop is recorded as interrupted, whatever its exit code.
    """
    try:
        yield
    except BaseException as fault:
        if not isinstance(fault, LockedError):
            unnamed = isinstance(fault, SystemExit) and not isinstance(fault, Paused)
            cause = SystemExit(143) if unnamed else fault
            with suppress(StorageError):
                write_status(folder, status_after(cause, last_round(folder)))
        raise
    write_status(folder, status_after(None, last_round(folder), sums(folder)))


def open_record(
    record: RunRecord,
    config: Config,
    parameters: int,
    frozen: Mapping[str, Tensor],
    description: Mapping[str, Any],
) -> None:
    """Append the start event.

    Args:
        record: of the run.
        config: its settings.
        parameters: how many are trained.
        frozen: the tensors that are not trained.
        description: the result of ``scenario.description.about``, as far as it is known.
    """
    card = config.method.method().card
    record.event(
        "start",
        time=time(),
        method=config.method.name,
        headline=list(card.headline),
        presentation=asdict(card.presentation),
        parameters=parameters,
        frozen=_frozen(frozen),
        model=config.model.name,
        seed=config.seed,
        chosen=list(config.chosen),
        versions=versions(),
        engine=config.engine,
        privacy=config.void or "private" if config.privacy else None,
        **description,
    )


def _frozen(tensors: Mapping[str, Tensor]) -> dict[str, Any] | None:
    """Describe the frozen part of the network: number of parameters and statistics, and hash."""
    if tensors:
        return {"parameters": sum(t.numel() for t in tensors.values()), "sha256": digest(tensors)}
    return None


def close_record(record: RunRecord, seconds: float, **totals: Any) -> Result:
    """Append the end event with the run's summary and duration, and write the views."""
    summary = summarise(gather(record.events, record.config, None), seconds)
    record.event("end", time=time(), summary={**summary, **totals})
    return record.close()


def versions() -> dict[str, str]:
    """Return the versions used by a run, and the machine's system and architecture."""
    packages = {
        name: version(name) for name in ("pomona", "torch", "numpy", "scipy", "scikit-learn")
    }
    engines = {engine.package: engine.release for engine in usable_engines()}
    machine = f"{platform.system()} {platform.machine()}"
    return {"python": sys.version.split()[0], "platform": machine, **packages, **engines}


def shared_versions() -> dict[str, str]:
    """Return the versions that all machines of a run must share for the same bits, and a hash of
    the code of this package and its engines, which may change in a clone without their versions.
    """
    packages = {
        name: number for name, number in versions().items() if name not in ("python", "platform")
    }
    modules = [__name__]
    for engine in usable_engines():
        packages[engine.package] = engine.release.partition(" ")[0]  # without the processor
        modules.append(type(engine).__module__)
    code = hashlib.sha256()
    for module in modules:
        for file in _sources(module):
            code.update(content(file))
    return packages | {"pomona": f"{packages['pomona']} (code {code.hexdigest()[:8]})"}


def _sources(module: str) -> list[Path]:
    """Return the Python files of a module's package, or the file of a module without one."""
    file = Path(inspect.getfile(sys.modules[module]))
    return sorted(file.parent.rglob("*.py")) if "." in module else [file]


def version_changes(previous: Mapping[str, str]) -> str:
    """Return a line about versions that changed since a run was started with ``previous``; empty if
    none did.
    """
    current = versions()
    changed = [
        f"{name} {previous.get(name)}, now {current.get(name)}"
        for name in differing(previous, current)
    ]
    return (
        f"started with {'; '.join(changed)}: results may differ in the last bits" if changed else ""
    )


def complete(config: Config, data: str, partition: str, folder: Path) -> bool:
    """Return whether a finished run fulfils the request; if not, the missing rounds can be added.

    Args:
        config: the request.
        data: SHA-256 of the data.
        partition: SHA-256 of the partition.
        folder: a finished run's folder.

    Raises:
        CheckpointError: its files have changed, or it is a run with other settings, data or
            partition, or with more rounds; nothing is changed.
    """
    try:
        require_unchanged(folder)
        stored, metadata = _recorded_config(folder, config), load(folder).about
    except StorageError as fault:
        raise CheckpointError(str(fault)) from None
    stored_identity = identity(
        stored, metadata["data"]["fingerprint"], metadata["partition_sha256"]
    )
    require_same(folder, stored_identity, identity(config, data, partition))
    return not differing(omit(stored.tree(), INERT), omit(config.tree(), INERT))


def require_matching_files(config: Config, partition: str, folder: Path) -> None:
    """Raise CheckpointError if an unfinished run's settings or partition do not match its
    checkpoints.

    Args:
        config: that of the checkpoints, except what may change.
        partition: text of the partition.
        folder: the run's folder; missing files are written again.
    """
    remedy = "restore it, or remove it: it is then rewritten"
    if (folder / "config.toml").exists():
        stored, expected = (
            omit(c.tree(), (*FREE, "rounds")) for c in (_recorded_config(folder, config), config)
        )
        keys = differing(stored, expected)
        if keys:
            raise CheckpointError(
                f"{folder / 'config.toml'} has different values of {', '.join(keys)} from the "
                f"checkpoints next to it; {remedy}"
            )
    path = folder / "partition.json"
    try:
        if path.exists() and content(path, MAX_LOG_BYTES) != partition.encode():
            raise CheckpointError(
                f"{path} is not the partition of the checkpoints next to it; {remedy}"
            )
    except OSError as fault:
        raise CheckpointError(f"{path} cannot be read ({fault}); {remedy}") from None


def recorded_setting(folder: Path, key: str) -> Any:
    """Return a setting of the run with the newest intact checkpoint in a folder, None before its
    first.

    Raises CheckpointError if all are damaged.
    """
    checkpoint, _ = newest(folder / FOLDER)
    return checkpoint.meta["identity"]["config"].get(key) if checkpoint else None


def _recorded_config(folder: Path, requested: Config) -> Config:
    """Read the settings in a run's folder; only the requested method's code is imported."""
    path = folder / "config.toml"
    try:
        tree = read_file(path)
        if (name := own_method(tree)) and name != requested.method.name:
            raise CheckpointError(
                f"{path} is of method {name}, not of {requested.method.name}; give another folder"
            )
        return resolve(tree)
    except ConfigError as fault:
        raise CheckpointError(
            f"{fault}; restore the file, or remove it: it is then written again"
        ) from None

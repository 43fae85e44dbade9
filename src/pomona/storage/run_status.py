"""What a run's folder says of the run without PyTorch: its status, committed rounds, and hashes of
its files.

``status.json`` is replaced atomically on every change.
"""

import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pomona.core.bounds import Number, Sha256, Within, plain
from pomona.core.errors import PomonaError, StorageError, stated
from pomona.core.files import content, publish, sha256

FINAL_FILES = (  # derived files can be regenerated, and model cards are edited by people
    "config.toml",
    "events.jsonl",
    "partition.json",
    "predictions.npz",
    "mask_examples.npz",
    "models/*.safetensors",
    "private/*.safetensors",
)


def sums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 in hex of a run's files by relative path. Raises OSError."""
    return {
        str(path.relative_to(folder)): sha256(path)
        for pattern in FINAL_FILES
        for path in sorted(folder.glob(pattern))
    }


def changed(folder: Path, hashes: Mapping[str, str], names: Iterable[str]) -> list[str]:
    """Return the named files that exist and have changed. Raises OSError."""
    return [
        name
        for name in names
        if name in hashes and (folder / name).exists() and sha256(folder / name) != hashes[name]
    ]


FOLDER = "checkpoints"
NAME = re.compile(r"round-(\d{6,})-([0-9a-f]{64})\.safetensors")
"""Round number and SHA-256 of the content."""


def committed(folder: Path) -> list[tuple[int, Path]]:
    """Return (round, file) of every checkpoint in a folder, oldest first, without reading the
    files.
    """
    try:
        names = [(NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    except OSError:
        return []
    return sorted((int(name[1]), path) for name, path in names if name)


def last_round(folder: Path) -> int:
    """Return the number of the last committed round in a run folder; 0 if there is none."""
    return max((number for number, _ in committed(folder / FOLDER)), default=0)


STATUS = "status.json"


class Status(BaseModel):
    """The current status of a run.

    Attributes:
        state: a killed run keeps the state "running"; its lock shows whether it is.
        round: the last committed round, 0 before the first.
        code: exit code of the process, None while it runs.
        reason: why it ended, in one line; empty while it runs and after success.
        time: seconds since 1970 by this machine's clock; for display only.
        sha256: hashes of the files of a finished run.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    state: Literal["running", "finished", "interrupted", "failed"]
    round: Number
    code: int | None = None
    reason: str = ""
    time: float = Field(default_factory=time.time)
    sha256: dict[Within, Sha256] = {}


class Paused(SystemExit):
    """The end of a process whose run continues once its ``reason`` no longer holds."""

    def __init__(self, reason: str) -> None:
        super().__init__(143)
        self.reason = reason


def exit_code(fault: BaseException | None) -> int:
    """Return the exit code of a process that ends with this exception, or with None."""
    match fault:
        case None:
            return 0
        case PomonaError():
            return fault.code
        case KeyboardInterrupt():
            return 130
        case SystemExit(code=int(code)):
            return code
        case _:
            return 1


def status_after(
    fault: BaseException | None, round_: int, sha256: dict[str, str] | None = None
) -> Status:
    """Return the status of a run that ended, with the exception that ended it, or with its files'
    hashes.
    """
    code = exit_code(fault)
    if fault is None or code == 0:
        return Status(state="finished", round=round_, code=0, sha256=sha256 or {})
    if code in {130, 143}:
        return Status(
            state="interrupted",
            round=round_,
            code=code,
            reason=(
                fault.reason
                if isinstance(fault, Paused)
                else "stopped before the end; resume to continue"
            ),
        )
    return Status(state="failed", round=round_, code=code, reason=stated(fault))


def write_status(folder: Path, status: Status) -> None:
    """Replace ``status.json``. Raises StorageError and leaves the old file unchanged."""
    try:
        publish(
            folder / STATUS,
            [status.model_dump_json(indent=2).encode() + b"\n"],
            f".status-{os.getpid()}",
        )
    except OSError as fault:
        raise StorageError(
            f"cannot write {folder / STATUS} ({fault.strerror}); make room, then resume"
        ) from fault


def read_status(folder: Path) -> Status | None:
    """Read a run folder's ``status.json``; None if missing. Raises StorageError if unreadable."""
    try:
        if not (folder / STATUS).exists():
            return None
        return Status.model_validate_json(content(folder / STATUS))
    except (OSError, ValidationError) as fault:
        reason = plain(str(fault), 200)
        raise StorageError(
            f"{folder / STATUS} cannot be read ({reason}); remove it, then resume"
        ) from None

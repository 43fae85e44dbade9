"""Reading a run's folder, with validation of every value."""

from collections import Counter
from pathlib import Path

from pydantic import BaseModel, ValidationError

from pomona.core.bounds import Line, Number, first, plain
from pomona.core.errors import PomonaError, StorageError
from pomona.core.files import opened, text
from pomona.core.toml import read_text
from pomona.record import events
from pomona.record.events import EVENTS
from pomona.record.result import Result, gather
from pomona.storage.file_hashes import changed
from pomona.storage.run_status import read_status


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
    where = "config.toml"
    try:
        config = read_text(text(folder / where))
        _Told.model_validate(config)
        found = []
        with opened(folder / EVENTS) as lines:
            for number, line in enumerate(lines, start=1):
                where = f"{EVENTS}, line {number}"
                if line.endswith(b"\n"):  # a line without its newline was interrupted by a kill
                    found.append(events.read(line))
        where = EVENTS
        result = gather(found, config, folder)
        _require_known(result)
    except (OSError, ValueError, PomonaError) as fault:
        reason = first(fault) if isinstance(fault, ValidationError) else plain(str(fault), 200)
        raise StorageError(
            f"{folder} holds no readable run ({where}: {reason}); give a folder that `pomona run` wrote"
        ) from None
    return result


class _Name(BaseModel):
    name: Line


class _Told(BaseModel):
    """Settings required in a run's record."""

    method: _Name
    data: _Name
    partition: _Name | None = None  # unknown to a server
    rounds: Number


def _require_known(result: Result) -> None:
    """Raise ValueError for unknown clients, and for repeated evaluations."""
    n = len(result.about.get("clients", ()))
    named = (
        *(c for e in (*result.evaluations, *result.unseen) for c in e.clients),
        *(f["client"] for f in result.final),
    )
    highest = max((*named, *(c for r in result.rounds for c in r.cohort)), default=-1)
    if highest >= n:
        raise ValueError(f"it tells of client {highest}, but of {n} clients at its start")
    for rows in (result.evaluations, result.unseen):
        for one, times in Counter((e.model, e.when, e.split, e.round) for e in rows).items():
            if times > 1:
                raise ValueError(f"{times} evaluations of the {one[0]} model, {one[1]}, on {one[2]}, in round {one[3]}")


def require_unchanged(folder: Path, *names: str) -> None:
    """Raise StorageError if files of a finished run (all, or those named) have changed since."""
    status = read_status(folder)
    try:
        moved = changed(folder, status.sha256, names or status.sha256) if status else []
    except OSError as fault:
        raise StorageError(f"{folder} cannot be read ({fault}); restore it from a backup") from None
    if moved:
        raise StorageError(
            f"{folder}: {', '.join(moved)} changed since the run ended; restore from a backup, or run again"
        )

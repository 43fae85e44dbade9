"""State of a cell, read from its folder, the only source of a bench's results."""

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from shutil import rmtree
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from pomona.config import Config, resolve
from pomona.core.bounds import parse
from pomona.core.errors import DataError, PomonaError, StorageError
from pomona.core.files import content
from pomona.core.toml import Tree, flat
from pomona.data import read
from pomona.data.catalogue import CATALOGUE, locate, own_path
from pomona.data.dataset import Dataset
from pomona.data.settings import DataSettings
from pomona.experiments.cell_metrics import Figures, figures, seconds
from pomona.federation.checkpointing import INERT
from pomona.record.run_folder import load
from pomona.scenario import Scenario
from pomona.simulation import simulate
from pomona.storage.atomic_io import publish
from pomona.storage.committed_rounds import FOLDER
from pomona.storage.run_status import exit_code, read_status

FAILURE = "failure.json"
State = Literal["waiting", "finished", "failed", "data missing"]


@dataclass(frozen=True)
class Failure:
    """Reason why a cell has no result, with the exit code of the run by itself.

    ``passing``: whether it may be temporary; then it is not stored, and the cell is run again at the next start.
    """

    code: int
    reason: str
    passing: bool = False

    @classmethod
    def of(cls, fault: BaseException) -> "Failure":
        """Create a failure from an exception, in one line."""
        text = str(fault) if isinstance(fault, PomonaError) else f"{type(fault).__name__}: {fault}"
        return cls(exit_code(fault), " ".join(text.split()), isinstance(fault, StorageError))


@dataclass(frozen=True)
class JobState:
    """State of a cell; ``figures`` and ``seconds`` (after each round) once it is finished."""

    state: State = "waiting"
    failure: Failure | None = None
    figures: Figures | None = None
    seconds: tuple[float, ...] = ()

    @property
    def settled(self) -> bool:
        """Whether the cell is finished or has failed."""
        return self.state != "waiting"

    @property
    def score(self) -> float | None:
        """Score for choosing a point; None if undefined."""
        best = self.figures["validation"] if self.figures else None
        return best["value"] if best else None


def work(tree: Tree, folder: str) -> Failure | None:
    """Run or resume a cell; the job given to an executor.

    Args:
        tree: the resolved settings, plain values.
        folder: absolute; on storage shared with the caller.

    Returns:
        None once the folder has a finished run, else the failure.
    """
    try:
        simulate(Scenario.prepare(resolve(tree), _read), Path(folder), resume=True)
    except Exception as fault:  # any failure of a cell leaves the others running
        return Failure.of(fault)
    return None


def _read(settings: DataSettings) -> Dataset:
    """Read the data of a cell, cached for a process whose next cell has the same data."""
    return _read_once(settings.model_dump_json())


@lru_cache(maxsize=1)
def _read_once(settings: str) -> Dataset:
    return read(DataSettings.model_validate_json(settings))


def look(folder: Path, config: Config) -> JobState:
    """Read a cell's folder; "waiting" means neither a finished run nor a stored failure."""
    if (folder / FAILURE).exists():
        try:
            text = content(folder / FAILURE)
            return JobState("failed", TypeAdapter(Failure).validate_python(parse(text, StorageError)))
        except (OSError, StorageError, ValidationError) as fault:
            raise StorageError(f"{folder / FAILURE} cannot be read ({fault}); remove it, then start again") from None
    status = read_status(folder)
    if status and status.state == "finished":
        result = load(folder)
        _require_same(folder, result.config, config)
        return JobState("finished", None, figures(result), tuple(seconds(result)))
    missing = missing_data(config.data)
    return JobState("data missing", Failure(DataError.code, missing, passing=True)) if missing else JobState()


def _require_same(folder: Path, stored: Tree, config: Config) -> None:
    """Refuse a finished run that was made with other defaults."""
    then, now = flat(stored), flat(config.tree())
    for key in ("lr", "engine"):  # the run has the values found
        if now[key] == "auto":
            then[key] = "auto"
    changed = [k for k in sorted(then.keys() & now.keys()) if then[k] != now[k] and k not in INERT]
    if changed:
        raise StorageError(
            f"{folder} was made when {', '.join(changed)} had other defaults; remove it, or give another --out"
        )


def missing_data(settings: DataSettings) -> str:
    """Return where a missing data set is expected and can be downloaded; empty if it is present."""
    entry = CATALOGUE.get(settings.name)
    try:
        if entry and entry.markers:
            locate(settings)
        elif settings.path is not None:
            own_path(settings)
    except DataError as fault:
        return str(fault)
    return ""


def put_on_file(folder: Path, failure: Failure) -> None:
    """Store a failure for later starts. Raises StorageError."""
    try:
        publish(folder, [json.dumps(asdict(failure), indent=2).encode() + b"\n"], lambda _: FAILURE)
    except OSError as fault:
        raise StorageError(f"cannot write {folder / FAILURE} ({fault.strerror}); make room, then start again") from None


def forget(folder: Path) -> None:
    """Remove a stored failure, so that the cell resumes from its last committed round."""
    (folder / FAILURE).unlink(missing_ok=True)


def tidy(folder: Path, keep_models: bool) -> None:
    """Remove files that a finished cell no longer needs: its checkpoints, and the models unless they are to be kept."""
    for name in (FOLDER, *(() if keep_models else ("models", "private"))):
        rmtree(folder / name, ignore_errors=True)

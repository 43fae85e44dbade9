"""Trackers: a run's settings and metrics in TensorBoard, MLflow, W&B or trackio, next to its
record.

A tracker gets no data and no models, and a run does not depend on it: one that fails is left out
for the rest of the run.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from time import time
from typing import Any

from pomona.config import Config
from pomona.core.errors import ConfigError, with_extra, worded
from pomona.core.toml import flat
from pomona.federation.callbacks import NullCallback
from pomona.metrics.nan_safe import mean_of_known
from pomona.record.result import Result
from pomona.record.rows import Evaluation, RoundRow

MAX_CURVES = 50
"""A federation of more has no curves of single clients in a tracker."""
MAX_LENGTH = 500  # characters of a setting
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_MODE": "offline",
}
"""Environment variables of the trackers, unless they are set: nothing leaves the machine that was
not asked for, and a server that does not answer stops no run.
"""
Figures = Mapping[str, float]


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker gets at the start.

    Attributes:
        id: same for all parts of a run, also when it is resumed.
        name: of the run, unique.
        settings: by dotted key.
        resume_round: number of the round to resume after; 0 at the start.
    """

    id: str
    name: str
    settings: Mapping[str, Any]
    resume_round: int


@dataclass(frozen=True)
class Board:
    """An opened tracker: ``log(round, figures)``, and ``end(finished)``."""

    log: Callable[[int, Figures], Any]
    end: Callable[[bool], Any]


def _tensorboard(address: str, run: TrackedRun) -> Board:
    """Write to a folder of the run's name; rounds that are repeated replace those of before."""
    folder = Path(address or "tensorboard") / run.name
    writer = import_module("torch.utils.tensorboard").SummaryWriter(
        folder, purge_step=run.resume_round + 1
    )
    if not run.resume_round:
        lines = [f"| {key} | {value} |" for key, value in run.settings.items()]
        writer.add_text("settings", "\n".join(["| key | value |", "| --- | --- |", *lines]))

    def log(number: int, figures: Figures) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, number)
        writer.flush()

    return Board(log, lambda finished: writer.close())  # noqa: ARG005


def _mlflow(address: str, run: TrackedRun) -> Board:
    """Log to a store or a server: ``address`` is its URI, by default as MLflow chooses it."""
    entities = import_module("mlflow.entities")
    client = import_module("mlflow").MlflowClient(address or None)
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "pomona")
    existing = client.get_experiment_by_name(name)
    experiment = existing.experiment_id if existing else client.create_experiment(name)
    runs = client.search_runs([experiment], f"tags.`pomona.run` = '{run.id}'", max_results=1)
    if runs:
        run_id = runs[0].info.run_id
        client.update_run(run_id, status="RUNNING")
    else:
        tags = {"pomona.run": run.id}
        run_id = client.create_run(experiment, tags=tags, run_name=run.name).info.run_id
        parameters = [entities.Param(key, str(v)[:MAX_LENGTH]) for key, v in run.settings.items()]
        client.log_batch(run_id, params=parameters)

    def log(number: int, figures: Figures) -> None:
        timestamp = round(time() * 1000)
        client.log_batch(
            run_id, [entities.Metric(k, v, timestamp, number) for k, v in figures.items()]
        )

    return Board(log, lambda ok: client.set_terminated(run_id, "FINISHED" if ok else "KILLED"))


def _wandb(address: str, run: TrackedRun) -> Board:
    """Log to W&B: ``address`` is PROJECT or ENTITY/PROJECT; offline unless WANDB_MODE is set."""
    wandb = import_module("wandb")
    entity, _, project = address.rpartition("/")
    settings = wandb.Settings(
        console="off",
        disable_code=True,
        disable_git=True,
        silent=True,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
    active_run = wandb.init(
        project=project or os.environ.get("WANDB_PROJECT", "pomona"),
        entity=entity or None,
        id=run.id,
        name=run.name,
        config=dict(run.settings),
        allow_val_change=True,
        resume="allow",
        reinit="create_new",
        settings=settings,
    )
    return Board(
        lambda n, figures: active_run.log(figures, step=n),
        lambda ok: active_run.finish(int(not ok)),
    )


def _trackio(address: str, run: TrackedRun) -> Board:
    """Log to trackio: ``address`` is the project; on this machine unless TRACKIO_SPACE_ID or
    TRACKIO_SERVER_URL is set.
    """
    trackio = import_module("trackio")
    active_run = trackio.init(
        project=address or "pomona",
        name=run.name,
        config=dict(run.settings),
        resume="allow",
        embed=False,
        auto_log_cpu=False,
        auto_log_gpu=False,
    )
    return Board(lambda n, figures: active_run.log(figures, step=n), lambda ok: trackio.finish())  # noqa: ARG005


TRACKERS: dict[str, Callable[[str, TrackedRun], Board]] = {
    "mlflow": _mlflow,
    "tensorboard": _tensorboard,
    "trackio": _trackio,
    "wandb": _wandb,
}


def require_tracker(track: str | None) -> None:
    """Raise ConfigError for a tracker that is not installed."""
    name = (track or "").partition(":")[0]
    if name and not find_spec(name):
        raise ConfigError(f"track = {name} needs {name}; {with_extra(name)}, or remove track")


@dataclass
class TrackerCallback(NullCallback):
    """Tells a tracker of a run.

    Whatever it raises becomes one call of ``note``, without what may be a password, and it gets
    nothing more.
    """

    track: str
    run: TrackedRun
    note_to: Callable[[str], None]
    _board: Board | None = None
    _failed: bool = False
    _logged: set[tuple[str, int]] = field(default_factory=set)

    def on_run_begin(self) -> None:
        """Open the tracker."""
        if not (self._board or self._failed):
            name, _, address = self.track.partition(":")
            with self._guarded():
                self._board = TRACKERS[name](address, self.run)

    def on_round_end(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:
        """Log a round and its new evaluations."""
        self._log(scalars(row, evaluations))

    def on_run_end(self, result: Result) -> None:
        """Log the evaluations after the last round, of the models made from its uploads, and the
        summary.
        """
        if result.rounds:
            last = result.rounds[-1]
            evaluations = [e for e in result.evaluations if e.round == last.round]
            self._log(scalars(last, evaluations) | summary(result.summary, last.round))
        self.close(finished=True)

    def close(self, finished: bool = False) -> None:
        """Close the tracker, if open."""
        with self._guarded():
            if self._board:
                self._board.end(finished)
        self._board = None

    def _log(self, figures: Mapping[tuple[str, int], float]) -> None:
        by_round: dict[int, dict[str, float]] = {}
        for (name, number), value in figures.items():
            if (name, number) not in self._logged:
                by_round.setdefault(number, {})[name] = value
        self._logged |= figures.keys()
        with self._guarded():
            for number in sorted(by_round):
                if self._board:
                    self._board.log(number, by_round[number])

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Leave the tracker out if it fails; its output does not belong to the command's."""
        try:
            with redirect_stdout(StringIO()):
                yield
        except Exception as fault:
            self._failed, self._board = True, None
            name = self.track.partition(":")[0]
            self.note_to(f"{name} failed, and is left out from here on ({bare(worded(fault))})")


def bare(text: str) -> str:
    """Return a text without the user names, passwords and queries of the addresses in it."""
    return re.sub(r"(://)[^/@\s]*@|\?[^\s)'\"]*", r"\1", text)


def scalars(row: RoundRow, evaluations: Sequence[Evaluation]) -> dict[tuple[str, int], float]:
    """Return (name, round) -> value.

    An evaluation has the number of the round that made its model.
    """
    figures: dict[tuple[str, int], float | None] = {
        ("train_loss_mean_over_clients", row.round): mean_of_known(row.loss),
        ("bytes/down", row.round): float(sum(row.bytes_down)),
        ("bytes/up", row.round): float(sum(row.bytes_up)),
        ("seconds", row.round): row.seconds,
        ("clients/taking_part", row.round): float(len(row.cohort)),
        ("clients/refused", row.round): float(len(row.refused)),
    }
    for e in evaluations:
        model = f"{e.model}.{e.when}"
        figures[f"{e.split}_{e.metric}_mean_over_clients/{model}", e.round] = e.mean
        figures[f"{e.split}_{e.metric}_worst_client/{model}", e.round] = e.worst
        figures[f"{e.split}_accuracy_mean_over_clients/{model}", e.round] = e.accuracy_mean
        figures[f"{e.split}_loss_mean_over_clients/{model}", e.round] = mean_of_known(e.loss)
        if len(e.clients) <= MAX_CURVES:
            for client, value in zip(e.clients, e.value, strict=True):
                name = f"{e.split}_{e.metric}_client_{client:02}/{model}"
                figures[name, e.round] = value
    return {key: value for key, value in figures.items() if value is not None}


def summary(values: Mapping[str, Any], number: int) -> dict[tuple[str, int], float]:
    """Return the numbers of a run's summary as ``scalars`` does, by names that all trackers
    accept.
    """
    return {
        (re.sub(r"[^\w./ -]", "", f"summary/{key}"), number): float(value)
        for key, value in flat(values).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def tracked_settings(config: Config, folder: Path | None) -> dict[str, Any]:
    """Return a run's settings for a tracker: with the folder of its record, without the seed of
    private noise.
    """
    settings = {k: v for k, v in flat(config.tree()).items() if k != "privacy.seed"}
    return {**settings, **({"folder": str(folder.absolute())} if folder else {})}


@contextmanager
def tracking(
    config: Config,
    folder: Path | None,
    start: Mapping[str, Any],
    resume_round: int,
    note: Callable[[str], None],
) -> Iterator[tuple[TrackerCallback, ...]]:
    """Yield the callback of ``config.track``, which is closed with the block; none without one.

    Args:
        config: the resolved settings.
        folder: of the record, if any.
        start: the start event; it identifies the run when it is resumed.
        resume_round: number of the round to resume after; 0 at the start.
        note: called once if the tracker fails.
    """
    if config.track is None:
        yield ()
        return
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    id_ = hashlib.sha256(json.dumps(start, sort_keys=True).encode()).hexdigest()[:16]
    name = f"{config.method.name}-{config.data.name}-{id_[:6]}".replace(":", ".")
    run = TrackedRun(id_, name, tracked_settings(config, folder), resume_round)
    tracker = TrackerCallback(config.track, run, note)
    try:
        yield (tracker,)
    finally:
        tracker.close()

"""A cell of a bench: running it, reading its state from its folder, and its figures."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from shutil import rmtree
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter, ValidationError

import pomona.data
from pomona.config import Config, fitted, resolve
from pomona.config.machine import INERT
from pomona.core.bounds import parse
from pomona.core.errors import DataError, StorageError, stated
from pomona.core.files import content, publish
from pomona.core.toml import Tree, flat
from pomona.data.axes import InMemory, PublicImages, PublicTexts
from pomona.data.catalogue import locate, own_path
from pomona.data.dataset import Dataset
from pomona.data.settings import DataSettings, OwnPath
from pomona.metrics.best_round import best
from pomona.metrics.client_statistics import summarize
from pomona.metrics.metric import ACCURACY
from pomona.metrics.nan_safe import mean_of_known
from pomona.record.result import Result
from pomona.record.rows import Evaluation
from pomona.record.run_folder import load
from pomona.record.run_summary import attack_of
from pomona.storage.run_status import FOLDER, exit_code, read_status

FAILURE = "failure.json"
Figures = dict[str, Any]
State = Literal["waiting", "finished", "failed", "data missing"]


@dataclass(frozen=True)
class Failure:
    """Reason why a cell has no result, with the exit code of the run by itself.

    ``temporary``: whether it may not recur; then it is not stored, and the cell is run again at the
    next start.
    """

    code: int
    reason: str
    temporary: bool = False

    @classmethod
    def from_exception(cls, fault: BaseException) -> "Failure":
        """Create a failure from an exception."""
        return cls(exit_code(fault), stated(fault), isinstance(fault, StorageError))


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
        validation = self.figures["validation"] if self.figures else None
        return validation["value"] if validation else None


def work(tree: Tree, folder: str, data: InMemory | None = None) -> Failure | None:
    """Run or resume a cell; the job given to an executor.

    Args:
        tree: the resolved settings, plain values.
        folder: absolute; on storage shared with the caller.
        data: the caller's data in memory, which the tree only names.

    Returns:
        None once the folder has a finished run, else the failure.
    """
    from pomona.scenario import Scenario  # late: they import PyTorch
    from pomona.simulation import simulate

    try:
        reader = (lambda _: pomona.data.read(data)) if data else _read
        simulate(Scenario.prepare(resolve(tree), reader), Path(folder), resume=True)
    except Exception as fault:  # any failure of a cell leaves the others running
        return Failure.from_exception(fault)
    return None


def _read(settings: DataSettings) -> Dataset:
    """Read the data of a cell, cached for a process whose next cell has the same data."""
    return _read_once(settings.model_dump_json())


@lru_cache(maxsize=1)
def _read_once(settings: str) -> Dataset:
    return pomona.data.read(pomona.data.data_settings(**json.loads(settings)))


def read_state(folder: Path, config: Config) -> JobState:
    """Read a cell's folder; "waiting" means neither a finished run nor a stored failure."""
    try:
        text = content(folder / FAILURE)
        return JobState("failed", TypeAdapter(Failure).validate_python(parse(text, StorageError)))
    # no failure, or another bench has just removed it (``clear_failure``)
    except FileNotFoundError:
        pass
    except (OSError, StorageError, ValidationError) as fault:
        raise StorageError(
            f"{folder / FAILURE} cannot be read ({fault}); remove it, then start again"
        ) from None
    status = read_status(folder)
    if status and status.state == "finished":
        result = load(folder)
        _require_same(folder, result.config, config)
        return JobState("finished", None, figures(result), tuple(seconds(result)))
    missing = missing_data(config.data)
    if missing:
        return JobState("data missing", Failure(DataError.code, missing, temporary=True))
    return JobState()


def _require_same(folder: Path, stored: Tree, config: Config) -> None:
    """Refuse a finished run that was made with other defaults."""
    previous, current = flat(stored), flat(fitted(config).tree())
    for key in ("lr", "engine"):  # the stored run has the chosen values
        if current[key] == "auto":
            previous[key] = "auto"
    changed = [
        k
        for k in sorted(previous.keys() & current.keys())
        if previous[k] != current[k] and k not in INERT
    ]
    if changed:
        raise StorageError(
            f"{folder} was made when {', '.join(changed)} had other defaults; remove it, or give "
            "another --out"
        )


def missing_data(settings: DataSettings) -> str:
    """Return where a missing data set is expected and can be downloaded; empty if it is present."""
    try:
        if isinstance(settings, PublicImages | PublicTexts):
            locate(settings)
        elif isinstance(settings, OwnPath) and settings.path is not None:
            own_path(settings)
    except DataError as fault:
        return str(fault)
    return ""


def store_failure(folder: Path, failure: Failure) -> None:
    """Store a failure for later starts. Raises StorageError."""
    try:
        publish(folder / FAILURE, [json.dumps(asdict(failure), indent=2).encode() + b"\n"])
    except OSError as fault:
        raise StorageError(
            f"cannot write {folder / FAILURE} ({fault.strerror}); make room, then start again"
        ) from None


def clear_failure(folder: Path) -> None:
    """Remove a stored failure, so that the cell resumes from its last committed round."""
    (folder / FAILURE).unlink(missing_ok=True)


def tidy(folder: Path, keep_models: bool) -> None:
    """Remove files that a finished cell no longer needs: its checkpoints, and the models unless
    they are to be kept.
    """
    for name in (FOLDER, *(() if keep_models else ("models", "private"))):
        rmtree(folder / name, ignore_errors=True)


def figures(result: Result) -> Figures:
    """Return a finished run's record in a bench; it contains no timing.

    ``models`` has for each named model ("personal, trained") its test values in the ``last`` round
    and in the best validation round (``best_validation``, None without validation samples): the
    round, each client's ``value`` of the run's ``metric``, accuracy, loss and samples (None for a
    client that was not evaluated), and the values' summary over clients, over the honest ones if
    others lie (``attack``). ``validation`` is the
    headline model's score there: the metric, negated if less is better; or the negated loss, if no
    validation samples define the metric. ``curve`` has the headline model's means over clients by
    round; ``test_accuracy_pooled`` is over samples.
    """
    headline, n = tuple(result.about["headline"]), result.clients
    models = {(e.model, e.when) for e in result.evaluations}
    order = sorted(models, key=lambda key: (key != headline, key))
    moments = {f"{model}, {when}": _moments(result, model, when, n) for model, when in order}
    chosen = best_on_validation(result, *headline)
    backdoor = result.summary.get("backdoor")
    return {
        "headline": ", ".join(headline),
        "metric": result.metric.name,
        "parameters": result.about["parameters"],
        "clients": list(result.about["clients"]),
        "data": result.about["data"]["fingerprint"],
        "partition": result.about["partition_sha256"],
        "rounds": len(result.rounds),
        "bytes_down": sum(sum(r.bytes_down) for r in result.rounds),
        "bytes_up": sum(sum(r.bytes_up) for r in result.rounds),
        "validation": chosen._asdict() if chosen else None,
        "models": {name: values for name, values in moments.items() if values},
        "curve": _curve(result, *headline),
        "unseen": result.summary["unseen"],
        **({"backdoor": backdoor} if backdoor else {}),
        "privacy": result.summary.get("privacy"),
        "versions": {**result.about["versions"], "engine": result.about["engine"]},
        "notes": [
            {"text": note.text, "topic": note.topic}
            for note in result.notes
            if note.topic in ("data", "partition")  # the same after an interruption
        ],
    }


def seconds(result: Result) -> list[float]:
    """Return the wall time from the first round's start to each round's end, with evaluation,
    without interruptions.
    """
    total, passed = 0.0, []
    for row in result.rounds:
        total += row.seconds
        passed.append(total)
    return passed


class ValidationScore(NamedTuple):
    """A client mean on validation, where more is better, and its round."""

    value: float
    round: int


def best_on_validation(result: Result, model: str, stage: str) -> ValidationScore | None:
    """Return the best client mean on validation and its round, the first in case of ties.

    The untrained model is used only if there is no other.
    """
    curve = [e.point for e in result.curve(model, stage, "validation")]
    best_point = best(curve, result.metric) or best(curve, result.metric, first_round=0)
    if best_point:
        return ValidationScore(best_point.metric.goodness(best_point.value), best_point.round)
    return None


def _moments(result: Result, model: str, stage: str, n: int) -> dict[str, Any] | None:
    tests = {e.round: e for e in result.curve(model, stage, "test")}
    if not tests:
        return None
    chosen, liars = best_on_validation(result, model, stage), attack_of(result)
    among = liars.honest(n) if liars else range(n)
    return {
        "last": _moment(tests[max(tests)], n, among),
        "best_validation": _moment(tests[chosen.round], n, among)
        if chosen and chosen.round in tests
        else None,
    }


def _moment(evaluation: Evaluation, n: int, among: Sequence[int]) -> dict[str, Any]:
    """Return an evaluation's values of all n clients, and their summary over some."""
    columns = {
        key: evaluation.by_client(getattr(evaluation, key), range(n))
        for key in ("value", "accuracy", "loss")
    }
    samples = [s or 0 for s in evaluation.by_client(evaluation.samples, range(n))]
    selected = {key: [values[i] for i in among] for key, values in columns.items()}
    spread = summarize(
        selected["value"], [samples[i] for i in among], metric=evaluation.value_metric
    )
    means = {key: mean_of_known(selected[key]) for key in ("loss", "accuracy")}
    return {
        "round": evaluation.round,
        **columns,
        "samples": samples,
        "summary": {**spread, **means},
    }


def _curve(result: Result, model: str, stage: str) -> dict[str, list[Any]]:
    tests = result.curve(model, stage, "test")
    validation = {e.round: e for e in result.curve(model, stage, "validation")}
    paired = [validation.get(e.round) for e in tests]
    return {
        "round": [e.round for e in tests],
        "test_value": [e.mean for e in tests],
        "test_accuracy": [e.accuracy_mean for e in tests],
        "test_accuracy_pooled": [
            replace(e, value=e.accuracy, metric=ACCURACY.name).pooled for e in tests
        ],
        "test_loss": [mean_of_known(e.loss) for e in tests],
        "validation_value": [getattr(e, "mean", None) for e in paired],
        "validation_accuracy": [getattr(e, "accuracy_mean", None) for e in paired],
    }

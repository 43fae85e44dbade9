"""The record of a run: a folder that is appended to as the run goes, and read back as a Result.

``events.jsonl`` is the one source; ``rounds.csv``, ``clients.csv`` and ``summary.json`` are views of it.

    config.toml       every setting, resolved           partition.json    who held which rows
    events.jsonl      one JSON object a line            models/           a personal model a client (safetensors)
    rounds.csv        a row a round and evaluation      private/          what never leaves a client (APPLE's DR row)
    clients.csv       a row a client and evaluation     summary.json      the figures of the closing summary
    predictions.npz   what the judged models say of the test samples
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from pomona.core.errors import CheckpointError, DivergedError, LockedError, StorageError
from pomona.metrics.metric import ACCURACY, LOSS, METRICS, Metric
from pomona.record.model_folder import ModelFolder
from pomona.record.predictions import Answers, read, save
from pomona.record.presentation import Presentation
from pomona.record.views import write_views

if TYPE_CHECKING:
    from torch import Tensor

EVENTS = "events.jsonl"


@dataclass(frozen=True)
class Evaluation:
    """One named evaluation: which model, when, on which split, after which round; values per client.

    ``model`` is "personal", "global" or "local"; ``when`` is "received" (as initialised from the download, before local
    training) or "trained"; ``split`` is "validation" or "test". A received model carries the number of the round whose
    uploads it was made from; round 0 is the initial model. ``loss`` is the mean per sample, None where a client has no
    samples. ``accuracy`` is the share of right classes, or of right flags; None for regression. ``value`` is the run's
    ``metric``, None where a client's samples do not define it; in records of before it is the accuracy, else the loss.

    >>> two = {"clients": (0, 1), "samples": (10, 30), "loss": (0.9, 0.1), "accuracy": (0.5, 1.0)}
    >>> evaluation = Evaluation(round=3, model="personal", when="trained", split="test", **two)
    >>> evaluation.mean, evaluation.pooled, evaluation.worst
    (0.75, 0.875, 0.5)
    """

    round: int
    model: str
    when: str
    split: str
    clients: tuple[int, ...]
    samples: tuple[int, ...]
    loss: tuple[float | None, ...]
    accuracy: tuple[float | None, ...]
    value: tuple[float | None, ...] = ()
    metric: str = ""

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            known = any(a is not None for a in self.accuracy)
            object.__setattr__(self, "metric", "accuracy" if known else "loss")
            object.__setattr__(self, "value", self.accuracy if known else self.loss)

    @property
    def judged(self) -> Metric:
        """The metric of ``value``."""
        return METRICS[self.metric]

    @property
    def key(self) -> tuple[str, str, str]:
        """(model, when, split): what a curve over rounds is drawn for."""
        return (self.model, self.when, self.split)

    def by_client(self, values: Sequence[Any], clients: Iterable[int]) -> list[Any]:
        """A value for each of ``clients`` out of those of ``self.clients``; None for one that was not evaluated."""
        known = dict(zip(self.clients, values, strict=True))
        return [known.get(client) for client in clients]

    @property
    def mean(self) -> float | None:
        """The metric averaged over clients, each counting once."""
        return average(self.value)

    @property
    def pooled(self) -> float | None:
        """The metric over all samples, each counting once; None if it is not a mean over samples."""
        pairs = [(v, s) for v, s in zip(self.value, self.samples, strict=True) if v is not None]
        return sum(v * s for v, s in pairs) / sum(s for _, s in pairs) if pairs and self.judged.pools else None

    @property
    def worst(self) -> float | None:
        """The metric of the client that fares worst."""
        return self.judged.worst(self.value)

    @property
    def accuracy_mean(self) -> float | None:
        """Accuracy averaged over clients, as most papers print it, whatever the metric."""
        return average(self.accuracy)


def average(values: Sequence[float | None]) -> float | None:
    """The mean of what is known, None if nothing is."""
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None


@dataclass(frozen=True)
class RoundRow:
    """One round. Per cohort client: mean training loss, bytes received and sent.

    ``refused``: a line for each client whose round was not used, and why.
    """

    round: int
    seconds: float
    cohort: tuple[int, ...]
    loss: tuple[float | None, ...]
    bytes_down: tuple[int, ...]
    bytes_up: tuple[int, ...]
    info: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Result:
    """A run, in plain lists and NumPy arrays; its ``repr`` is three lines, in a notebook it is a table.

    Attributes:
        config: the resolved settings.
        about: the start event: versions, seed, fingerprint of the data, names of clients and classes, sizes,
            label counts (n, C) of the training part, hidden groups where known, parameter count, the ``metric``, and
            what ``constant`` answers reach in it.
        rounds, evaluations: in the order in which they happened.
        final: full metrics of the last models, one record a (model, split, client).
        summary: the figures of ``summary.json``.
        unseen: evaluations of clients that were never trained with, one a client, model and split.
        folder: where the record lies, None when it was not kept.
        answers: what ``predictions`` says, by client, while the record is in memory.
        models: by client, the tensors by name of the model that it is judged by; read from the folder when asked for,
            where there is one. A client that never took part has none.

    >>> import pomona
    >>> result = pomona.run(pomona.Config(method="apple", clients=3, rounds=2, lr=0.1))
    >>> [row.cohort for row in result.rounds]
    [(0, 1, 2), (0, 1, 2)]
    >>> [evaluation.round for evaluation in result.curve("personal", "trained")]
    [1, 2]
    >>> [(number, dr.shape) for number, dr in result.matrices("dr")]
    [(1, (3, 3)), (2, (3, 3))]
    >>> outputs, targets = result.predictions(client=0)
    >>> outputs.shape == (len(targets), 10)
    True
    >>> sorted(result.models[0])
    ['fc1.bias', 'fc1.weight', 'fc2.bias', 'fc2.weight']
    """

    config: dict[str, Any]
    about: dict[str, Any]
    rounds: list[RoundRow]
    evaluations: list[Evaluation]
    final: list[dict[str, Any]]
    summary: dict[str, Any]
    folder: Path | None = None
    unseen: list[Evaluation] = field(default_factory=list)
    answers: Mapping[int, Answers] = field(default_factory=dict, compare=False)
    models: Mapping[int, Mapping[str, "Tensor"]] = field(default_factory=dict, compare=False)

    def __repr__(self) -> str:
        from pomona.record.notebook import text

        return text(self)

    def _repr_html_(self) -> str:
        from pomona.record.notebook import html

        return html(self)

    def columns(self) -> dict[str, list[Any]]:
        """Columns of ``clients.csv``: a row for each client in each evaluation."""
        from pomona.record.notebook import columns

        return columns(self)

    def to_frame(self) -> Any:
        """``columns`` as a pandas DataFrame. Raises PomonaError where pandas is not installed."""
        from pomona.record.notebook import frame

        return frame(self)

    @property
    def name(self) -> str:
        """The method's name."""
        return str(self.config["method"]["name"])

    @property
    def presentation(self) -> Presentation:
        """Presentation of the method in reports; its bare name if the record has none."""
        said = self.about.get("presentation")
        return Presentation(**said) if said else Presentation(self.name)

    @property
    def metric(self) -> Metric:
        """The metric the run is judged by; accuracy in older records, or loss where those have no accuracy."""
        named = METRICS.get(str(self.about.get("metric")))
        if named:
            return named
        known = any(a is not None for e in self.evaluations for a in e.accuracy)
        return ACCURACY if known or not self.evaluations else LOSS

    def curve(self, model: str, when: str, split: str = "test") -> list[Evaluation]:
        """All evaluations of one kind, by round."""
        return sorted((e for e in self.evaluations if e.key == (model, when, split)), key=lambda e: e.round)

    def predictions(self, client: int) -> Answers | None:
        """Outputs of a client's judged model on its test samples after the last round, and the targets.

        Returns:
            outputs (n, K) float32 as the network gives them (logits, or numbers), and targets: (n,) class numbers or
            (n, K); None for a client without test samples, and in records that were made before or are not finished.

        Raises:
            DataError: the file is damaged.
        """
        known = self.answers.get(client)
        return read(self.folder, client) if known is None and self.folder else known

    def matrices(self, name: str) -> list[tuple[int, NDArray[np.float64]]]:
        """A quantity of the method's ``info`` over the rounds, e.g. ``matrices("dr")``: (round, (n, N)) pairs."""
        return [(r.round, r.info[name]) for r in self.rounds if name in r.info]


def gather(
    events: Iterator[dict[str, Any]] | list[dict[str, Any]], config: dict[str, Any], folder: Path | None
) -> Result:
    """The Result of a list of events."""
    models = ModelFolder(folder / "models") if folder else {}
    result = Result(config, {}, [], [], [], {}, folder, models=models)
    for event in events:
        body = {k: v for k, v in event.items() if k not in ("event", "time")}
        row: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in body.items()}
        match event["event"]:
            case "start":
                result.about.update(body)
            case "round":
                row["info"] = {k: np.asarray(v, dtype=np.float64) for k, v in event["info"].items()}
                result.rounds.append(RoundRow(**row))
            case "evaluation":
                result.evaluations.append(Evaluation(**row))
            case "unseen":
                result.unseen.append(Evaluation(**row))
            case "final":
                result.final.append(body)
            case "end":
                result.summary.update(event["summary"])
    return result


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the disk refuses into a StorageError that names the place."""
    try:
        yield
    except (OSError, SafetensorError) as fault:
        reason = getattr(fault, "strerror", None) or str(fault)
        raise StorageError(f"cannot write {path} ({reason}); free some space, or give another folder") from fault


def require_free(folder: Path) -> None:
    """Raise LockedError if the folder already holds a run."""
    if any((folder / name).exists() for name in (EVENTS, "config.toml", "models", "private")):
        raise LockedError(f"{folder} already holds a run; give another --out, or go on with --resume")


@dataclass(frozen=True)
class Mark:
    """Committed end of a record: number of bytes of its events, and their SHA-256 in hex."""

    bytes: int = 0
    sha256: str = hashlib.sha256().hexdigest()


def committed_events(folder: Path, after: Mark) -> bytes:
    """A run's events up to a mark. Raises CheckpointError if they are not those that were marked."""
    path = folder / EVENTS
    try:
        counted = path.read_bytes()[: after.bytes]
        found = hashlib.sha256(counted).hexdigest()
    except OSError as fault:
        raise CheckpointError(f"{path} cannot be read ({fault.strerror}); restore it from a backup") from None
    if found != after.sha256:
        raise CheckpointError(
            f"{path} is not what its last committed round was recorded with; restore it from a backup, or start anew "
            "in another folder"
        )
    return counted


class RunRecord:
    """Writes events as they happen; keeps them for the Result.

    Args:
        folder: made, and claimed for this run alone; None keeps the record in memory only.
        config: the resolved settings.
        after: for a run that goes on, how far its events count; what follows is cut off.

    Raises:
        CheckpointError: the events up to ``after`` are not those that were committed; nothing is changed.
        LockedError: the folder already holds a run.
        StorageError: it cannot be written.
    """

    def __init__(self, folder: Path | None, config: dict[str, Any], after: Mark | None = None) -> None:
        self.folder = folder
        self.config = config
        self.events: list[dict[str, Any]] = []
        self._answers: dict[int, Answers] = {}
        self._file: BinaryIO | None = None
        self._written = hashlib.sha256()
        if folder:
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
                if after is None:
                    require_free(folder)
                    self._file = (folder / EVENTS).open("xb")
                else:
                    self._rewind(after)

    def __enter__(self) -> "RunRecord":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()

    def _rewind(self, after: Mark) -> None:
        """Go back to the events of the last committed round."""
        assert self.folder
        counted = committed_events(self.folder, after)
        self._written.update(counted)
        self._file = (self.folder / EVENTS).open("r+b")
        self.events = [json.loads(line) for line in counted.splitlines()]
        self._file.truncate(after.bytes)
        self._file.seek(after.bytes)

    def sync(self) -> Mark:
        """Make all events durable. Returns how far they go; the beginning for a record in memory."""
        if not self._file or not self.folder:
            return Mark()
        with writing(self.folder / EVENTS):
            os.fsync(self._file.fileno())
        return Mark(self._file.tell(), self._written.hexdigest())

    def event(self, kind: str, **body: Any) -> None:
        """Append one event, safe against a kill of this process when the call returns."""
        line = json.dumps({"event": kind, **body}, allow_nan=False)
        self.events.append(json.loads(line))
        if self._file and self.folder:
            data = line.encode() + b"\n"
            with writing(self.folder / EVENTS):
                self._file.write(data)
                self._file.flush()
                self._written.update(data)

    def evaluation(self, evaluation: Evaluation) -> None:
        """Append a named evaluation."""
        self.event("evaluation", **asdict(evaluation))

    def unseen(self, evaluation: Evaluation) -> None:
        """Append the evaluation of a client that was never trained with."""
        self.event("unseen", **asdict(evaluation))

    def round(self, row: RoundRow) -> None:
        """Append a round."""
        for name, values in row.info.items():
            if not np.isfinite(values).all():
                raise DivergedError(f"round {row.round}: the method's {name} are not finite; lower its rates or lr")
        body = {k: getattr(row, k) for k in row.__dataclass_fields__}
        self.event("round", **{**body, "info": {k: v.tolist() for k, v in row.info.items()}})

    def answers(self, answers: Mapping[int, Answers]) -> None:
        """Keep what the judged models say of the test samples, by client."""
        self._answers = dict(answers)
        if self.folder:
            with writing(self.folder):
                save(self.folder, answers)

    def close(self) -> Result:
        """Write the views and return the Result."""
        result = replace(gather(self.events, self.config, self.folder), answers=self._answers)
        if self._file and self.folder:
            with writing(self.folder):
                self._file.close()
                write_views(result, self.folder)
        return result

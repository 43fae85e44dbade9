"""A run read from its record: settings, rounds, evaluations, predictions, and models on demand."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from pomona.core.bounds import plain
from pomona.core.errors import PomonaError
from pomona.core.notes import Note
from pomona.core.registry import load
from pomona.metrics.metric import ACCURACY, LOSS, METRICS, Metric, is_own, metric_named
from pomona.record.events import Event
from pomona.record.predictions import Answers, StoredPredictions
from pomona.record.presentation import Presentation
from pomona.record.rows import Evaluation, RoundRow, client_rows

if TYPE_CHECKING:
    from torch import Tensor

    from pomona.record.model_metadata import ModelMetadata


NAME = re.compile(r"client-(\d{2,4})\.safetensors")


def model_path(folder: Path, client: int) -> Path:
    """Return the path of a client's model in a run folder."""
    return folder / "models" / f"client-{client:02d}.safetensors"


class ModelFolder(Mapping[int, Mapping[str, "Tensor"]]):
    """Tensors by client and name, on the CPU, of each client's evaluated model.

    Empty until a run has ended.

    Access raises StorageError if a client's file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def _paths(self) -> dict[int, Path]:
        paths = sorted(self._folder.glob("client-*.safetensors"))
        return {int(name[1]): path for path in paths if (name := NAME.fullmatch(path.name))}

    def __getitem__(self, client: int) -> Mapping[str, "Tensor"]:
        from pomona.record.model_file import tensors  # imported late: it loads PyTorch

        return tensors(self._paths[client])

    def __iter__(self) -> Iterator[int]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


class HeadlineScore(NamedTuple):
    """The mean over clients of a run's metric, of its headline model on test samples."""

    value: float
    metric: str
    model: str
    split: str
    round: int

    def __str__(self) -> str:
        return f"{self.metric} {self.value:.4g} ({self.model}, {self.split}, round {self.round})"


@dataclass(frozen=True, repr=False)
class Result:
    """A run as plain lists and NumPy arrays; its ``repr`` has three lines, in a notebook it is a
    table.

    Attributes:
        config: the resolved settings.
        about: the start event: versions, seed, fingerprint of the data, names of clients and
            classes, sizes, label counts (n, C) of the training part, a hash of each client's
            ``test_rows``, hidden groups if known, parameter count, the ``metric``, and the metric
            of ``constant`` predictions.
        rounds, evaluations: in the order in which they happened.
        final: full metrics of the last models, one record per (model, split, client).
        coefficients: of linear models of tables, see ``pomona.coefficients``; one record per model.
        summary: the figures of ``summary.json``.
        unseen: evaluations of clients that did not train, one per client, model and split.
        notes: what was dropped, guessed, chosen or looks wrong, in the order in which it was
            noted; as the lines of ``pomona run``, and as warnings of ``pomona.run``.
        folder: folder of the record, None if it was not kept.
        answers: predictions by client, while the record is in memory.
        test_groups: groups of test samples, likewise.
        models: tensors of each client's evaluated model, by client and name; read from the folder
            on access, if any. A client that never took part has none.
        network: metadata of the first client's model and the frozen tensors that all share, while
            the record is in memory.

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
    notes: list[Note] = field(default_factory=list)
    coefficients: list[dict[str, Any]] = field(default_factory=list)
    answers: Mapping[int, Answers] = field(default_factory=dict, compare=False)
    test_groups: Mapping[int, NDArray[np.int64]] = field(default_factory=dict, compare=False)
    models: Mapping[int, Mapping[str, "Tensor"]] = field(default_factory=dict, compare=False)
    network: "tuple[ModelMetadata, Mapping[str, Tensor]] | None" = field(
        default=None, compare=False
    )

    def __repr__(self) -> str:
        """Return three lines: the run, its headline model's last test value, its folder."""
        outcome = "no model was tested"
        figures = self.summary.get("models", {}).get(self.summary.get("headline", ""))
        if figures and (last := figures["last"]):
            value = f"{self.metric.title} {self.metric.text(last['test'])} in round {last['round']}"
            outcome = f"model {self.summary['headline']}: test {value}, mean over clients"
        elif not self.summary:
            outcome = f"unfinished, {len(self.rounds)} rounds are done"
        return f"<{self._title}\n {outcome}\n {self.folder or 'in memory'}>"

    def _repr_html_(self) -> str:
        """Return an HTML table with one row per named model: its test metrics, averaged over
        clients.
        """
        models = self.summary.get("models", {})
        rows = [_row(name, figures, self.metric.text) for name, figures in models.items()]
        head = "".join(f"<th>{escape(name)}</th>" for name in _HEADER)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
        )
        caption = f"{self._title}: test {self.metric.title}, mean over clients (round)"
        top = f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        return f"<table>{top}<tbody>{body}</tbody></table>"

    @property
    def _title(self) -> str:
        names = (self.config.get(section, {}).get("name", "?") for section in ("data", "partition"))
        source = ", ".join(map(str, names))
        return plain(f"{self.name} on {source}, {self.clients} clients, {len(self.rounds)} rounds")

    def columns(self) -> dict[str, list[Any]]:
        """Return the columns of ``clients.csv``: one row per client in each evaluation."""
        rows = list(client_rows(self.about["clients"], self.rounds, self.evaluations, self.unseen))
        return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}

    def to_frame(self) -> Any:
        """Return ``columns`` as a pandas DataFrame. Raises PomonaError if pandas is not installed.

        The column ``round`` is called ``round_number`` here, because in ``frame.query("round ==
        5")`` the name is a function's and no row matches.
        """
        columns = {
            "round_number" if name == "round" else name: values
            for name, values in self.columns().items()
        }
        return as_frame(columns)

    def plot(self, *runs: "Result") -> Any:
        """Draw loss and test metric over the rounds, of this run and of others next to it.

        Returns a ``matplotlib.figure.Figure``, which a notebook shows; None without evaluations.

        >>> import pomona
        >>> result = pomona.run(method="apple", clients=3, rounds=2, lr=0.1)
        >>> len(result.plot().axes)
        2
        """
        return load("pomona.results.figures.curves:plotted")(self, *runs)

    @property
    def name(self) -> str:
        """Name of the method."""
        return str(self.config["method"]["name"])

    @property
    def presentation(self) -> Presentation:
        """Presentation of the method in reports; its bare name if the record has none."""
        presentation = self.about.get("presentation")
        return Presentation(**presentation) if presentation else Presentation(self.name)

    @property
    def metric(self) -> Metric:
        """Headline metric of the run; accuracy in older records, or loss if those have no
        accuracy.
        """
        name = str(self.about.get("metric"))
        if name in METRICS or is_own(name):
            return metric_named(name)
        has_accuracy = any(a is not None for e in self.evaluations for a in e.accuracy)
        return ACCURACY if has_accuracy or not self.evaluations else LOSS

    @property
    def score(self) -> HeadlineScore | None:
        """The run in one number, with its metric, model, split and round; None without an
        evaluation. It is that of the last round, with ``keep = best`` that of the best one.
        """
        return cast(HeadlineScore | None, load("pomona.record.headline:headline_score")(self))

    def curve(self, model: str, stage: str, split: str = "test") -> list[Evaluation]:
        """Return all evaluations of a model at a stage on a split, by round."""
        return sorted(
            (e for e in self.evaluations if e.key == (model, stage, split)), key=lambda e: e.round
        )

    @property
    def clients(self) -> int:
        """N, the number of clients, also of those that took part in no round."""
        return len(self.about["clients"])

    @property
    def quantities(self) -> list[str]:
        """Names of the quantities that the method reports per round, for ``matrices``."""
        described = [q.name for q in self.presentation.quantities]
        return [*dict.fromkeys([*described, *(name for r in self.rounds for name in r.info)])]

    @cached_property
    def _stored(self) -> StoredPredictions | None:
        return StoredPredictions(self.folder) if self.folder else None

    def predictions(self, client: int) -> Answers | None:
        """Return outputs of a client's evaluated model on its test samples after the last round,
        and the targets.

        Returns:
            outputs (n, K) float32 from the network (logits, or numbers), and targets: (n,) class
            numbers or (n, K). For masks, (n, 3C) true positive, false positive and false negative
            pixels by class, and (n, C) true pixels by class. None for a client without test
            samples, and in old or unfinished records.

        Raises:
            DataError: the file is damaged.
        """
        answers = self.answers.get(client)
        if answers is None and self._stored:
            return self._stored.answers(client, self.about.get("targets", "classes"))
        return answers

    def groups(self, client: int) -> NDArray[np.int64] | None:
        """Return (n,) int64 the group of each of a client's test samples (e.g. rows of one
        patient); None if unknown.

        Raises DataError for a damaged file.
        """
        groups = self.test_groups.get(client)
        return self._stored.groups(client) if groups is None and self._stored else groups

    def matrices(self, name: str) -> list[tuple[int, NDArray[np.float64]]]:
        """Return one of the ``quantities`` over rounds: (round, (N, ...)) pairs, (N, N) for
        ``matrices("dr")``. Row i is client i's, NaN in a round in which it took no part.

        Raises PomonaError for another name.
        """
        if name not in self.quantities:
            available = ", ".join(self.quantities) or "nothing"
            raise PomonaError(f"{self.name} reports {available}; there is no {name!r}")
        return [(r.round, r.placed(name, self.clients)) for r in self.rounds if name in r.info]


def gather(events: Iterable[Event], config: dict[str, Any], folder: Path | None) -> Result:
    """Build a Result from a list of events."""
    models = ModelFolder(folder / "models") if folder else {}
    result = Result(config, {}, [], [], [], {}, folder, models=models)
    lists: dict[str, list[Any]] = {
        "round": result.rounds,
        "evaluation": result.evaluations,
        "unseen": result.unseen,
        "final": result.final,
        "coefficients": result.coefficients,
        "note": result.notes,
    }
    for event_type, body in events:
        if event_type in lists:
            lists[event_type].append(body)
        elif event_type == "start":
            result.about.update({key: value for key, value in body.items() if key != "time"})
        elif event_type == "end":
            result.summary.update(body["summary"])
    return result


_HEADER = ("model", "when", "last", "best on validation", "best on test", "worst client", "loss")


def as_frame(columns: Mapping[str, Sequence[Any]]) -> Any:
    """Convert columns to a pandas DataFrame. Raises PomonaError if pandas is not installed."""
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise PomonaError(
            "to_frame needs pandas, which is not installed; install it, or take columns() or rows"
        ) from None
    return pandas.DataFrame(columns)


def _row(name: str, figures: Mapping[str, Any], format_value: Any) -> list[str]:
    model, _, stage = name.partition(", ")
    scores = (figures.get(key) for key in ("last", "best_validation", "best_test"))
    means = [
        f"{format_value(score['test'])} ({score['round']})" if score else "-" for score in scores
    ]
    loss = figures.get("loss")
    worst = format_value((figures.get("clients") or {}).get("worst"))
    return [model, stage, *means, worst, "-" if loss is None else f"{loss:.4g}"]

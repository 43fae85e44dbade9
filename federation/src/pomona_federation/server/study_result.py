"""The result of a study without a model, as files and a page."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pomona.core.errors import QuorumError
from pomona.core.settings import Settings
from pomona.core.table import MARKDOWN, PLACEHOLDER, Table, csv_text, markdown
from pomona.metrics.client_statistics import summarize
from pomona.metrics.metric import Metric, metric_named
from pomona.record.result import Result
from pomona.record.rows import Evaluation
from pomona.results.web.page_writer import render, write_page
from pomona.results.wording import capital
from pomona_federation import cross_evaluation
from pomona_federation.agreement import StudyAgreement
from pomona_federation.study import LEAST_SAMPLES, RESULTS


@dataclass(frozen=True)
class ResultFiles:
    """Content of the files.

    Attributes:
        title: of the page.
        opening: sentences before the tables.
        tables: for people.
        records: for programs, as CSV.
    """

    title: str
    opening: Sequence[str]
    tables: Sequence[Table]
    records: Sequence[Mapping[str, Any]]

    def write(
        self, folder: Path, name: str, result: Settings, extra: Mapping[str, str] | None = None
    ) -> Path:
        """Write ``NAME.json``, ``.csv``, ``.md``, and last ``.html``, whose path is returned.

        Raises StorageError.

        Args:
            folder: the study's folder.
            name: of the files, without suffix.
            result: the complete result.
            extra: further texts by file name.
        """
        texts = {
            f"{name}.json": json.dumps(result.model_dump(mode="json"), indent=1) + "\n"
        } | dict(extra or {})
        texts |= {f"{name}.csv": csv_text(self.records)} if self.records else {}
        escaped = (line.translate(MARKDOWN) for line in self.opening)
        texts[f"{name}.md"] = (
            "\n\n".join([f"# {self.title}", *escaped, *map(markdown, self.tables)]) + "\n"
        )
        return write_page(folder, texts | {f"{name}.html": self._html(list(texts))})

    def _html(self, files: Sequence[str]) -> str:
        return render(
            "study_result.html.jinja",
            "pomona_federation.server",
            title=self.title,
            first=self.tables[0].name if self.tables else "",
            links=[(table.name, table.title) for table in self.tables],
            opening=self.opening,
            tables=self.tables,
            files=files,
        )


SPLITS = ("test", "validation")


class ScoreCell(Settings):
    """One model at one silo: samples, the metric there, and its 95 % confidence interval where
    defined.
    """

    model: str
    silo: str
    split: str
    samples: int
    value: float | None
    interval: tuple[float, float] | None


class EvaluationResult(Settings):
    """The complete result of an evaluation.

    Attributes:
        metric: of the values.
        of: the study whose models were evaluated; None for given weights.
        sha256: of the given weights.
        models: names of the silos whose models were evaluated.
        silos: that evaluated.
        declined: silos that declined.
        absent: members that reported no score at all.
    """

    metric: str
    of: str | None
    sha256: str | None
    models: tuple[str, ...]
    silos: tuple[str, ...]
    declined: tuple[str, ...]
    absent: tuple[str, ...]
    cells: tuple[ScoreCell, ...]

    def cell(self, model: str, silo: str, split: str) -> ScoreCell | None:
        """One model at one silo; None if nothing was reported."""
        return self._by_key.get((model, silo, split))

    @cached_property
    def _by_key(self) -> dict[tuple[str, str, str], ScoreCell]:
        """The cells by model, silo and split, cached: a hundred models at a hundred silos need
        20,000 lookups.
        """
        return {(c.model, c.silo, c.split): c for c in self.cells}


def collected(
    result: Result, terms: StudyAgreement, names: Sequence[str], declined: Sequence[str]
) -> EvaluationResult:
    """The matrix from a run's record; see ``write``."""
    evaluation = terms.evaluate
    assert evaluation
    weights = {cross_evaluation.GIVEN_WEIGHTS: cross_evaluation.GIVEN_WEIGHTS}
    owners = {
        cross_evaluation.name(client): silo for silo, client in evaluation.models.items()
    } or weights
    cells = [
        cell
        for e in result.evaluations
        if e.model in owners
        for cell in _cells(e, owners[e.model], result)
    ]
    scored = {cell.silo for cell in cells}
    evaluators = [name for name in names if name in scored]
    return EvaluationResult(
        metric=result.metric.name,
        of=evaluation.of,
        sha256=None if evaluation.models else terms.config.model.init_sha256,
        models=tuple(owners.values()),
        silos=tuple(evaluators),
        declined=tuple(declined),
        absent=tuple(name for name in names if name not in scored.union(declined)),
        cells=tuple(cells),
    )


def _cells(e: Evaluation, model: str, result: Result) -> list[ScoreCell]:
    """One model at each silo with enough samples."""
    clients, intervals = result.about["clients"], e.interval or (None,) * len(e.clients)
    return [
        ScoreCell(
            model=model, silo=clients[i], split=e.split, samples=n, value=v, interval=interval
        )
        for i, n, v, interval in zip(e.clients, e.samples, e.value, intervals, strict=True)
        if n >= LEAST_SAMPLES
    ]


def write(
    terms: StudyAgreement,
    result: Result,
    names: Sequence[str],
    declined: Sequence[str],
    folder: Path,
) -> Path:
    """Write ``evaluation.json``, ``.csv``, ``.md`` and ``.html``; return the page's path.

    Args:
        terms: the terms of the evaluation.
        result: its record.
        names: the members.
        declined: silos that declined.
        folder: its folder. Raises StorageError if it cannot be written, QuorumError if no silo has
            reported anything.
    """
    matrix = collected(result, terms, names, declined)
    records = [cell.model_dump(exclude={"interval"}) | _bounds(cell) for cell in matrix.cells]
    files = ResultFiles(f"Evaluation {terms.study.name}", _opening(matrix), tables(matrix), records)
    path = files.write(folder, RESULTS["evaluate"], matrix)
    if not matrix.cells:
        raise QuorumError("no silo reported a score; `pomona server why SILO` says why of each")
    return path


def tables(matrix: EvaluationResult) -> list[Table]:
    """A matrix for each split with scores: one row per model, one column per silo."""
    return [
        _matrix(matrix, split) for split in SPLITS if any(c.split == split for c in matrix.cells)
    ]


def _matrix(matrix: EvaluationResult, split: str) -> Table:
    metric = metric_named(matrix.metric)
    header = ["Model of" if matrix.of is not None else "Model", *matrix.silos, "Mean at others"]
    rows = [
        [
            model,
            *(_text(matrix.cell(model, silo, split), metric) for silo in matrix.silos),
            _mean_at_others(matrix, model, split),
        ]
        for model in matrix.models
    ]
    counts = {c.silo: c.samples for c in matrix.cells if c.split == split}
    rows.append(
        ["samples", *(str(counts.get(silo, PLACEHOLDER)) for silo in matrix.silos), PLACEHOLDER]
    )
    diagonal = frozenset(
        (i, 1 + matrix.silos.index(m)) for i, m in enumerate(matrix.models) if m in matrix.silos
    )
    title = capital(f"{metric.heading} on {split} data")
    notes = [
        "Each row is a model, each column the silo on whose samples it is evaluated; a silo's own "
        "model at home is in bold. In brackets: 95 % confidence intervals over the silo's samples. "
        "The last column is the mean over the other silos, in brackets its 95 % interval over "
        "these silos by Student's t.",
        "A dash: nothing was reported, the metric is undefined, or the silo has fewer than "
        f"{LEAST_SAMPLES} such samples.",
    ]
    return Table(split, title, notes, header, rows, marked=diagonal)


def _text(cell: ScoreCell | None, metric: Metric) -> str:
    if cell is None or cell.value is None:
        return PLACEHOLDER
    return _with_interval(cell.value, cell.interval, metric)


def _mean_at_others(matrix: EvaluationResult, model: str, split: str) -> str:
    cells = [c for c in matrix.cells if (c.model, c.split) == (model, split) and c.silo != model]
    if not any(c.value is not None for c in cells):
        return PLACEHOLDER
    statistics = summarize(
        [c.value for c in cells], [c.samples for c in cells], metric=metric_named(matrix.metric)
    )
    metric = metric_named(matrix.metric)
    return _with_interval(statistics["mean"], statistics["interval"], metric)


def _with_interval(value: float, interval: Sequence[float] | None, metric: Metric) -> str:
    if not interval or interval[0] >= interval[1]:
        return metric.number(value)
    text, low, high = metric.numbers([value, *interval])
    return f"{text} ({low} to {high})"


def _bounds(cell: ScoreCell) -> dict[str, Any]:
    low, high = cell.interval or (None, None)
    return {"low": low, "high": high}


def _opening(matrix: EvaluationResult) -> list[str]:
    subject = (
        f"The weights {str(matrix.sha256)[:16]}"
        if matrix.of is None
        else f"The personal models of {matrix.of or 'the first study'}"
    )
    lines = [
        f"{subject}, evaluated by {len(matrix.silos)} silos on their own samples. "
        "Nothing was trained."
    ]
    lines += [f"Declined: {', '.join(matrix.declined)}."] if matrix.declined else []
    lines += [f"Reported nothing: {', '.join(matrix.absent)}."] if matrix.absent else []
    missing = [m for m in matrix.models if not any(c.model == m for c in matrix.cells)]
    return [*lines, *([f"No model came from {', '.join(missing)}."] if missing else [])]

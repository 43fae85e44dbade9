"""The result of an evaluation: the matrix of models and silos."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pomona.core.settings import Settings
from pomona.core.table import NOTHING, Table
from pomona.metrics.client_statistics import summarize
from pomona.metrics.metric import Metric, metric_named
from pomona.record.result import Result
from pomona.record.rows import Evaluation
from pomona.results.wording import capital
from pomona_federation import cross_evaluation
from pomona_federation.agreement import StudyAgreement
from pomona_federation.server.study_result import ResultFiles
from pomona_federation.study import LEAST_SAMPLES, RESULTS

SPLITS = ("test", "validation")


class JudgedCell(Settings):
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
    cells: tuple[JudgedCell, ...]

    def cell(self, model: str, silo: str, split: str) -> JudgedCell | None:
        """One model at one silo; None if nothing was reported."""
        return self._found.get((model, silo, split))

    @cached_property
    def _found(self) -> dict[tuple[str, str, str], JudgedCell]:
        """The cells by model, silo and split, cached: a hundred models at a hundred silos need
        20,000 lookups.
        """
        return {(c.model, c.silo, c.split): c for c in self.cells}


def gathered(
    result: Result, agreed: StudyAgreement, names: Sequence[str], declined: Sequence[str]
) -> EvaluationResult:
    """The matrix from a run's record; see ``write``."""
    terms = agreed.evaluate
    assert terms
    given = {cross_evaluation.GIVEN: cross_evaluation.GIVEN}
    whose = {cross_evaluation.name(place): silo for silo, place in terms.models.items()} or given
    cells = [
        cell
        for e in result.evaluations
        if e.model in whose
        for cell in _cells(e, whose[e.model], result)
    ]
    told = [name for name in names if any(c.silo == name for c in cells)]
    return EvaluationResult(
        metric=result.metric.name,
        of=terms.of,
        sha256=None if terms.models else agreed.config.model.init_sha256,
        models=tuple(whose.values()),
        silos=tuple(told),
        declined=tuple(declined),
        absent=tuple(name for name in names if name not in told and name not in declined),
        cells=tuple(cells),
    )


def _cells(e: Evaluation, model: str, result: Result) -> list[JudgedCell]:
    """One model at each silo with enough samples."""
    clients, intervals = result.about["clients"], e.interval or (None,) * len(e.clients)
    return [
        JudgedCell(
            model=model,
            silo=clients[place],
            split=e.split,
            samples=samples,
            value=value,
            interval=interval,
        )
        for place, samples, value, interval in zip(
            e.clients, e.samples, e.value, intervals, strict=True
        )
        if samples >= LEAST_SAMPLES
    ]


def write(
    agreed: StudyAgreement, result: Result, names: Sequence[str], declined: Sequence[str], out: Path
) -> Path:
    """Write ``evaluation.json``, ``.csv``, ``.md`` and ``.html``; return the page's path.

    Args:
        agreed: the terms of the evaluation.
        result: its record.
        names: the members.
        declined: silos that declined.
        out: its folder. Raises StorageError if it cannot be written.
    """
    found = gathered(result, agreed, names, declined)
    records = [cell.model_dump(exclude={"interval"}) | _ends(cell) for cell in found.cells]
    files = ResultFiles(f"Evaluation {agreed.study.name}", _opening(found), tables(found), records)
    return files.write(out, RESULTS["evaluate"], found)


def tables(found: EvaluationResult) -> list[Table]:
    """A matrix for each split with scores: one row per model, one column per silo."""
    return [_matrix(found, split) for split in SPLITS if any(c.split == split for c in found.cells)]


def _matrix(found: EvaluationResult, split: str) -> Table:
    metric = metric_named(found.metric)
    header = ["Model of" if found.of is not None else "Model", *found.silos, "Mean at others"]
    rows = [
        [
            model,
            *(_text(found.cell(model, silo, split), metric) for silo in found.silos),
            _elsewhere(found, model, split),
        ]
        for model in found.models
    ]
    counts = {c.silo: c.samples for c in found.cells if c.split == split}
    rows.append(["samples", *(str(counts.get(silo, NOTHING)) for silo in found.silos), NOTHING])
    own = frozenset(
        (i, 1 + found.silos.index(m)) for i, m in enumerate(found.models) if m in found.silos
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
    return Table(split, title, notes, header, rows, marked=own)


def _text(cell: JudgedCell | None, metric: Metric) -> str:
    if cell is None or cell.value is None:
        return NOTHING
    return f"{metric.number(cell.value)}{_brackets(cell.interval, metric)}"


def _elsewhere(found: EvaluationResult, model: str, split: str) -> str:
    there = [c for c in found.cells if (c.model, c.split) == (model, split) and c.silo != model]
    if not any(c.value is not None for c in there):
        return NOTHING
    over = summarize(
        [c.value for c in there], [c.samples for c in there], metric=metric_named(found.metric)
    )
    metric = metric_named(found.metric)
    return f"{metric.number(over['mean'])}{_brackets(over['interval'], metric)}"


def _brackets(interval: Sequence[float] | None, metric: Metric) -> str:
    return (
        f" ({metric.number(interval[0])} to {metric.number(interval[1])})"
        if interval and interval[0] < interval[1]
        else ""
    )


def _ends(cell: JudgedCell) -> dict[str, Any]:
    low, high = cell.interval or (None, None)
    return {"low": low, "high": high}


def _opening(found: EvaluationResult) -> list[str]:
    what = (
        f"The weights {str(found.sha256)[:16]}"
        if found.of is None
        else f"The personal models of {found.of or 'the first study'}"
    )
    said = [
        f"{what}, evaluated by {len(found.silos)} silos on their own samples. Nothing was trained."
    ]
    said += [f"Declined: {', '.join(found.declined)}."] if found.declined else []
    said += [f"Reported nothing: {', '.join(found.absent)}."] if found.absent else []
    lost = [m for m in found.models if not any(c.model == m for c in found.cells)]
    return [*said, *([f"No model came from {', '.join(lost)}."] if lost else [])]

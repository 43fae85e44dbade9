"""Tables of individual classes or labels: metrics at a threshold, and calibration."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from pomona.core.table import PLACEHOLDER, Table
from pomona.metrics.intervals import Interval, wilson
from pomona.metrics.metric import METRICS
from pomona.metrics.outcomes import (
    BINS,
    MAX_OUTCOMES,
    Predictions,
    outcome,
    outcome_numbers,
    reliability_curve,
)
from pomona.results.run_numbers import Run, leader, records
from pomona.tasks import TASKS

FIGURES = {
    "sensitivity": "Sensitivity",
    "specificity": "Specificity",
    "ppv": "PPV",
    "npv": "NPV",
    "auprc": METRICS["auprc"].heading,
    "brier": METRICS["brier"].heading,
    "calibration_in_the_large": "Calibration in the large",
    "calibration_intercept": "Calibration intercept",
    "calibration_slope": "Calibration slope",
}
MOST_ROWS = 200  # rows of one table on a page
GROUP_SIZE = 20  # a client's samples per group of a calibration curve


# the run if there are several; client; outcome; metrics
Line: TypeAlias = tuple[list[str], str, str, dict[str, Any]]


def outcome_tables(runs: list[Run]) -> list[Table]:
    """Return the tables of all runs with such metrics; only the leading one's if there would be too
    many rows.
    """
    selected = _selected(runs)
    several = len(selected) > 1
    lines = [
        ([run.label] if several else [], *row) for run in selected for row in outcome_rows(run)
    ]
    if not lines or len(lines) > MOST_ROWS:
        return []
    models = "; ".join(f"{run.label}, {run.model}" for run in selected)
    source = f"{models}: each client's own test samples, with 95 % intervals."
    columns = [*(["Run"] if several else []), "Client", "Outcome"]
    calibration = _calibration(columns, lines, source)
    return [
        _at_threshold(columns, lines, [source, _threshold_note(selected)]),
        *([calibration] if len(calibration.rows) <= MOST_ROWS else []),
    ]


def _selected(runs: list[Run]) -> list[Run]:
    """Return the runs with such metrics; only the leading one if their rows are too many."""
    rows = {run: len(list(outcome_rows(run))) for run in runs}
    selected = [run for run in runs if rows[run]]
    if sum(rows.values()) <= MOST_ROWS:
        return selected
    return [run for run in selected if run is leader(selected)]


def _at_threshold(columns: list[str], lines: Sequence[Line], notes: list[str]) -> Table:
    rows = []
    for label, client, name, metrics in lines:
        counts = f"{metrics['positives']:,}", f"{metrics['samples']:,}"
        values = [cell(metrics, key) for key in FIGURES]
        rows.append([*label, client, name, *counts, _threshold(metrics), *values])
    header = [*columns, "Cases", "Test samples", "Threshold", *FIGURES.values()]
    return Table("outcomes", "At a threshold", notes, header, rows, range(len(columns)))


def _threshold_note(runs: Sequence[Run]) -> str:
    return (
        f"{_rule(runs)} It is 0.5 (fixed) where these are missing or lack one answer, or where no "
        "threshold helps. Ideal: calibration in the large of 0 (below 0, probabilities are too "
        "high), an intercept of 0, a slope of 1 (below 1, they are too extreme)."
    )


def _calibration(columns: list[str], lines: Sequence[Line], source: str) -> Table:
    rows = []
    for label, client, name, metrics in lines:
        for mean, hits, n in metrics.get("calibration") or ():
            if 0 <= hits <= n and n >= 1:
                share = with_interval(hits / n, _bounds(metrics, int(hits), int(n)))
                rows.append([*label, client, name, f"{n:,.0f}", f"{mean:.3f}", share])
    note = (
        "Samples in up to ten groups of equal size, by rising probability: the last two "
        "columns should agree."
    )
    header = [*columns, "Test samples", "Mean probability", "Share of cases"]
    return Table("calibration", "Calibration", [source, note], header, rows, range(len(columns)))


def _bounds(metrics: Mapping[str, Any], hits: int, n: int) -> Interval:
    """Return Wilson's interval of a share; None if samples are clustered: then there are fewer
    units, or in older records no intervals.
    """
    independent = metrics.get("units") in (None, metrics["samples"])
    recorded = any((metrics.get("intervals") or {}).values())
    return wilson(hits, n) if independent and recorded else None


Group: TypeAlias = tuple[float, float, float | None, float | None, int, int]


@dataclass(frozen=True)
class PooledOutcome:
    """Observed frequencies of an outcome against the probabilities of a run's headline model.

    Attributes:
        name: of the class or label.
        groups: of all clients' test samples, by rising probability: mean probability, share of
            cases with its 95 % bounds (None if samples are clustered), cases, samples.
        clients: by number, the same of a client's own, in fewer groups if samples are few.
    """

    name: str
    groups: list[Group]
    clients: dict[int, list[Group]]


def pooled_outcomes(run: Run) -> list[PooledOutcome]:
    """Return the outcomes of a run with evaluation and predictions; none with more than 5 classes
    or labels.
    """
    answers = _probabilities(run)
    first = next(iter(answers.values()), None)
    if first is None:
        return []
    names = outcome_names(run, first[0].shape[1])
    clustered = {
        i for i, (_, targets) in answers.items() if run.units(i, len(targets)) < len(targets)
    }
    return [_pooled_outcome(names[k], k, answers, clustered) for k in outcome_numbers(first)]


def _probabilities(run: Run) -> dict[int, Predictions]:
    """Return the clients' probabilities; empty for a task without outcomes, or with too many."""
    task = TASKS[run.result.about.get("targets", "classes")]
    if run.reported is None or not task.outcomes:
        return {}
    predictions = [(i, run.result.predictions(i)) for i in range(run.result.clients)]
    answers = {
        i: (task.natural(prediction[0]), prediction[1])
        for i, prediction in predictions
        if prediction and len(prediction[1])
    }
    minimum = 2 if task.output == "class" else 1  # a single class always occurs
    width = next((probabilities.shape[1] for probabilities, _ in answers.values()), 0)
    return answers if minimum <= width <= MAX_OUTCOMES else {}


def _pooled_outcome(
    name: str, k: int, answers: Mapping[int, Predictions], clustered: Collection[int]
) -> PooledOutcome:
    by_client = {i: outcome(answer, k) for i, answer in answers.items()}
    p, positive = (np.concatenate(arrays) for arrays in zip(*by_client.values(), strict=True))
    groups = [_group(*group, clustered=bool(clustered)) for group in reliability_curve(p, positive)]
    clients = {}
    for i, answer in by_client.items():
        bins = min(BINS, max(2, len(answer[0]) // GROUP_SIZE))
        clients[i] = [
            _group(*group, clustered=i in clustered) for group in reliability_curve(*answer, bins)
        ]
    return PooledOutcome(name, groups, clients)


def _group(mean: float, hits: int, n: int, *, clustered: bool) -> Group:
    """Return a group; of clustered samples, Wilson's bounds would be too narrow."""
    low, high = (None if clustered else wilson(hits, n)) or (None, None)
    return mean, hits / n, low, high, hits, n


def outcome_names(run: Run, count: int) -> list[str]:
    """Return the names of a run's classes or labels, up to their number."""
    output = TASKS[run.result.about.get("targets", "classes")].output
    names = [
        str(name)
        for name in run.result.about.get({"label": "labels", "class": "classes"}[output]) or ()
    ]
    return names + [f"{output} {k}" for k in range(len(names), count)]


def outcome_rows(run: Run) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (client, outcome, its metrics) of the headline model."""
    for record in records(run):
        for metrics in record.get("outcomes") or ():
            k = metrics["outcome"]
            yield run.client(int(record["client"])), outcome_names(run, k + 1)[k], metrics


def _rule(runs: Sequence[Run]) -> str:
    """Describe how clients' thresholds were chosen in these runs, on their validation samples."""
    rules = dict.fromkeys(_rule_of(run.result.config) for run in runs)
    return f"A client's threshold {', or '.join(rules)} on its validation samples."


def _rule_of(config: Mapping[str, Any]) -> str:
    if share := config.get("specificity"):
        return f"is the lowest with a specificity of at least {share:g}"
    if share := config.get("sensitivity"):
        return f"is the highest with a sensitivity of at least {share:g}"
    return "has the largest sensitivity + specificity - 1 (Youden's J)"


def _threshold(metrics: dict[str, Any]) -> str:
    if metrics["chosen"]:
        return f"{metrics['threshold']:.3f}"
    return f"{metrics['threshold']:.1f} (fixed)"


def cell(metrics: Mapping[str, Any], key: str) -> str:
    """Format a metric of a record with its interval; "-" for None."""
    return with_interval(metrics.get(key), (metrics.get("intervals") or {}).get(key))


def with_interval(value: float | None, bounds: Sequence[float | None] | None) -> str:
    """Format a value with its interval; "-" for None."""
    if value is None:
        return PLACEHOLDER
    if not bounds or None in bounds:
        return f"{value:.3f}"
    return f"{value:.3f} ({bounds[0]:.3f} to {bounds[1]:.3f})"

"""Tables of individual classes or labels: metrics at a threshold, and calibration."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from pomona.core.table import NOTHING, Table
from pomona.metrics.bootstrap import Interval
from pomona.metrics.calibration import curve
from pomona.metrics.classification import wilson
from pomona.metrics.metric import METRICS
from pomona.metrics.outcomes import MOST, outcome, outcome_numbers
from pomona.results.run_numbers import Run, leader, records
from pomona.tasks import TASKS

FIGURES = {
    "sensitivity": "Sensitivity",
    "specificity": "Specificity",
    "ppv": "PPV",
    "npv": "NPV",
    "auprc": METRICS["auprc"].heading,
    "brier": METRICS["brier"].heading,
    "calibration_intercept": "Calibration intercept",
    "calibration_slope": "Calibration slope",
}
MOST_ROWS = 200  # rows of one table on a page


def outcome_tables(runs: list[Run]) -> list[Table]:
    """Return the tables of all runs with such metrics; only the leading one's if there would be too many rows."""
    shown = [run for run in runs if any(_rows(run))]
    if sum(len(list(_rows(run))) for run in shown) > MOST_ROWS:
        shown = [run for run in shown if run is leader(shown)]
    found = [([run.label] if len(shown) > 1 else [], *row) for run in shown for row in _rows(run)]
    if not found or len(found) > MOST_ROWS:
        return []
    column = ["Run"] if len(shown) > 1 else []
    models = "; ".join(f"{run.label}, {run.model}" for run in shown)
    of = f"{models}: each client's own test samples, with 95 % intervals."
    at = Table(
        "outcomes",
        "At a threshold",
        [
            of,
            f"{_rule(shown)} It is 0.5 (fixed) where these are missing or lack one answer, or where no threshold helps."
            " Right probabilities have a calibration intercept of 0 and a slope of 1; below 1 they are too extreme.",
        ],
        [*column, "Client", "Outcome", "Cases", "Test samples", "Threshold", *FIGURES.values()],
        [
            [
                *label,
                client,
                name,
                f"{o['positives']:,}",
                f"{o['samples']:,}",
                _threshold(o),
                *(_cell(o, key) for key in FIGURES),
            ]
            for label, client, name, o in found
        ],
        range(2 + len(column)),
    )
    groups = [
        [
            *label,
            client,
            name,
            f"{n:,.0f}",
            f"{mean:.3f}",
            with_interval(hits / n, _bounds(o, int(hits), int(n))),
        ]
        for label, client, name, o in found
        for mean, hits, n in o.get("calibration") or ()
        if 0 <= hits <= n and n >= 1
    ]
    calibration = Table(
        "calibration",
        "Calibration",
        [of, "Samples in up to ten groups of equal size, by rising probability: the two last columns should agree."],
        [*column, "Client", "Outcome", "Test samples", "Mean probability", "Share of cases"],
        groups,
        range(2 + len(column)),
    )
    return [at, *([calibration] if len(groups) <= MOST_ROWS else [])]


def _bounds(found: Mapping[str, Any], hits: int, n: int) -> Interval:
    """Return Wilson's interval of a share; None if an outcome's figures have none, because samples are clustered."""
    return wilson(hits, n) if any((found.get("intervals") or {}).values()) else None


Group: TypeAlias = tuple[float, float, float, float, int, int]


@dataclass(frozen=True)
class PooledOutcome:
    """Observed frequencies of an outcome against the probabilities of a run's headline model.

    Attributes:
        name: of the class or label.
        groups: of all clients' test samples, by rising probability: mean probability, share of cases with its 95 %
            bounds, cases, samples.
        clients: by number, the same without bounds: mean probability, share of cases.
    """

    name: str
    groups: list[Group]
    clients: dict[int, list[tuple[float, float]]]


def pooled_outcomes(run: Run) -> list[PooledOutcome]:
    """Return the outcomes of a run with evaluation and predictions; none with more than 5 classes or labels."""
    if run.kept is None:
        return []
    task = TASKS[run.result.about.get("targets", "classes")]
    given = [(i, run.result.predictions(i)) for i in range(len(run.result.about.get("clients") or ()))]
    answers = {i: (task.natural(told[0]), told[1]) for i, told in given if told and len(told[1])}
    first = next(iter(answers.values()), None)
    least = 2 if task.output == "class" else 1  # a single class always occurs
    if not task.outcomes or first is None or not least <= first[0].shape[1] <= MOST:
        return []
    names = outcome_names(run, first[0].shape[1])
    clustered = any(run.units(i, len(targets)) < len(targets) for i, (_, targets) in answers.items())
    found = []
    for k in outcome_numbers(first):
        each = {i: outcome(judged, k) for i, judged in answers.items()}
        p, positive = (np.concatenate(parts) for parts in zip(*each.values(), strict=True))
        groups = [_group(*group, clustered=clustered) for group in curve(p, positive)]
        clients = {i: [(mean, hits / n) for mean, hits, n in curve(*own)] for i, own in each.items()}
        found.append(PooledOutcome(names[k], groups, clients))
    return found


def _group(mean: float, hits: int, n: int, *, clustered: bool) -> Group:
    """Return a group with its bounds, which are its share if samples are clustered: Wilson's would be too narrow."""
    low, high = (None if clustered else wilson(hits, n)) or (hits / n, hits / n)
    return mean, hits / n, low, high, hits, n


def outcome_names(run: Run, count: int) -> list[str]:
    """Return the names of a run's classes or labels, up to their number."""
    kind = TASKS[run.result.about.get("targets", "classes")].output
    given = [str(name) for name in run.result.about.get({"label": "labels", "class": "classes"}[kind]) or ()]
    return given + [f"{kind} {k}" for k in range(len(given), count)]


def _rows(run: Run) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (client, outcome, its metrics) of the headline model."""
    for record in records(run):
        for found in record.get("outcomes") or ():
            k = found["outcome"]
            yield run.client(int(record["client"])), outcome_names(run, k + 1)[k], found


def _rule(runs: Sequence[Run]) -> str:
    """Describe how clients' thresholds were chosen in these runs, on their validation samples."""
    wanted = {run.result.config.get("specificity") for run in runs}
    rules = [
        "has the largest sensitivity + specificity - 1 (Youden's J)"
        if share is None
        else f"is the lowest with a specificity of at least {share:g}"
        for share in sorted(wanted, key=lambda share: share or 0)
    ]
    return f"A client's threshold {', or '.join(rules)} on its validation samples."


def _threshold(found: dict[str, Any]) -> str:
    return f"{found['threshold']:.3f}" if found["chosen"] else f"{found['threshold']:.1f} (fixed)"


def _cell(found: dict[str, Any], key: str) -> str:
    return with_interval(found.get(key), (found.get("intervals") or {}).get(key))


def with_interval(value: float | None, bounds: Sequence[float | None] | None) -> str:
    """Format a value with its interval; "-" for None."""
    if value is None:
        return NOTHING
    if bounds is None or None in bounds:
        return f"{value:.3f}"
    return f"{value:.3f} ({bounds[0]:.3f} to {bounds[1]:.3f})"

"""The tables of each class or label by itself: figures at a threshold, and the calibration of its probabilities."""

from collections.abc import Iterator, Sequence
from typing import Any

from pomona.core.table import NOTHING, Table
from pomona.metrics.classification import wilson
from pomona.metrics.metric import METRICS
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
MOST_ROWS = 200  # of one table of a page


def outcome_tables(runs: list[Run]) -> list[Table]:
    """The tables of the leading run with such figures; none where its clients and outcomes make too many rows."""
    run = leader([run for run in runs if any(_rows(run))])
    found = list(_rows(run)) if run else []
    if run is None or len(found) > MOST_ROWS:
        return []
    of = f"{run.label}, {run.model}: each client's own test samples, with 95 % intervals."
    at = Table(
        "outcomes",
        "At a threshold",
        [
            of,
            "A client's threshold has the largest sensitivity + specificity - 1 (Youden's J) on its validation "
            "samples; it is 0.5 (fixed) where they are missing or lack one answer, or where no threshold helps. Right "
            "probabilities have a calibration intercept of 0 and a slope of 1; below 1 they are too extreme.",
        ],
        ["Client", "Outcome", "Cases", "Test samples", "Threshold", *FIGURES.values()],
        [
            [
                client,
                name,
                f"{o['positives']:,}",
                f"{o['samples']:,}",
                _threshold(o),
                *(_cell(o, key) for key in FIGURES),
            ]
            for client, name, o in found
        ],
        range(2),
    )
    groups = [
        [client, name, f"{n:,.0f}", f"{mean:.3f}", _with(hits / n, wilson(int(hits), int(n)))]
        for client, name, o in found
        for mean, hits, n in o.get("calibration") or ()
        if 0 <= hits <= n and n >= 1
    ]
    calibration = Table(
        "calibration",
        "Calibration",
        [of, "Samples in up to ten groups of equal size, by rising probability: the two last columns should agree."],
        ["Client", "Outcome", "Test samples", "Mean probability", "Share of cases"],
        groups,
        range(2),
    )
    return [at, *([calibration] if len(groups) <= MOST_ROWS else [])]


def _rows(run: Run) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(client, outcome, its figures) of the headline model."""
    kind = TASKS[run.result.about.get("targets", "classes")].output
    given = [str(name) for name in run.result.about.get({"label": "labels", "class": "classes"}[kind]) or ()]
    for record in records(run):
        for found in record.get("outcomes") or ():
            k = found["outcome"]
            yield run.client(int(record["client"])), given[k] if k < len(given) else f"{kind} {k}", found


def _threshold(found: dict[str, Any]) -> str:
    return f"{found['threshold']:.3f}" if found["youden"] else f"{found['threshold']:.1f} (fixed)"


def _cell(found: dict[str, Any], key: str) -> str:
    return _with(found.get(key), (found.get("intervals") or {}).get(key))


def _with(value: float | None, bounds: Sequence[float | None] | None) -> str:
    if value is None:
        return NOTHING
    if bounds is None or None in bounds:
        return f"{value:.3f}"
    return f"{value:.3f} ({bounds[0]:.3f} to {bounds[1]:.3f})"

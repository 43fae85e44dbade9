"""Data of the page: the record's numbers as one JSON object, with large arrays packed."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pomona.metrics.metric import Metric
from pomona.record.headline import finished, views
from pomona.record.result import Result
from pomona.record.rows import Evaluation
from pomona.results.figures import clusters, partition
from pomona.results.figures.classification import MAX_CLASSES, class_names, pooled_confusion
from pomona.results.figures.client_values import epoch_losses
from pomona.results.figures.curves import megabytes_sent, penalty, scenario_name
from pomona.results.figures.sections import quantities
from pomona.results.figures.series import MATRIX, Series, order, too_large
from pomona.results.gain_presentation import Gains, gained
from pomona.results.method_colours import MARKERS, Style
from pomona.results.run_numbers import Run, baseline, leader, records
from pomona.results.seeds import over_seeds
from pomona.results.tables.outcomes import PooledOutcome, pooled_outcomes
from pomona.results.wording import slug

Json: TypeAlias = dict[str, Any]

EXACT = 150_000
"""Number of values of one quantity from which each is stored in one byte instead of four."""
MARKS = 20_000
"""Number of label counts by client and class from which they are not drawn: each is an element of
the document.
"""
LARGEST = float(np.finfo(np.float32).max)
MAX_VALUES = 600_000
"""Number of values of one quantity from which rounds are omitted."""


def pack(values: NDArray[np.float64]) -> Json:
    """Pack numbers of any shape in base64, with NaN for missing ones.

    They are little-endian float32, or for more than ``EXACT`` numbers bytes: k is ``low + k / 254
    (high - low)``, 255 is NaN. Numbers beyond ``LARGEST`` are not drawn.
    """
    values = np.where(np.abs(values) <= LARGEST, values, np.nan)
    if values.size <= EXACT:
        return {"shape": values.shape, "bytes": _text(values.astype("<f4"))}
    finite = values[~np.isnan(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    steps = np.rint((values - low) / (high - low or 1.0) * 254)
    return {
        "shape": values.shape,
        "low": low,
        "high": high,
        "bytes": _text(np.where(np.isnan(steps), 255, steps).astype(np.uint8)),
    }


def _text(values: NDArray[Any]) -> str:
    return base64.b64encode(values.tobytes()).decode("ascii")


@dataclass(frozen=True)
class LiveProgress:
    """Refresh of the page of a running run.

    Attributes:
        seconds: interval after which the page reloads.
        written: when it was written.
        patience: seconds without a newer page after which it considers the run ended, and stops
            reloading.
    """

    seconds: int
    written: datetime
    patience: float


def payload(runs: list[Run], live: LiveProgress | None) -> Json:
    """Return all data that the page draws."""
    lead, teaching = leader(runs), [run for run in runs if _learned(run)]
    return {
        "live": live and [live.seconds, live.written.timestamp(), live.patience],
        "runs": [_run(run, runs) for run in runs],
        "first": runs.index(leader(teaching) or lead or runs[0]),
        "partitions": _partitions(runs),
    }


def _run(run: Run, runs: list[Run]) -> Json:
    result, n = run.result, run.result.clients
    return {
        "label": run.label,
        "key": slug(run.label),
        "look": _style(run.style),
        "place": scenario_name(run),
        "minimised": run.loss,
        "metric": _metric(run.metric),
        **_compared(run, runs),
        "clients": [run.client(i) for i in range(n)],
        "groups": _groups(result, n),
        "planned": run.setting("rounds"),
        "finished": finished(result),
        "rounds": [row.round for row in result.rounds],
        "loss": pack(
            _rows([row.cohort for row in result.rounds], [row.loss for row in result.rounds], n)
        ),
        "sent": megabytes_sent(run),
        "moment": run.reported.round if run.reported else None,
        "views": [_view(result.curve(*key), n) for key in views(result)],
        "intervals": {
            str(r["client"]): (r.get("intervals") or {}).get(run.metric.name) for r in records(run)
        },
        "learned": _learned(run),
        "penalty": penalty(run),
        "confusion": _confusion(run),
        "calibration": [_calibration(outcome) for outcome in pooled_outcomes(run)],
        "partition": _partition(run),
    }


def _compared(run: Run, runs: list[Run]) -> Json:
    """Return the compared label (for several seeds of their mean) and its gain over local training.

    The gain of several seeds is shown once, with the first of them.
    """
    compared = over_seeds(runs)
    combined = next((r for r in compared if run in r.seeds), run)
    first, base = (*combined.seeds, run)[0], baseline(compared, combined)
    gains = gained(combined, base) if base and base is not combined and run is first else None
    return {
        "compared": combined.label
        + (f", mean over {len(combined.seeds)} seeds" if combined.seeds else ""),
        "first": runs.index(first),
        "base": runs.index((*gains.base.seeds, gains.base)[0]) if gains else None,
        "gains": _gains(gains) if gains else [],
    }


def _calibration(outcome: PooledOutcome) -> Json:
    return {
        "name": outcome.name,
        "groups": outcome.groups,
        "clients": list(outcome.clients.items()),
    }


def _style(style: Style) -> Json:
    """Convert a style, with its marker by number and dash lengths in line widths."""
    return {
        "colour": style.colour,
        "bright": style.bright,
        "dash": style.dash,
        "marker": MARKERS.index(style.marker),
    }


def _metric(metric: Metric) -> Json:
    """Return the format of a metric's values on the page, and the bounds of its axis, if any."""
    bounds = [metric.low, metric.high] if metric.higher else [metric.low]
    return {
        "name": metric.name,
        "title": metric.title,
        "heading": metric.heading,
        "higher": metric.higher,
        "percent": metric.percent,
        "decimals": 3 if metric.style == ".3f" else None,
        "ends": bounds if all(map(isfinite, bounds)) else [],
    }


def _gains(compared: Gains) -> list[Json]:
    """Return each client's gain over local training, with its own interval and the joint verdict if
    known.
    """
    by_client, fields = (
        dict(enumerate(zip(compared.clients, compared.verdicts, strict=True))),
        ("value", "low", "high", "pairs"),
    )
    gains: list[Json] = [
        {} for _ in range(1 + max([*by_client, *compared.differences], default=-1))
    ]
    for client, difference in compared.differences.items():
        gains[client] = {"value": difference}
    for client, (gain, verdict) in by_client.items():
        if gain:
            gains[client] = {**{name: getattr(gain, name) for name in fields}, "verdict": verdict}
    return gains


def _groups(result: Result, n: int) -> list[int]:
    """Return each client's hidden group, numbered from 0 in order of occurrence; empty if
    unknown.
    """
    groups = list(result.about.get("groups") or ())
    numbers = {group: k for k, group in enumerate(sorted(set(groups)))}
    return [numbers[g] for g in groups] if len(groups) == n and len(numbers) > 1 else []


def _rows(
    clients: Sequence[Sequence[int]], values: Sequence[Sequence[float | None]], n: int
) -> NDArray[np.float64]:
    """Return values of some clients per row, as (T, n) with NaN for the others and for undefined
    ones.
    """
    table = np.full((len(clients), n), np.nan)
    for t, (ids, row) in enumerate(zip(clients, values, strict=True)):
        table[t, list(ids)] = np.array(row, dtype=np.float64)  # None becomes NaN
    return table


def _view(curve: list[Evaluation], n: int) -> Json:
    clients = [e.clients for e in curve]
    return {
        "model": curve[0].model,
        "when": curve[0].when,
        "rounds": [e.round for e in curve],
        "value": pack(_rows(clients, [e.value for e in curve], n)),
        "loss": pack(_rows(clients, [e.loss for e in curve], n)),
    }


def _learned(run: Run) -> list[Json]:
    """Return the quantities in the run's ``info``, in order of appearance."""
    main, norms = quantities(run)
    learned = [item for series in main if (item := _learned_quantity(series, run.result.clients))]
    split = next((series for series in main if series.quantity.kind == "clusters"), None)
    return (
        [*learned, _norms(split, norms)] if split and len(norms) == len(clusters.NORMS) else learned
    )


def _learned_quantity(series: Series, n: int) -> Json | None:
    """Return a quantity; None without anything to draw."""
    figure_type = series.quantity.kind
    if figure_type == "epochs":
        return _epochs(series)
    return None if figure_type == "matrix" and n < 2 else _quantity(series)


def _quantity(series: Series) -> Json:
    quantity, values = series.quantity, series.values
    positions = np.unique(
        np.linspace(
            0, len(values) - 1, max(2, min(len(values), MAX_VALUES // values[0].size))
        ).round()
    )
    indices = positions.astype(np.int64)
    participants = series.participants
    clustered = (
        order(values[-1][np.ix_(participants, participants)])
        if quantity.kind == "matrix"
        else range(len(participants))
    )
    absent = sorted({*range(series.n)} - {*participants})
    return {
        "name": quantity.name,
        "kind": quantity.kind,
        "title": quantity.title,
        "symbol": quantity.symbol,
        "meaning": quantity.meaning + series.absence,
        "history": quantity.history or quantity.title,
        "own": quantity.own,
        "entries": quantity.entries,
        "rounds": series.rounds[indices].tolist(),
        "thinned": len(indices) < len(values),
        "values": pack(values[indices]),
        "order": [participants[i] for i in clustered] + absent,
    }


def _epochs(series: Series) -> Json | None:
    """Return losses over the epochs of weight learning, and the length of each client's initial
    stage.
    """
    quantity, history = series.quantity, epoch_losses(series.run, series.quantity.name)
    texts = {
        name: getattr(quantity, name) for name in ("name", "kind", "title", "symbol", "meaning")
    }
    return (
        None
        if history is None
        else {**texts, "values": pack(history.losses), "stage": history.stage}
    )


def _norms(series: Series, recorded: dict[str, Series]) -> Json:
    """Return CFL's norms by cluster, with the thresholds of a split."""
    updates, norms = (recorded[name] for name in clusters.NORMS)
    measured = {c: clusters.points(series, norms, c) for c in clusters.cluster_ids(series)}
    return {
        "name": "norms",
        "kind": "norms",
        "title": "Norms of updates and of their mean",
        "meaning": "the norm of the mean of a cluster's updates, and the largest norm of one of "
        "them; a small mean of large updates means that the members disagree, and the cluster "
        "splits (dashed: the thresholds).",
        "clusters": {str(c): points for c, points in measured.items() if points},
        "thresholds": clusters.thresholds(updates),
    }


def _confusion(run: Run) -> Json | None:
    counts = pooled_confusion(run)
    if counts is None or len(counts) > MAX_CLASSES:
        return None
    return {"counts": counts.tolist(), "classes": class_names(run, len(counts))}


def _partition(run: Run) -> str:
    """Return a key that identifies a partition."""
    return str(run.result.about.get("partition_sha256") or scenario_name(run))[:16]


def _partitions(runs: list[Run]) -> dict[str, Json]:
    """Return the label counts of every partition among the runs, by key."""
    partitions: dict[str, Json] = {}
    for run in runs:
        labels = partition.label_counts([run])
        if labels and labels.counts.size <= MARKS and _partition(run) not in partitions:
            groups = _groups(run.result, len(labels.clients))
            partitions[_partition(run)] = {
                "place": scenario_name(run),
                "counts": labels.counts.tolist(),
                "clients": labels.clients,
                "classes": labels.classes,
                "groups": groups,
                "sizes": labels.sizes,
            }
    return partitions


def omitted_quantities(runs: list[Run]) -> list[str]:
    """Report quantities that are too large for the page, and the files that contain them."""
    lines = []
    for run in runs:
        lines += [
            f"{run.label}: “{name}”, which has a number for each pair of {n:,} clients, is not "
            f"drawn of more than {MATRIX}; events.jsonl in the run's folder has it."
            for name, n in too_large(run).items()
        ]
        if large := _too_large_to_draw(run.result):
            lines.append(
                f"{run.label}: numbers beyond {LARGEST:.2g} ({large:,} of them) are not drawn; "
                "events.jsonl in the run's folder has them."
            )
        counts, labels = pooled_confusion(run), partition.label_counts([run])
        if counts is not None and len(counts) > MAX_CLASSES:
            lines.append(
                f"{run.label}: the confusion matrix of {len(counts):,} classes is not drawn; "
                f"{_FILES}confusion.csv."
            )
        if labels and labels.counts.size > MARKS:
            n, c = labels.counts.shape
            lines.append(
                f"{run.label}: the labels of {n:,} clients in {c:,} classes are not drawn; "
                f"{_FILES}labels.csv."
            )
    return lines


def _too_large_to_draw(result: Result) -> int:
    evaluated = [row.loss for row in result.rounds] + [
        values for e in result.evaluations for values in (e.value, e.loss)
    ]
    recorded = [matrix for row in result.rounds for matrix in row.info.values()]
    return sum(
        int((np.abs(np.array(values, float)) > LARGEST).sum()) for values in (*evaluated, *recorded)
    )


_FILES = "pomona report with --figures csv writes "

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
from pomona.record.judged import finished, views
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
MOST = 600_000
"""Number of values of one quantity from which rounds are omitted."""


def pack(values: NDArray[np.float64]) -> Json:
    """Pack numbers of any shape in base64, with NaN for missing ones.

    They are little-endian float32, or for more than ``EXACT`` numbers bytes: k is ``low + k / 254
    (high - low)``, 255 is NaN. Numbers beyond ``LARGEST`` are not drawn.
    """
    values = np.where(np.abs(values) <= LARGEST, values, np.nan)
    if values.size <= EXACT:
        return {"shape": values.shape, "bytes": _text(values.astype("<f4"))}
    known = values[~np.isnan(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
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
        "look": _drawn(run.style),
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
    """Return what is compared (for several seeds their mean) and its gain over local training.

    The gain of several seeds is shown once, with the first of them.
    """
    compared = over_seeds(runs)
    whole = next((one for one in compared if run in one.seeds), run)
    first, base = (*whole.seeds, run)[0], baseline(compared, whole)
    found = gained(whole, base) if base and base is not whole and run is first else None
    return {
        "compared": whole.label + (f", mean over {len(whole.seeds)} seeds" if whole.seeds else ""),
        "first": runs.index(first),
        "base": runs.index((*found.base.seeds, found.base)[0]) if found else None,
        "gains": _gains(found) if found else [],
    }


def _calibration(outcome: PooledOutcome) -> Json:
    return {
        "name": outcome.name,
        "groups": outcome.groups,
        "clients": list(outcome.clients.items()),
    }


def _drawn(style: Style) -> Json:
    """Convert a look, with its marker by number and dash lengths in line widths."""
    return {
        "colour": style.colour,
        "bright": style.bright,
        "dash": style.dash,
        "marker": MARKERS.index(style.marker),
    }


def _metric(metric: Metric) -> Json:
    """Return the format of a metric's values on the page, and the bounds of its axis, if any."""
    ends = [metric.low, metric.high] if metric.higher else [metric.low]
    return {
        "name": metric.name,
        "title": metric.title,
        "heading": metric.heading,
        "higher": metric.higher,
        "percent": metric.percent,
        "decimals": 3 if metric.style == ".3f" else None,
        "ends": ends if all(map(isfinite, ends)) else [],
    }


def _gains(found: Gains) -> list[Json]:
    """Return each client's gain over local training, with its own interval and the joint verdict if
    known.
    """
    known, shown = (
        dict(enumerate(zip(found.clients, found.verdicts, strict=True))),
        ("value", "low", "high", "pairs"),
    )
    gains: list[Json] = [{} for _ in range(1 + max([*known, *found.differences], default=-1))]
    for client, difference in found.differences.items():
        gains[client] = {"value": difference}
    for client, (gain, verdict) in known.items():
        if gain:
            gains[client] = {**{name: getattr(gain, name) for name in shown}, "verdict": verdict}
    return gains


def _groups(result: Result, n: int) -> list[int]:
    """Return each client's hidden group, numbered from 0 in order of occurrence; empty if
    unknown.
    """
    groups = list(result.about.get("groups") or ())
    known = {group: k for k, group in enumerate(sorted(set(groups)))}
    return [known[g] for g in groups] if len(groups) == n and len(known) > 1 else []


def _rows(
    who: Sequence[Sequence[int]], values: Sequence[Sequence[float | None]], n: int
) -> NDArray[np.float64]:
    """Return values of some clients per row, as (T, n) with NaN for the others and for undefined
    ones.
    """
    table = np.full((len(who), n), np.nan)
    for t, (some, row) in enumerate(zip(who, values, strict=True)):
        table[t, list(some)] = np.array(row, dtype=np.float64)  # None becomes NaN
    return table


def _view(curve: list[Evaluation], n: int) -> Json:
    who = [e.clients for e in curve]
    return {
        "model": curve[0].model,
        "when": curve[0].when,
        "rounds": [e.round for e in curve],
        "value": pack(_rows(who, [e.value for e in curve], n)),
        "loss": pack(_rows(who, [e.loss for e in curve], n)),
    }


def _learned(run: Run) -> list[Json]:
    """Return the quantities in the run's ``info``, in order of appearance."""
    own, aside = quantities(run)
    found = [one for series in own if (one := _told(series, run.result.clients))]
    split = next((series for series in own if series.quantity.kind == "clusters"), None)
    return [*found, _norms(split, aside)] if split and len(aside) == len(clusters.NORMS) else found


def _told(series: Series, n: int) -> Json | None:
    """Return a quantity; None if there is nothing to draw of it."""
    kind = series.quantity.kind
    if kind == "epochs":
        return _epochs(series)
    return None if kind == "matrix" and n < 2 else _quantity(series)


def _quantity(series: Series) -> Json:
    what, values = series.quantity, series.values
    kept = np.unique(
        np.linspace(0, len(values) - 1, max(2, min(len(values), MOST // values[0].size))).round()
    )
    few = kept.astype(np.int64)
    seen = series.participants
    near = order(values[-1][np.ix_(seen, seen)]) if what.kind == "matrix" else range(len(seen))
    away = sorted({*range(series.n)} - {*seen})
    return {
        "name": what.name,
        "kind": what.kind,
        "title": what.title,
        "symbol": what.symbol,
        "meaning": what.meaning + series.absence,
        "history": what.history or what.title,
        "own": what.own,
        "entries": what.entries,
        "rounds": series.rounds[few].tolist(),
        "thinned": len(few) < len(values),
        "values": pack(values[few]),
        "order": [seen[i] for i in near] + away,
    }


def _epochs(series: Series) -> Json | None:
    """Return losses over the epochs of weight learning, and the length of each client's initial
    stage.
    """
    what, found = series.quantity, epoch_losses(series.run, series.quantity.name)
    words = {name: getattr(what, name) for name in ("name", "kind", "title", "symbol", "meaning")}
    return None if found is None else {**words, "values": pack(found.losses), "stage": found.stage}


def _norms(own: Series, aside: dict[str, Series]) -> Json:
    """Return CFL's norms by cluster, with the thresholds of a split."""
    updates, norms = (aside[name] for name in clusters.NORMS)
    measured = {c: clusters.points(own, norms, c) for c in clusters.cluster_ids(own)}
    return {
        "name": "norms",
        "kind": "norms",
        "title": "How large updates are, and how much of them cancels out",
        "meaning": "the norm of the mean of a cluster's updates, and the largest norm of one of "
        "them; a small mean of "
        "large updates says that its members pull apart, and the cluster splits (dashed: the "
        "thresholds).",
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
    found: dict[str, Json] = {}
    for run in runs:
        held = partition.label_counts([run])
        if held and held.counts.size <= MARKS and _partition(run) not in found:
            groups = _groups(run.result, len(held.clients))
            found[_partition(run)] = {
                "place": scenario_name(run),
                "counts": held.counts.tolist(),
                "clients": held.clients,
                "classes": held.classes,
                "groups": groups,
                "sizes": held.sizes,
            }
    return found


def left_out(runs: list[Run]) -> list[str]:
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
        counts, held = pooled_confusion(run), partition.label_counts([run])
        if counts is not None and len(counts) > MAX_CLASSES:
            lines.append(
                f"{run.label}: which of {len(counts):,} classes is taken for which is not drawn; "
                f"{_FILES}confusion.csv."
            )
        if held and held.counts.size > MARKS:
            n, c = held.counts.shape
            lines.append(
                f"{run.label}: which labels {n:,} clients hold of {c:,} classes is not drawn; "
                f"{_FILES}labels.csv."
            )
    return lines


def _too_large_to_draw(result: Result) -> int:
    given = [row.loss for row in result.rounds] + [
        part for e in result.evaluations for part in (e.value, e.loss)
    ]
    recorded = [matrix for row in result.rounds for matrix in row.info.values()]
    return sum(int((np.abs(np.array(part, float)) > LARGEST).sum()) for part in (*given, *recorded))


_FILES = "pomona report with --figures csv writes "

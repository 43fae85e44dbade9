"""Figures of class probabilities: the confusion matrix over all clients, and calibration curves."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.metrics.metric import ACCURACY
from pomona.metrics.outcomes import BINS
from pomona.results.figures import plot
from pomona.results.figures.plot import ReportFigure, Rows
from pomona.results.run_numbers import Run, evaluated, leader, records
from pomona.results.tables.outcomes import GROUP_SIZE, Group, pooled_outcomes

COLUMNS = 2
MAX_PANELS = 12


def calibration(runs: list[Run]) -> ReportFigure | None:
    """Draw a panel per outcome: share of cases over mean probability, for all clients together and
    for each.
    """
    run = leader([run for run in runs if pooled_outcomes(run)])
    outcomes = pooled_outcomes(run) if run else []
    if run is None or not outcomes:
        return None
    figure, axes = _panels(len(outcomes), COLUMNS)
    rows: Rows = []
    for ax, outcome in zip(axes, outcomes, strict=True):
        _curve(ax, run, outcome.name, outcome.groups, outcome.clients.values())
        rows += plot.records(
            f"outcome {OF_A_GROUP}", ((outcome.name, *group) for group in outcome.groups)
        )
    return ReportFigure(
        name="calibration",
        title="Calibration",
        caption=f"{run.label}, {run.model}, {evaluated(run)}: test samples in up to ten groups of "
        "equal size, by rising probability. Thick: all clients' samples, each predicted by its "
        f"client's own headline model{_intervals(rows)}; thin: single clients. Calibrated "
        "probabilities lie on the dashed line; below it they are too high.",
        alt=(
            f"Calibration curves of {run.label}, mean probability against share of cases. "
            f"{_largest_deviation(rows)}"
        ),
        figure=figure,
        rows=rows,
    )


def calibration_by_client(runs: list[Run]) -> ReportFigure | None:
    """Draw a panel per client: share of cases over mean probability, where there is one outcome."""
    run = leader([run for run in runs if len(pooled_outcomes(run)) == 1])
    outcome = pooled_outcomes(run)[0] if run else None
    if run is None or outcome is None or len(outcome.clients) < 2:
        return None
    clients = list(outcome.clients.items())[:MAX_PANELS]
    figure, axes = _panels(len(clients), 3)
    for ax, (client, groups) in zip(axes, clients, strict=True):
        _curve(ax, run, plot.shorten(run.client(client)), groups)
    lines = ((run.client(c), *group) for c, groups in outcome.clients.items() for group in groups)
    rows = plot.records(f"client {OF_A_GROUP}", lines)
    first = f" The first {MAX_PANELS} clients." if len(outcome.clients) > MAX_PANELS else ""
    return ReportFigure(
        name="calibration-by-client",
        title="Calibration by client",
        caption=f"{run.label}, {run.model}, {evaluated(run)}: each client's own test samples, as "
        f"above; groups of some {GROUP_SIZE} samples, at most {BINS}{_intervals(rows)}.{first}",
        alt=f"Calibration curves of {len(clients)} clients, {run.label}. "
        f"{_largest_deviation(rows, 'client')}",
        figure=figure,
        rows=rows,
    )


def _panels(count: int, most_columns: int) -> tuple[plot.Figure, list[Any]]:
    """Return a figure and its panels for calibration curves."""
    columns = min(most_columns, count)
    lines = -(-count // columns)
    height = (2.7 if columns < 3 else 1.75) * lines + 0.3
    figure, axes = plot.panels(plot.WIDTH, height, lines, columns, sharex=True, sharey=True)
    for ax in axes.flat[count:]:
        ax.set_visible(False)
    figure.supxlabel("mean probability of a group", fontsize="medium")
    figure.supylabel("share of cases", fontsize="medium")
    return figure, list(axes.flat[:count])


def _curve(
    ax: Any, run: Run, name: str, groups: Sequence[Group], thin: Iterable[Sequence[Group]] = ()
) -> None:
    """Draw groups of samples as a line with intervals, and others as thin lines."""
    ax.plot([0, 1], [0, 1], color=plot.FRAME, linestyle=(0, (4, 2)), linewidth=1)
    for points in thin:
        ax.plot(*list(zip(*points, strict=True))[:2], color=plot.FRAME, linewidth=0.7, alpha=0.7)
    means, shares, lows, highs, *_ = zip(*groups, strict=True)
    ends = np.array([lows, highs], float)  # NaN, and so no bar, without an interval
    reach = np.maximum(0, [shares - ends[0], ends[1] - shares])
    ax.errorbar(means, shares, reach, fmt="-o", c=run.style.colour, markersize=4, elinewidth=1)
    ax.set(title=plot.shorten(name, 30), xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    ax.set(xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
    plot.grid(ax)


def _intervals(rows: Rows) -> str:
    return ", with 95 % intervals" if any(row["low"] is not None for row in rows) else ""


OF_A_GROUP = "mean_probability share low high cases samples"
"""Columns of a ``Group``."""


def _largest_deviation(rows: Rows, key: str = "outcome") -> str:
    """Describe the group with the largest distance from the diagonal in a sentence."""
    group = max(rows, key=lambda row: abs(row["share"] - row["mean_probability"]))
    return (
        f"Largest deviation, {group[key]}: mean probability {group['mean_probability']:.2f}, "
        f"but {group['share']:.2f} of {group['samples']} samples are cases."
    )


MAX_CLASSES = 200
"""Maximum number of classes drawn."""
MAX_COUNTS = 12
"""Maximum number of classes with counts written into the matrix."""


def confusions(run: Run) -> list[tuple[int, NDArray[np.int64]]]:
    """Return (client, (C, C) confusion counts), rows true classes; matrices of another shape than
    the first are left out.
    """
    matrices = [
        (int(r["client"]), np.asarray(r["confusion"], dtype=np.int64))
        for r in records(run)
        if r.get("confusion")
    ]
    return [
        (c, m)
        for c, m in matrices
        if m.ndim == 2 and m.shape[0] == m.shape[1] > 1 and m.shape == matrices[0][1].shape
    ]


def pooled_confusion(run: Run) -> NDArray[np.int64] | None:
    """Return the confusion counts over all clients; None for fewer than two classes."""
    square = [matrix for _, matrix in confusions(run)]
    total: NDArray[np.int64] | None = sum(square[1:], start=square[0]) if square else None
    return total if total is not None and total.any() else None


def confusion(runs: list[Run]) -> ReportFigure | None:
    """Draw the confusion matrix of the leading run, pooled over clients, each row as shares of its
    true class.
    """
    lead = leader([run for run in runs if pooled_confusion(run) is not None])
    counts = pooled_confusion(lead) if lead else None
    if lead is None or counts is None:
        return None
    n, names = len(counts), class_names(lead, len(counts))
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.zeros(counts.shape), where=totals > 0)
    accuracy = float(np.trace(counts) / counts.sum())
    return ReportFigure(
        name="confusion",
        title="Confusion matrix",
        caption=f"{lead.label}, {lead.model}: each client's test samples, predicted by its "
        "headline model, summed over all clients. "
        f"{'Numbers are samples; the' if n <= MAX_COUNTS else 'The'} colour is their share of the "
        "true class.",
        alt=f"Confusion matrix of {n} classes for {lead.label}: {ACCURACY.text(accuracy)} of "
        f"{counts.sum():,} test samples lie on the diagonal.{_largest_confusion(counts, names)}",
        figure=_draw_matrix(counts, shares, names),
        rows=plot.records(
            "true predicted count share_of_true",
            (
                (names[i], names[j], int(counts[i, j]), float(shares[i, j]))
                # zeros are omitted for many classes
                for i, j in np.argwhere(counts if n > MAX_CLASSES else np.ones_like(counts))
            ),
        ),
    )


def class_names(run: Run, n: int) -> list[str]:
    """Return the names of n classes; their numbers if the record has no names."""
    names = [str(name) for name in run.result.about.get("classes") or ()]
    return names if len(names) == n else [str(c) for c in range(n)]


def _draw_matrix(
    counts: NDArray[np.int64], shares: NDArray[np.float64], names: list[str]
) -> plot.Figure:
    """Draw the matrix (C, C) as a picture of shares, with counts if there is space."""
    texts = [[str(count) if count else "" for count in row] for row in counts]
    figure, ax = plot.matrix(
        100 * shares,
        texts if len(counts) <= MAX_COUNTS else [],
        names,
        {"cmap": "Blues", "vmin": 0, "vmax": 100},
        "share of the true class (%)",
    )
    ax.set(xlabel="predicted class", ylabel="true class")
    return figure


def _largest_confusion(counts: NDArray[np.int64], names: list[str]) -> str:
    """Describe the largest count off the diagonal in a sentence; empty if all predictions are
    right.
    """
    mistakes = np.where(np.eye(len(counts), dtype=bool), -1, counts)
    true, predicted = np.unravel_index(int(mistakes.argmax()), mistakes.shape)
    largest = int(mistakes.max())
    if largest > 0:
        error = f"{names[true]} predicted as {names[predicted]} ({largest} samples)"
        return f" Most frequent error: {error}."
    return ""

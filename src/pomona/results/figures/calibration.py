"""Calibration curves of classes and labels: observed frequencies against predicted probabilities."""

from typing import Any

import numpy as np

from pomona.results.figures.axes import grid, panels
from pomona.results.figures.figure import ReportFigure, Rows
from pomona.results.figures.style import FRAME, shorten
from pomona.results.run_numbers import Run, evaluated, leader
from pomona.results.tables.outcomes import PooledOutcome, pooled_outcomes

COLUMNS = 3


def calibration(runs: list[Run]) -> ReportFigure | None:
    """Draw a panel per outcome: share of cases over mean probability, for all clients together and for each."""
    run = leader([run for run in runs if pooled_outcomes(run)])
    outcomes = pooled_outcomes(run) if run else []
    if run is None or not outcomes:
        return None
    columns = min(COLUMNS, len(outcomes))
    height = -(-len(outcomes) // columns)
    figure, axes = panels(3.3 * columns + 0.6, 3.3 * height, height, columns, sharex=True, sharey=True)
    rows: Rows = []
    for ax, outcome in zip(axes.flat, outcomes, strict=False):
        rows += _panel(ax, run, outcome)
    for ax in axes.flat[len(outcomes) :]:
        ax.set_visible(False)
    figure.supxlabel("mean probability of a group", fontsize="medium")
    figure.supylabel("share of cases", fontsize="medium")
    return ReportFigure(
        name="calibration",
        title="How far probabilities can be believed",
        caption=f"{run.label}, {run.model}, {evaluated(run)}: test samples in up to ten groups of equal size, by "
        "rising probability. Thick: all clients' samples, each predicted by its client's own headline model, with 95 % "
        "intervals; thin: single clients. Probabilities that are right lie on the dashed line; below it they are too "
        "high.",
        alt=f"Calibration curves of {run.label}, mean probability against share of cases. {_far(rows)}",
        figure=figure,
        rows=rows,
    )


def _panel(ax: Any, run: Run, outcome: PooledOutcome) -> Rows:
    """Draw one outcome; return its numbers."""
    ax.plot([0, 1], [0, 1], color=FRAME, linestyle=(0, (4, 2)), linewidth=1)
    for points in outcome.clients.values():
        ax.plot(*zip(*points, strict=True), color=FRAME, linewidth=0.7, alpha=0.7)
    means, shares, lows, highs, *_ = zip(*outcome.groups, strict=True)
    reach = np.maximum(0, [np.subtract(shares, lows), np.subtract(highs, shares)])
    ax.errorbar(means, shares, yerr=reach, color=run.look.colour, marker="o", markersize=4, elinewidth=1)
    ax.set(title=shorten(outcome.name, 30), xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    grid(ax)
    names = ("mean_probability", "share", "low", "high", "cases", "samples")
    return [{"outcome": outcome.name, **dict(zip(names, group, strict=True))} for group in outcome.groups]


def _far(rows: Rows) -> str:
    """Describe the group farthest from the diagonal in a sentence."""
    far = max(rows, key=lambda row: abs(row["share"] - row["mean_probability"]))
    return (
        f"Farthest from right for {far['outcome']}: {far['mean_probability']:.2f} is said where "
        f"{far['share']:.2f} of {far['samples']} samples are cases."
    )

"""The scores of each client's model on every client's test rows, as a matrix."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pomona.metrics.nan_safe import defined, mean_of_known
from pomona.results.figures import plot
from pomona.results.figures.plot import ReportFigure
from pomona.results.figures.relationships import scale
from pomona.results.figures.series import MATRIX, Values
from pomona.results.run_numbers import Run, evaluated, leader
from pomona.results.tables.elsewhere import evaluations, verdict

MAX_NUMBERS = 10
"""Maximum number of clients with scores written into the matrix."""


def matrix(runs: list[Run]) -> ReportFigure | None:
    """Draw the matrix of the leading run that has one on file, of up to ``MATRIX`` clients."""
    run = leader([run for run in runs if evaluations(run) and run.result.clients <= MATRIX])
    recorded = evaluations(run) if run else None
    if run is None or recorded is None:
        return None
    metric, names = run.metric, [run.client(i) for i in range(run.result.clients)]
    values = np.array(recorded.scores, float).clip(-plot.LARGEST, plot.LARGEST)
    scaled = metric.scaled(1.0) * values
    style, _ = scale(scaled)
    colours = "Red is above 0, blue below" if style["vmin"] < 0 else "Darker is higher"
    mean = metric.text(mean_of_known(recorded.means()))
    local = metric.text(mean_of_known(map(defined, values.diagonal())))
    return ReportFigure(
        name="elsewhere",
        title="Each client's model elsewhere",
        caption=f"{run.label}, {run.model}, {evaluated(run)}: test {metric.title} of the model of "
        f"client i on the test rows of client j; framed: on its own client's. {colours}. "
        f"{verdict(run)} {' '.join(recorded.notes)}",
        alt=f"Matrix of {len(names)} clients' models on each other's test rows, {run.label}: test "
        f"{metric.title} {local} on average on their own, {mean} on the others'.",
        figure=_draw(scaled, names, style, metric.heading),
        rows=[
            {"model_of": names[i], "test_rows_of": names[j], metric.name: defined(score)}
            for (i, j), score in np.ndenumerate(values)
        ],
    )


def _draw(values: Values, names: list[str], style: Mapping[str, Any], label: str) -> plot.Figure:
    """Draw the scores (N, N), as numbers too if there is space; the diagonal is framed."""
    from matplotlib.patches import Rectangle

    texts = [["" if np.isnan(v) else f"{v:#.3g}".rstrip(".") for v in line] for line in values]
    figure, ax = plot.matrix(
        values, texts if len(names) <= MAX_NUMBERS else [], names, style, label
    )
    for k in range(len(names)):
        ax.add_patch(Rectangle((k - 0.5, k - 0.5), 1, 1, fill=False, linewidth=1.2))
    ax.set(xlabel="test rows of client j", ylabel="model of client i")
    return figure

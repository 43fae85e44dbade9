"""The picture at the top of a report: each run's gain over training alone with its interval, and
the clients as dots; without such a baseline, the clients' values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pomona.record.paired_gain import Gain
from pomona.results.figures import plot
from pomona.results.figures.plot import ReportFigure, Rows
from pomona.results.gain_presentation import MINUS, Gains, gained_over, interval_text, signed
from pomona.results.run_numbers import Run, baseline, comparable, evaluated
from pomona.results.seeds import over_seeds
from pomona.results.wording import capital

MOST_DOTS = 200
"""More clients than this are drawn as so many quantiles of them: dots would cover each other."""


@dataclass(frozen=True)
class _Row:
    """A run with its clients' values or gains, and their mean; ``gain`` has its interval, if
    known; ``sign`` is "+" for gains.
    """

    run: Run
    values: Mapping[int, float]
    mean: float
    gain: Gain | None = None
    sign: str = ""

    @classmethod
    def of_gains(cls, gains: Gains) -> "_Row":
        """Return the row of a run's gains."""
        mean = gains.mean.value if gains.mean else float(np.mean([*gains.differences.values()]))
        return cls(gains.run, gains.differences, mean, gains.mean, "+")

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the mean."""
        return self.gain.interval if self.gain else None

    @property
    def dots(self) -> list[tuple[str, float]]:
        """Name and value of each client, by value; of many clients, as many quantiles as dots."""
        ordered = sorted(self.values, key=lambda client: (self.values[client], client))
        if len(ordered) > MOST_DOTS:
            spaced = np.linspace(0, len(ordered) - 1, MOST_DOTS).round().astype(int)
            ordered = [ordered[k] for k in spaced]
        return [(self.run.client(client), self.values[client]) for client in ordered]

    def text(self, value: float) -> str:
        """Format a value or a gain."""
        metric = self.run.metric
        return signed(metric, value) if self.sign else metric.number(value)

    @property
    def summary(self) -> str:
        """The run, its mean, and the interval if there is one."""
        ends = ""
        if self.gain and self.interval:
            ends = f" ({interval_text(self.run.metric, self.gain)})"
        return f"{self.run.label} {self.text(self.mean)}{ends}"


def gain(runs: Sequence[Run]) -> ReportFigure | None:
    """Draw the picture; None if no client has a value or the runs cannot be ranked."""
    compared = [run for run in over_seeds(list(runs)) if run.mean is not None]
    if not compared or not comparable(compared):
        return None
    base = baseline(compared, compared[0])
    rows = [_Row.of_gains(g) for g in gained_over(compared, base) if g.differences]
    return _gains(rows, base, compared) if base and rows else _values(compared)


def _gains(rows: Sequence[_Row], base: Run, compared: Sequence[Run]) -> ReportFigure:
    """Draw the gains over the base."""
    metric = compared[0].metric
    unit = " (percentage points)" if metric.percent else ""
    title = f"Gain in {metric.title} over {base.label}, training alone{unit}"
    axis = f"gain over {base.label}{unit or f' ({metric.title})'}"
    caption = f"{_bar(rows)}, {evaluated(base, *compared)}; above 0 is better"
    return _figure(rows, title, axis, caption)


def _values(compared: Sequence[Run]) -> ReportFigure:
    """Draw the clients' values, without a base."""
    metric = compared[0].metric
    rows = [_Row(run, run.values, run.mean) for run in compared if run.mean is not None]
    title = f"{capital(metric.heading)} by client{'' if metric.higher else ', less is better'}"
    caption = f"Bar: mean over clients, {evaluated(*compared)}"
    return _figure(rows, title, f"test {metric.heading}", caption)


def _figure(rows: Sequence[_Row], title: str, axis: str, caption: str) -> ReportFigure:
    """Draw rows, and describe their dots."""
    return ReportFigure(
        name="gain",
        title=title,
        caption=f"{caption}; {_dots(rows)}.",
        alt="; ".join(row.summary for row in rows),
        figure=_draw(rows, axis),
        rows=[line for row in rows for line in _numbers(row)],
        tips={
            f"clients-{k}": [f"{name}: {row.text(value)}" for name, value in row.dots]
            for k, row in enumerate(rows)
        },
    )


def _bar(rows: Sequence[_Row]) -> str:
    """Describe the bars of gains."""
    omits_clients = any(row.gain and row.gain.excluded for row in rows)
    intervals = sum(row.interval is not None for row in rows)
    text = (
        f"Bar: mean over {'the clients with enough test samples' if omits_clients else 'clients'}"
    )
    if not intervals:
        return f"{text}, without an interval"
    text += " with its 95 % interval" + (" where it has one" if intervals < len(rows) else "")
    return text + (", not corrected for the number of runs" if intervals > 1 else "")


def _dots(rows: Sequence[_Row]) -> str:
    """Describe the dots."""
    if max(len(row.values) for row in rows) <= MOST_DOTS:
        return "a dot for each client"
    return f"{MOST_DOTS} dots are quantiles of the clients"


def _draw(rows: Sequence[_Row], axis: str) -> plot.Figure:
    """Draw a line of dots for each run, and its mean with the number at the right."""
    figure, axes = plot.panels(plot.WIDTH, 0.42 * len(rows) + 0.8)
    ax, scaled = axes[0, 0], rows[0].run.metric.scaled
    if rows[0].sign:
        ax.axvline(0, color=plot.FRAME, linewidth=1.2, zorder=0)
    for y, row in enumerate(rows):
        colour = row.run.style.colour
        x = [scaled(value) for _, value in row.dots]
        style: dict[str, Any] = {"alpha": 0.38, "markersize": 6, "markeredgewidth": 0}
        ax.plot(x, [y] * len(x), "o", color=colour, gid=f"clients-{y}", **style)
        low, high = (scaled(end) for end in row.interval or (row.mean, row.mean))
        ax.plot([low, high], [y, y], color=colour, linewidth=3.6, solid_capstyle="round")
        mark = {"markersize": 15, "markeredgewidth": 3.6}
        ax.plot([scaled(row.mean)], [y], "|", color=colour, **mark)
        ax.annotate(
            row.text(row.mean),
            (1.02, y),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=10.5,
            weight="bold",
        )
    ax.set_yticks(range(len(rows)), [plot.shorten(row.run.label, 22) for row in rows])
    ax.tick_params(axis="y", length=0, labelsize=10.5)
    ax.spines["left"].set_visible(False)
    ax.set(ylim=(len(rows) - 0.4, -0.6), xlabel=axis)
    ax.locator_params(axis="x", nbins=5)
    sign = rows[0].sign
    ax.xaxis.set_major_formatter(lambda v, _: f"{v:{sign}g}".replace("-", MINUS) if v else "0")
    plot.grid(ax, along="x")
    return figure


def _numbers(row: _Row) -> Rows:
    """Return a row of the CSV for the mean and one for each client."""
    quantity = "gain_over_separate" if row.sign else "value"
    low, high = row.interval or (None, None)
    lines = [("mean", row.mean, low, high)]
    lines += [(row.run.client(c), value, None, None) for c, value in sorted(row.values.items())]
    names = row.run.label, row.run.metric.name
    return plot.records(
        f"run metric client {quantity} low high", ((*names, *line) for line in lines)
    )

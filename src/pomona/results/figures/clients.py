"""Figures over clients: each client's value and gain, and their distribution."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pomona.results.figures.figure import ReportFigure, Rows
from pomona.results.figures.style import (
    FRAME,
    INK,
    grid,
    legend_below,
    panels,
    shorten,
)
from pomona.results.gain_presentation import Gained, by_client, gained_over
from pomona.results.run_numbers import Run, alike, baseline, evaluated, leader
from pomona.results.seeds import over_seeds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAINS = (
    " Right: what it gains over separate training, with 95 % intervals that compare both models on the same test "
    "samples; left of the dashed line a client would have done better alone."
)
LABELLED = 45
"""Maximum number of rows with name labels."""


def values(runs: list[Run]) -> ReportFigure | None:
    """Draw the last test value of every client and run, and the gain over separate training if it was run.

    Paired runs of several seeds are drawn as one, their mean.
    """
    shown = alike([run for run in over_seeds(runs) if run.values])
    lead = leader(shown)
    if lead is None:
        return None
    compared = gained_over(shown, baseline(shown, lead))
    known = {found.run: found for found in compared}
    gains = _differences(known.get(lead))
    everyone = _sorted(shown, gains or _goodness(lead))
    title = lead.metric.title
    several = [len(run.seeds) for run in shown if run.seeds]
    seeds = f"; where there are several seeds, the mean over {several[0]} seeds" if several else ""
    courses = list(filter(None, map(by_client, compared))) or [_extremes(lead)]
    return ReportFigure(
        name="clients",
        title="What each client gets" + (", and what it gains" if compared else ""),
        caption=f"Test {title} of each client with the headline model of each run, {evaluated(*shown)}"
        f"{seeds}.{GAINS if compared else ''} Sorted by {'gain' if gains else title} with {lead.label}, best on top.",
        alt=f"Dot plot of test {title} for {len(everyone)} clients. {' '.join(courses)}",
        figure=_values_drawn(shown, lead, compared, everyone),
        rows=[row for run in shown for row in _rows(run, known.get(run))],
    )


def _differences(found: Gained | None) -> Mapping[int, float]:
    return found.differences if found else {}


def _goodness(run: Run) -> Mapping[int, float]:
    """Return client -> its value, where more is better."""
    return {c: run.metric.goodness(v) for c, v in run.values.items()}


def _sorted(runs: list[Run], ranking: Mapping[int, float]) -> list[int]:
    """Return every client with a value, lowest in the ranking first; before them those that are not ranked."""
    everyone = {client for run in runs for client in run.values}
    return sorted(everyone, key=lambda c: (ranking.get(c, -np.inf), c))


def _values_drawn(shown: list[Run], lead: Run, compared: list[Gained], everyone: list[int]) -> "Figure":
    """Draw the dots of each run, clients from bottom to top as given, and their gains on the right."""
    place, small = {client: y for y, client in enumerate(everyone)}, len(everyone) > LABELLED
    height = min(max(0.25 * len(everyone) + 1.5, 2.4), 11)
    figure, axes = panels(9.5 if compared else 5.4, height, columns=2 if compared else 1, sharey=True)
    dots = axes[0, 0]
    for run in shown:
        points = [run.metric.scaled(v) for v in run.values.values()], [place[c] for c in run.values]
        dots.plot(*points, label=run.label, zorder=3 if run is lead else 2, **_look(run, small))
    dots.hlines(range(len(everyone)), *_ends(shown, everyone), color=FRAME, linewidth=0.8, alpha=0.6, zorder=0)
    dots.set(xlabel=f"test {lead.metric.heading}", ylim=(-0.7, len(everyone) - 0.3))
    if small:
        dots.set(ylabel=f"{len(everyone)} clients, sorted", yticks=[])
    else:
        dots.set_yticks(range(len(everyone)), [shorten(lead.client(c), 20) for c in everyone])
    grid(dots, along="x")
    if compared:
        _gains(axes[0, -1], compared, place, small)
    legend_below(figure, min(4, len(shown)))
    return figure


def _ends(runs: list[Run], everyone: list[int]) -> tuple[list[float], list[float]]:
    """Return the minimum and maximum value of each client, in display units."""
    every = [[run.metric.scaled(run.values[c]) for run in runs if c in run.values] for c in everyone]
    return list(map(min, every)), list(map(max, every))


def _look(run: Run, small: bool) -> dict[str, Any]:
    size = 3.5 if small else 6.5
    return {
        "color": run.look.colour,
        "marker": run.look.marker,
        "linestyle": "none",
        "markersize": size,
        "alpha": 0.9,
    }


def _gains(ax: Any, compared: list[Gained], place: Mapping[int, int], small: bool) -> None:
    """Draw each client's gain, with whiskers if both models' outputs are on record."""
    step = 0 if small else 0.5 / max(len(compared), 2)
    for k, found in enumerate(compared):
        scaled, aside = found.run.metric.scaled, step * (k - (len(compared) - 1) / 2)
        known = [(c, d, found.clients[c] if c < len(found.clients) else None) for c, d in found.differences.items()]
        x = np.array([scaled(d) for _, d, _ in known])
        ends = np.array([list(map(scaled, g.ends)) if g and g.ends else [scaled(d)] * 2 for _, d, g in known])
        whiskers = np.abs(ends.reshape(-1, 2).T - x)
        rows = [place[c] + aside for c, _, _ in known]
        ax.errorbar(x, rows, xerr=whiskers, elinewidth=0.6 if small else 1.1, zorder=2, **_look(found.run, small))
    unit = "percentage points" if compared[0].run.metric.percent else compared[0].run.metric.title
    ax.axvline(0, color=compared[0].base.look.colour, linestyle=compared[0].base.look.line)
    ax.set(xlabel=f"gain over {compared[0].base.label} ({unit})")
    ax.tick_params(left=False)
    grid(ax, along="x")


def _rows(run: Run, found: Gained | None) -> Rows:
    """Return the figure's numbers, one row per client."""
    last = run.kept
    assert last is not None
    differences = found.differences if found else {}
    bounds = dict(enumerate(found.clients)) if found else {}
    return [
        {
            "run": run.label, "model": last.model, "when": last.when, "round": last.round, "client": client,
            "name": run.client(client), "metric": run.metric.name, "value": value,
            "gain_over_separate": differences.get(client),
            "gain_low": g.low if (g := bounds.get(client)) else None, "gain_high": g.high if g else None,
        }
        for client, value in sorted(run.values.items())
    ]  # fmt: skip


def _extremes(run: Run) -> str:
    ranked = sorted(run.values, key=lambda c: run.metric.goodness(run.values[c]))
    low, high = (f"{run.metric.text(run.values[c])} on {run.client(c)}" for c in (ranked[0], ranked[-1]))
    return f"{run.label} ranges from {low} to {high}."


def spread(runs: list[Run]) -> ReportFigure | None:
    """Draw the distribution of the clients' values of each run: box, every client, worst client and 10th percentile."""
    shown = alike([run for run in runs if len(run.values) > 1])
    if not shown:
        return None
    metric = shown[0].metric
    tenth = "10th percentile" if metric.higher else "90th percentile"
    figure, axes = panels(5.4, 0.55 * len(shown) + 1.5)
    ax = axes[0, 0]
    rows: Rows = []
    for y, run in enumerate(reversed(shown)):
        known = np.sort(list(run.values.values()))
        scaled = np.array([run.metric.scaled(v) for v in known])
        colour = run.look.colour
        ax.boxplot(
            scaled, positions=[y], widths=0.5, orientation="horizontal", whis=(0, 100),
            boxprops={"color": colour}, medianprops={"color": colour, "linewidth": 2.2},
            whiskerprops={"color": colour}, capprops={"color": "none"},
        )  # fmt: skip
        # Neighbours in rank get different heights, so that equal values do not overlap.
        jitter = (np.arange(len(scaled)) * 0.618 % 1 - 0.5) * 0.3
        ax.plot(scaled, y + jitter, "o", color=colour, markersize=3.5, alpha=0.55, markeredgewidth=0)
        least, tail = metric.worst(known.tolist()), float(np.percentile(known, 10 if metric.higher else 90))
        assert least is not None
        ax.plot(run.metric.scaled(least), y, "X", color=colour, markersize=8, markeredgewidth=0)
        look: dict[str, Any] = {"markersize": 7.5, "markerfacecolor": "none", "markeredgewidth": 1.6}
        ax.plot(run.metric.scaled(tail), y, "D", color=colour, **look)
        marks = map(float, np.percentile(known, [25, 50, 75]))
        rows.insert(0, {
            "run": run.label, "model": run.model, "metric": metric.name, "clients": len(known),
            "mean": float(known.mean()), "worst": least, "percentile_10": tail,
            **dict(zip(("lower_quartile", "median", "upper_quartile"), marks, strict=True)),
            "best": metric.best(known.tolist()),
        })  # fmt: skip
    ax.plot([], [], "X", color=INK, linestyle="none", label="worst client")
    ax.plot([], [], "D", color=INK, markerfacecolor="none", linestyle="none", label=tenth)
    ax.set_yticks(range(len(shown)), [run.label for run in reversed(shown)])
    ax.set(xlabel=f"test {metric.heading} of a client", ylim=(-0.6, len(shown) - 0.4))
    ax.tick_params(left=False)
    grid(ax, along="x")
    legend_below(figure, 2)
    return ReportFigure(
        name="spread",
        title="Distribution over clients",
        caption=f"Test {metric.title} of all clients with the headline model of each run, {evaluated(*shown)}: a dot "
        "a client, the box holds the middle half, the bar in it is the median, whiskers reach the extremes."
        + ("" if metric.higher else " Less is better."),
        alt=f"Box plot of the clients' {metric.title}. "
        + " ".join(
            f"{r['run']}: worst {metric.text(r['worst'])}, {tenth} {metric.text(r['percentile_10'])}, "
            f"median {metric.text(r['median'])}."
            for r in rows
        ),
        figure=figure,
        rows=rows,
    )

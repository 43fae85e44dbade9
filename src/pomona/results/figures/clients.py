"""The figure of each client's value and gain."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.results.figures import plot
from pomona.results.figures.plot import ReportFigure, Rows
from pomona.results.gain_presentation import Gains, by_client, gained_over, signed
from pomona.results.run_numbers import Run, baseline, evaluated, leader, same_metric
from pomona.results.seeds import over_seeds
from pomona.results.wording import capital

GAINS = (
    " Right: the gain over separate training; whiskers are 95 % intervals that compare both models "
    "on the same test samples; left of the dashed line a client did worse than alone; a hollow "
    "mark has no interval or is not significant (Holm's correction over all clients of a run)."
)
MAX_LABELS = 45
"""Maximum number of rows with name labels."""


def values(runs: list[Run]) -> ReportFigure | None:
    """Draw the last test value of every client and run, and the gain over separate training if it
    was run.

    Paired runs of several seeds are drawn as one, their mean.
    """
    selected = same_metric([run for run in over_seeds(runs) if run.values])
    lead = leader(selected)
    if lead is None:
        return None
    compared = gained_over(selected, baseline(selected, lead))
    by_run = {gains.run: gains for gains in compared}
    # separate training has no gain to sort by
    sorting = lead if lead in by_run else leader(list(by_run)) or lead
    criterion, ranking = _ranking(sorting, by_run.get(sorting))
    clients = _sorted(selected, ranking)
    title = lead.metric.title
    sentences = list(filter(None, map(by_client, compared))) or [_extremes(lead)]
    subject, gain_note = (" and gain", GAINS) if compared else ("", "")
    return ReportFigure(
        name="clients",
        title=f"{capital(title)}{subject} by client",
        caption=f"Test {title} of each client with the headline model of each run, "
        f"{evaluated(*selected)}{_over_seeds(selected)}.{gain_note} Sorted by {criterion} with "
        f"{sorting.label}, best on top.",
        alt=f"Dot plot of test {title} for {len(clients)} clients. {' '.join(sentences)}",
        figure=_draw_values(selected, lead, compared, clients),
        rows=[row for run in selected for row in _rows(run, by_run.get(run))],
        tips=_tips(selected, compared),
    )


def _tips(runs: list[Run], compared: list[Gains]) -> dict[str, list[str]]:
    """Return the texts of the dots: client, run, value; client, run, gain."""
    tips = {
        f"values-{k}": [
            f"{run.client(client)}, {run.label}: {run.metric.text(value)}"
            for client, value in run.values.items()
        ]
        for k, run in enumerate(runs)
    }
    for k, gains in enumerate(compared):
        metric = gains.run.metric
        texts = [
            f"{gains.run.client(client)}, {gains.run.label}: {signed(metric, value)}"
            for client, value in gains.differences.items()
        ]
        tips[f"gains-{k}"] = texts
        tips[f"gains-{k}-hollow"] = [
            text for text, hollow in zip(texts, _hollow(gains), strict=True) if hollow
        ]
    return tips


def _hollow(gains: Gains) -> list[bool]:
    """Return whether each client's gain is not significant."""
    significant = {*gains.with_verdict("better"), *gains.with_verdict("worse")}
    return [client not in significant for client in gains.differences]


def _over_seeds(runs: list[Run]) -> str:
    """Note that a run is the mean over several seeds; empty if none is."""
    several = [len(run.seeds) for run in runs if run.seeds]
    return f"; where there are several seeds, the mean over {several[0]} seeds" if several else ""


def _ranking(run: Run, gains: Gains | None) -> tuple[str, Mapping[int, float]]:
    """Return the sorting criterion and client -> its gain, else its value; higher is better."""
    if gains and gains.differences:
        return "gain", gains.differences
    return run.metric.title, {c: run.metric.goodness(v) for c, v in run.values.items()}


def _sorted(runs: list[Run], ranking: Mapping[int, float]) -> list[int]:
    """Return every client with a value, lowest in the ranking first, unranked ones before them."""
    clients = {client for run in runs for client in run.values}
    return sorted(clients, key=lambda c: (ranking.get(c, -np.inf), c))


def _draw_values(
    runs: list[Run], lead: Run, compared: list[Gains], clients: list[int]
) -> plot.Figure:
    """Draw the dots of each run, clients from bottom to top as given, and their gains on the
    right.
    """
    positions, small = {client: y for y, client in enumerate(clients)}, len(clients) > MAX_LABELS
    height = min(max(0.25 * len(clients) + 1.5, 2.4), 11)
    figure, axes = plot.panels(plot.WIDTH, height, columns=2 if compared else 1, sharey=True)
    dots = axes[0, 0]
    for k, run in enumerate(runs):
        x, y = map(run.metric.scaled, run.values.values()), map(positions.__getitem__, run.values)
        dots.plot(
            list(x),
            list(y),
            label=run.label,
            zorder=3 if run is lead else 2,
            gid=f"values-{k}",
            **_marker_style(run, small),
        )
    dots.hlines(
        range(len(clients)),
        *_ranges(runs, clients),
        color=plot.FRAME,
        linewidth=0.8,
        alpha=0.6,
        zorder=0,
        rasterized=small,
    )
    dots.set(xlabel=f"test {lead.metric.heading}", ylim=(-0.7, len(clients) - 0.3))
    plot.label_ticks(dots.yaxis, [plot.shorten(lead.client(c), 20) for c in clients], MAX_LABELS)
    if small:
        dots.set_ylabel(f"{len(clients)} clients, sorted")
    plot.grid(dots, along="x")
    if compared:
        _gains(axes[0, -1], compared, positions, small)
    plot.legend_below(figure, min(4, len(runs)))
    return figure


def _ranges(runs: list[Run], clients: list[int]) -> tuple[list[float], list[float]]:
    """Return the minimum and maximum value of each client, in display units."""
    by_client = [
        [run.metric.scaled(run.values[c]) for run in runs if c in run.values] for c in clients
    ]
    return list(map(min, by_client)), list(map(max, by_client))


def _marker_style(run: Run, small: bool) -> dict[str, Any]:
    size = 3.5 if small else 6.5
    return {
        "color": run.style.colour,
        "marker": run.style.marker,
        "linestyle": "none",
        "markersize": size,
        "alpha": 0.9,
        "rasterized": small,
    }


def _gains(ax: Any, compared: list[Gains], positions: Mapping[int, int], small: bool) -> None:
    """Draw each client's gain, with whiskers if both models' outputs are on record."""
    step = 0 if small else 0.5 / max(len(compared), 2)
    for k, gains in enumerate(compared):
        offset = step * (k - (len(compared) - 1) / 2)
        x, whiskers = _scaled_gains(gains)
        rows = np.array([positions[client] + offset for client in gains.differences])
        style, width = _marker_style(gains.run, small), 0.6 if small else 1.1
        style["gid"] = f"gains-{k}"
        plot.estimates(ax, x, rows, _hollow(gains), style, xerr=whiskers, elinewidth=width)
    metric, base = compared[0].run.metric, compared[0].base
    unit = "percentage points" if metric.percent else metric.title
    ax.axvline(0, color=base.style.colour, linestyle=base.style.line)
    ax.set(xlabel=f"gain over {plot.shorten(base.label)}\n({unit})")
    ax.tick_params(left=False)
    ax.locator_params(axis="x", nbins=4)
    plot.grid(ax, along="x")


def _scaled_gains(gains: Gains) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return gains (n,) in display units, and distances (2, n) to the ends of their intervals."""
    scaled, intervals = gains.run.metric.scaled, dict(enumerate(gains.clients))
    x = np.array([scaled(difference) for difference in gains.differences.values()])
    bounds = x[:, None].repeat(2, axis=1)
    for row, client in enumerate(gains.differences):
        gain = intervals.get(client)
        if gain and gain.interval:
            bounds[row] = [scaled(end) for end in gain.interval]
    return x, np.abs(bounds.T - x)


def _rows(run: Run, gains: Gains | None) -> Rows:
    """Return the figure's numbers, one row per client."""
    e, metric = run.reported, run.metric.name
    assert e is not None
    differences = gains.differences if gains else {}
    intervals = {k: (g.low, g.high) for k, g in enumerate(gains.clients if gains else ()) if g}
    shared, unknown = (run.label, e.model, e.when, e.round), (None, None)
    return plot.records(
        "run model when round client name metric value gain_over_separate gain_low gain_high",
        (
            (*shared, c, run.client(c), metric, v, differences.get(c), *intervals.get(c, unknown))
            for c, v in sorted(run.values.items())
        ),
    )


def _extremes(run: Run) -> str:
    ranked = sorted(run.values, key=lambda c: run.metric.goodness(run.values[c]))
    low, high = (
        f"{run.metric.text(run.values[c])} on {run.client(c)}" for c in (ranked[0], ranked[-1])
    )
    return f"{run.label} ranges from {low} to {high}."

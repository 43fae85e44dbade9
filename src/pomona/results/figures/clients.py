"""Figures over clients: each client's value and gain, and their distribution."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.results.figures import plot
from pomona.results.figures.plot import ReportFigure, Rows
from pomona.results.gain_presentation import Gained, by_client, gained_over
from pomona.results.run_numbers import Run, alike, baseline, evaluated, leader
from pomona.results.seeds import over_seeds

GAINS = (
    " Right: what it gains over separate training, with 95 % intervals that compare both models on "
    "the same test samples; left of the dashed line a client did worse than alone on these; a "
    "hollow mark is a gain that this data cannot tell from none (all clients of a run "
    "together, Holm)."
)
LABELLED = 45
"""Maximum number of rows with name labels."""


def values(runs: list[Run]) -> ReportFigure | None:
    """Draw the last test value of every client and run, and the gain over separate training if it
    was run.

    Paired runs of several seeds are drawn as one, their mean.
    """
    shown = alike([run for run in over_seeds(runs) if run.values])
    lead = leader(shown)
    if lead is None:
        return None
    compared = gained_over(shown, baseline(shown, lead))
    known = {found.run: found for found in compared}
    # separate training has no gain to sort by
    first = lead if lead in known else leader(list(known)) or lead
    by, ranking = _ranking(first, known.get(first))
    everyone = _sorted(shown, ranking)
    title = lead.metric.title
    courses = list(filter(None, map(by_client, compared))) or [_extremes(lead)]
    more, right = (", and what it gains", GAINS) if compared else ("", "")
    return ReportFigure(
        name="clients",
        title=f"What each client gets{more}",
        caption=f"Test {title} of each client with the headline model of each run, "
        f"{evaluated(*shown)}"
        f"{_over_seeds(shown)}.{right} Sorted by {by} with {first.label}, best on top.",
        alt=f"Dot plot of test {title} for {len(everyone)} clients. {' '.join(courses)}",
        figure=_values_drawn(shown, lead, compared, everyone),
        rows=[row for run in shown for row in _rows(run, known.get(run))],
    )


def _over_seeds(runs: list[Run]) -> str:
    """Note that a run is the mean over several seeds; empty if none is."""
    several = [len(run.seeds) for run in runs if run.seeds]
    return f"; where there are several seeds, the mean over {several[0]} seeds" if several else ""


def _ranking(run: Run, found: Gained | None) -> tuple[str, Mapping[int, float]]:
    """Return by what clients are sorted, and client -> its gain, else its value; more is better."""
    if found and found.differences:
        return "gain", found.differences
    return run.metric.title, {c: run.metric.goodness(v) for c, v in run.values.items()}


def _sorted(runs: list[Run], ranking: Mapping[int, float]) -> list[int]:
    """Return every client with a value, lowest in the ranking first; before them those that are not
    ranked.
    """
    everyone = {client for run in runs for client in run.values}
    return sorted(everyone, key=lambda c: (ranking.get(c, -np.inf), c))


def _values_drawn(
    shown: list[Run], lead: Run, compared: list[Gained], everyone: list[int]
) -> plot.Figure:
    """Draw the dots of each run, clients from bottom to top as given, and their gains on the
    right.
    """
    place, small = {client: y for y, client in enumerate(everyone)}, len(everyone) > LABELLED
    height = min(max(0.25 * len(everyone) + 1.5, 2.4), 11)
    figure, axes = plot.panels(
        9.5 if compared else 5.4, height, columns=2 if compared else 1, sharey=True
    )
    dots = axes[0, 0]
    for run in shown:
        x, y = map(run.metric.scaled, run.values.values()), map(place.__getitem__, run.values)
        dots.plot(
            list(x), list(y), label=run.label, zorder=3 if run is lead else 2, **_look(run, small)
        )
    dots.hlines(
        range(len(everyone)),
        *_ends(shown, everyone),
        color=plot.FRAME,
        linewidth=0.8,
        alpha=0.6,
        zorder=0,
    )
    dots.set(xlabel=f"test {lead.metric.heading}", ylim=(-0.7, len(everyone) - 0.3))
    plot.named(dots.yaxis, [plot.shorten(lead.client(c), 20) for c in everyone], LABELLED)
    if small:
        dots.set_ylabel(f"{len(everyone)} clients, sorted")
    plot.grid(dots, along="x")
    if compared:
        _gains(axes[0, -1], compared, place, small)
    plot.legend_below(figure, min(4, len(shown)))
    return figure


def _ends(runs: list[Run], everyone: list[int]) -> tuple[list[float], list[float]]:
    """Return the minimum and maximum value of each client, in display units."""
    every = [
        [run.metric.scaled(run.values[c]) for run in runs if c in run.values] for c in everyone
    ]
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
        aside = step * (k - (len(compared) - 1) / 2)
        x, whiskers = _scaled_gains(found)
        rows = np.array([place[client] + aside for client in found.differences])
        look, sure = _look(found.run, small), {*found.told("better"), *found.told("worse")}
        open_, width = [client not in sure for client in found.differences], 0.6 if small else 1.1
        plot.estimates(ax, x, rows, open_, look, xerr=whiskers, elinewidth=width)
    metric, base = compared[0].run.metric, compared[0].base
    unit = "percentage points" if metric.percent else metric.title
    ax.axvline(0, color=base.look.colour, linestyle=base.look.line)
    ax.set(xlabel=f"gain over {base.label} ({unit})")
    ax.tick_params(left=False)
    plot.grid(ax, along="x")


def _scaled_gains(found: Gained) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return gains (n,) in display units, and distances (2, n) to the ends of their intervals."""
    scaled, intervals = found.run.metric.scaled, dict(enumerate(found.clients))
    x = np.array([scaled(difference) for difference in found.differences.values()])
    ends = x[:, None].repeat(2, axis=1)
    for row, client in enumerate(found.differences):
        gain = intervals.get(client)
        if gain and gain.ends:
            ends[row] = [scaled(end) for end in gain.ends]
    return x, np.abs(ends.T - x)


def _rows(run: Run, found: Gained | None) -> Rows:
    """Return the figure's numbers, one row per client."""
    last = run.kept
    assert last is not None
    differences = found.differences if found else {}
    bounds = dict(enumerate(found.clients)) if found else {}
    return [
        {
            "run": run.label,
            "model": last.model,
            "when": last.when,
            "round": last.round,
            "client": client,
            "name": run.client(client),
            "metric": run.metric.name,
            "value": value,
            "gain_over_separate": differences.get(client),
            "gain_low": g.low if (g := bounds.get(client)) else None,
            "gain_high": g.high if g else None,
        }
        for client, value in sorted(run.values.items())
    ]


def _extremes(run: Run) -> str:
    ranked = sorted(run.values, key=lambda c: run.metric.goodness(run.values[c]))
    low, high = (
        f"{run.metric.text(run.values[c])} on {run.client(c)}" for c in (ranked[0], ranked[-1])
    )
    return f"{run.label} ranges from {low} to {high}."


def spread(runs: list[Run]) -> ReportFigure | None:
    """Draw the distribution of the clients' values of each run: box, every client, worst client and
    10th percentile.
    """
    shown = alike([run for run in runs if len(run.values) > 1])
    if not shown:
        return None
    metric = shown[0].metric
    tenth = "10th percentile" if metric.higher else "90th percentile"
    rows: Rows = [_distribution(run) for run in shown]
    figure, axes = plot.panels(5.4, 0.55 * len(shown) + 1.5)
    ax = axes[0, 0]
    for y, (run, row) in enumerate(zip(reversed(shown), reversed(rows), strict=True)):
        _box(ax, y, run, row)
    ax.plot([], [], "X", color=plot.INK, linestyle="none", label="worst client")
    ax.plot([], [], "D", color=plot.INK, markerfacecolor="none", linestyle="none", label=tenth)
    ax.set_yticks(range(len(shown)), [run.label for run in reversed(shown)])
    ax.set(xlabel=f"test {metric.heading} of a client", ylim=(-0.6, len(shown) - 0.4))
    ax.tick_params(left=False)
    plot.grid(ax, along="x")
    plot.legend_below(figure, 2)
    return ReportFigure(
        name="spread",
        title="Distribution over clients",
        caption=f"Test {metric.title} of all clients with the headline model of each run, "
        f"{evaluated(*shown)}: a dot "
        "a client, the box holds the middle half, the bar in it is the median, whiskers reach the "
        "extremes." + ("" if metric.higher else " Less is better."),
        alt=f"Box plot of the clients' {metric.title}. "
        + " ".join(
            f"{r['run']}: worst {metric.text(r['worst'])}, {tenth} "
            f"{metric.text(r['percentile_10'])}, median {metric.text(r['median'])}."
            for r in rows
        ),
        figure=figure,
        rows=rows,
    )


def _distribution(run: Run) -> dict[str, Any]:
    """Return a run's named numbers over its clients."""
    known, metric = np.sort(list(run.values.values())), run.metric
    return {
        "run": run.label,
        "model": run.model,
        "metric": metric.name,
        "clients": len(known),
        "mean": float(known.mean()),
        "worst": metric.worst(known.tolist()),
        "percentile_10": float(np.percentile(known, 10 if metric.higher else 90)),
        "lower_quartile": float(np.percentile(known, 25)),
        "median": float(np.percentile(known, 50)),
        "upper_quartile": float(np.percentile(known, 75)),
        "best": metric.best(known.tolist()),
    }


def _box(ax: Any, y: int, run: Run, row: Mapping[str, Any]) -> None:
    """Draw one run at a height: box, clients, worst client and 10th percentile."""
    scaled, colour = (
        np.array([run.metric.scaled(v) for v in np.sort(list(run.values.values()))]),
        run.look.colour,
    )
    ax.boxplot(
        scaled,
        positions=[y],
        widths=0.5,
        orientation="horizontal",
        whis=(0, 100),
        boxprops={"color": colour},
        medianprops={"color": colour, "linewidth": 2.2},
        whiskerprops={"color": colour},
        capprops={"color": "none"},
    )
    # Neighbours in rank get different heights, so that equal values do not overlap.
    jitter = (np.arange(len(scaled)) * 0.618 % 1 - 0.5) * 0.3
    ax.plot(scaled, y + jitter, "o", color=colour, markersize=3.5, alpha=0.55, markeredgewidth=0)
    ax.plot(run.metric.scaled(row["worst"]), y, "X", color=colour, markersize=8, markeredgewidth=0)
    look: dict[str, Any] = {"markersize": 7.5, "markerfacecolor": "none", "markeredgewidth": 1.6}
    ax.plot(run.metric.scaled(row["percentile_10"]), y, "D", color=colour, **look)

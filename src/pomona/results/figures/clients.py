"""Figures over clients: the value and the gain of each, their spread, and what gets confused with what."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.results.figures.axes import bare, grid, legend_below, panels
from pomona.results.figures.figure import ReportFigure, Rows
from pomona.results.figures.style import (
    BASELINE,
    BASELINE_DASH,
    DARK,
    FRAME,
    INK,
    PALE,
    PALETTE,
    colour_of,
    marker_of,
    shorten,
)
from pomona.results.gain_over_run import Gained, by_client, gained
from pomona.results.run_numbers import Run, alike, baseline, headline, leader, percent

LABELLED = 45
"""Rows of a figure that still carry a name each."""


def values(runs: list[Run]) -> ReportFigure | None:
    """Last test value of every client and run, and the gain over separate training where it was run."""
    shown = alike([run for run in runs if run.values])
    lead = leader(shown)
    if lead is None:
        return None
    metric, base = lead.metric, baseline(shown, lead)
    compared = [gained(run, base) for run in shown if base and run is not base and run.scenario == base.scenario]
    by_gain = next((found.differences for found in compared if found.run is lead), None)
    ranking: Mapping[int, float] = by_gain or {c: metric.goodness(v) for c, v in lead.values.items()}
    everyone = sorted({c for run in shown for c in run.values}, key=lambda c: (ranking.get(c, -np.inf), c))
    place = {client: y for y, client in enumerate(everyone)}

    height = min(max(0.25 * len(everyone) + 1.5, 2.4), 11)
    figure, axes = panels(9.5 if compared else 5.4, height, columns=2 if compared else 1, sharey=True)
    dots = axes[0, 0]
    small = len(everyone) > LABELLED
    for run in shown:
        points = [run.scaled(v) for v in run.values.values()], [place[c] for c in run.values]
        dots.plot(*points, label=run.label, zorder=3 if run is lead else 2, **_look(run, small))
    every = [[run.scaled(run.values[c]) for run in shown if c in run.values] for c in everyone]
    dots.hlines(
        range(len(everyone)), [min(v) for v in every], [max(v) for v in every],
        color=FRAME, linewidth=0.8, alpha=0.6, zorder=0,
    )  # fmt: skip
    dots.set(xlabel=f"test {metric.heading}", ylim=(-0.7, len(everyone) - 0.3))
    if small:
        dots.set(ylabel=f"{len(everyone)} clients, sorted", yticks=[])
    else:
        dots.set_yticks(range(len(everyone)), [shorten(lead.client(c), 20) for c in everyone])
    grid(dots, along="x")
    if compared:
        _gains(axes[0, -1], compared, place, small)
    legend_below(figure, min(4, len(shown)))
    return ReportFigure(
        name="clients",
        title="What each client gets" + (", and what it gains" if compared else ""),
        caption=f"Test {metric.title} of each client with the headline model of each run, after the last round "
        "evaluated."
        + (" Right: what it gains over separate training, with 95 % intervals that compare both models on the same "
           "test samples; left of the dashed line a client would have done better alone." if compared else "")
        + f" Sorted by {'gain' if by_gain else metric.title} with {lead.label}, best on top.",
        alt=f"Dot plot of test {metric.title} for {len(everyone)} clients. "
        + " ".join([text for found in compared if (text := by_client(found))] or [_extremes(lead)]),
        figure=figure,
        rows=[row for run in shown for row in _rows(run, next((f for f in compared if f.run is run), None))],
    )  # fmt: skip


def _look(run: Run, small: bool) -> dict[str, Any]:
    shown = run.result.presentation
    size = 3.5 if small else 6.5
    return {
        "color": colour_of(shown),
        "marker": marker_of(shown),
        "linestyle": "none",
        "markersize": size,
        "alpha": 0.9,
    }


def _gains(ax: Any, compared: list[Gained], place: Mapping[int, int], small: bool) -> None:
    """What each client gains, with whiskers where the records hold both models' answers."""
    step = 0 if small else 0.5 / max(len(compared), 2)
    for k, found in enumerate(compared):
        run, aside = found.run, step * (k - (len(compared) - 1) / 2)
        known = [(c, d, found.clients[c] if c < len(found.clients) else None) for c, d in found.differences.items()]
        x = np.array([run.scaled(d) for _, d, _ in known])
        ends = np.array(
            [[run.scaled(g.low), run.scaled(g.high)] if g else [v, v] for v, (_, _, g) in zip(x, known, strict=True)]
        )
        whiskers = np.abs(ends.reshape(-1, 2).T - x)
        rows = [place[c] + aside for c, _, _ in known]
        ax.errorbar(x, rows, xerr=whiskers, elinewidth=0.6 if small else 1.1, zorder=2, **_look(run, small))
    unit = "percentage points" if compared[0].run.metric.percent else compared[0].run.metric.title
    ax.axvline(0, color=PALETTE[BASELINE], linestyle=BASELINE_DASH)
    ax.set(xlabel=f"gain over {compared[0].base.label} ({unit})")
    ax.tick_params(left=False)
    grid(ax, along="x")


def _rows(run: Run, found: Gained | None) -> Rows:
    """The numbers of the figure, a row a client."""
    last = run.last
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
    """The distribution of the clients' values of each run: box, every client, the worst and the 10th percentile."""
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
        scaled = np.array([run.scaled(v) for v in known])
        colour = colour_of(run.result.presentation)
        ax.boxplot(
            scaled, positions=[y], widths=0.5, orientation="horizontal", whis=(0, 100),
            boxprops={"color": colour}, medianprops={"color": colour, "linewidth": 2.2},
            whiskerprops={"color": colour}, capprops={"color": "none"},
        )  # fmt: skip
        # Neighbours in rank go to different heights, so that equal values stay apart.
        jitter = (np.arange(len(scaled)) * 0.618 % 1 - 0.5) * 0.3
        ax.plot(scaled, y + jitter, "o", color=colour, markersize=3.5, alpha=0.55, markeredgewidth=0)
        least, tail = metric.worst(known.tolist()), float(np.percentile(known, 10 if metric.higher else 90))
        assert least is not None
        ax.plot(run.scaled(least), y, "X", color=colour, markersize=8, markeredgewidth=0)
        look: dict[str, Any] = {"markersize": 7.5, "markerfacecolor": "none", "markeredgewidth": 1.6}
        ax.plot(run.scaled(tail), y, "D", color=colour, **look)
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
        title="How evenly the clients fare",
        caption=f"Test {metric.title} of all clients with the headline model of each run, last round evaluated: a dot "
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


def records(run: Run) -> list[dict[str, Any]]:
    """The final test records of the headline model, by client."""
    key = headline(run.result)
    mine = [r for r in run.result.final if (r.get("model"), r.get("when")) == key and r.get("split") == "test"]
    return sorted(mine, key=lambda record: int(record["client"]))


def confusions(run: Run) -> list[tuple[int, NDArray[np.int64]]]:
    """(client, (C, C) confusion counts), rows true classes; without those of another shape than the first."""
    known = [(int(r["client"]), np.asarray(r["confusion"], dtype=np.int64)) for r in records(run) if r.get("confusion")]
    return [(c, m) for c, m in known if m.ndim == 2 and m.shape[0] == m.shape[1] > 1 and m.shape == known[0][1].shape]


def pooled_confusion(run: Run) -> NDArray[np.int64] | None:
    """The confusion counts over all clients; None without at least two classes."""
    square = [matrix for _, matrix in confusions(run)]
    total: NDArray[np.int64] | None = sum(square[1:], start=square[0]) if square else None
    return total if total is not None and total.any() else None


def confusion(runs: list[Run]) -> ReportFigure | None:
    """The confusion matrix of the leading run, pooled over clients, each row as shares of its true class."""
    lead = leader([run for run in runs if pooled_confusion(run) is not None])
    counts = pooled_confusion(lead) if lead else None
    if lead is None or counts is None:
        return None
    n = len(counts)
    given = [str(name) for name in lead.result.about.get("classes") or ()]
    names = given if len(given) == n else [str(c) for c in range(n)]
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.zeros(counts.shape), where=totals > 0)
    side = min(max(0.4 * n + 1.5, 3.4), 8)
    figure, axes = panels(side + 0.7, side, layout="compressed")
    ax = axes[0, 0]
    image = ax.imshow(100 * shares, cmap="Blues", vmin=0, vmax=100, interpolation="none")
    if n <= 12:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                ax.text(
                    column,
                    row,
                    count,
                    ha="center",
                    va="center",
                    fontsize=9 if n <= 10 else 8,
                    color=PALE if shares[row, column] > 0.55 else DARK,
                )
    if n <= LABELLED:
        short = [shorten(name, 12) for name in names]
        upright = n > 3 and max(map(len, short)) > 2
        ax.set_xticks(range(n), short, rotation=90 if upright else 0)
        ax.set_yticks(range(n), short)
    bare(ax)
    ax.set(xlabel="predicted class", ylabel="true class")
    figure.colorbar(image, ax=ax, label="share of the true class (%)", fraction=0.046, pad=0.03).outline.set_visible(
        False
    )
    right = float(np.trace(counts) / counts.sum())
    wrong = np.where(np.eye(n, dtype=bool), -1, counts)
    true, said = np.unravel_index(int(wrong.argmax()), wrong.shape)
    most = (
        f" The commonest mistake: {names[true]} taken for {names[said]}, {wrong.max()} times."
        if wrong.max() > 0
        else ""
    )
    return ReportFigure(
        name="confusion",
        title="What is taken for what",
        caption=f"{lead.label}, {lead.model}: each client's test samples judged by the model it uses, added up over "
        f"all clients. {'Numbers are samples; the' if n <= 12 else 'The'} colour is their share of the true class.",
        alt=f"Confusion matrix of {n} classes for {lead.label}: {percent(right)} % of {counts.sum():,} test samples "
        f"lie on the diagonal.{most}",
        figure=figure,
        rows=[
            {"true": names[i], "predicted": names[j], "count": int(count), "share_of_true": float(shares[i, j])}
            for (i, j), count in np.ndenumerate(counts)
        ],
    )

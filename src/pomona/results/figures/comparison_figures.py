"""Figures of a comparison: critical-difference diagram, curves by round, ablations, and gains by
client.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from pomona.core.table import grouped
from pomona.core.toml import flat, is_number
from pomona.metrics.client_statistics import Spread, spread
from pomona.metrics.metric import Metric
from pomona.record.paired_gain import Gain, jointly
from pomona.results.comparison import Comparison, ComparisonRow
from pomona.results.figures import plot
from pomona.results.figures.plot import Points, ReportFigure, Rows
from pomona.results.method_colours import Style, styles
from pomona.results.significance import Ranking
from pomona.results.wording import capital, slug

MIN_POINTS = 3
"""Minimum number of values for a curve."""
FEW = 10
"""Number of clients from which their gains are drawn as a line, without names."""
WIDTH = 0.5
"""Width of a client's points; clients are 1 apart."""


def diagram(ranking: Ranking) -> ReportFigure:
    """Draw mean ranks on a line; bars join methods that do not differ (Demšar 2006, figure 1)."""
    k = len(ranking.methods)
    fits = ranking.difference <= k - 1
    rows_a_side = (k + 1) // 2
    figure, [[axes]] = plot.panels(plot.WIDTH, 1.3 + 0.27 * rows_a_side)
    axes.axis("off")
    # Room for the longest name at each side, in points of which a letter takes about 4.9.
    width = 4.9 * max(len(_name(ranking, i)) for i in range(k))
    side = width * (k - 0.2) / (72 * plot.WIDTH - 2 * width)
    axes.set_xlim(0.6 - side, k + 0.4 + side)
    axes.set_ylim(-(0.45 * rows_a_side + 0.35 * len(ranking.cliques) + 0.4), 1.1)
    axes.plot([1, k], [0, 0], color=plot.INK, linewidth=1.2)
    for tick in range(1, k + 1):
        axes.plot([tick, tick], [0, 0.12], color=plot.INK, linewidth=1)
        axes.text(tick, 0.2, str(tick), ha="center", va="bottom", fontsize=8)
    if fits:
        axes.plot([1, 1 + ranking.difference], [0.75, 0.75], color=plot.FRAME, linewidth=2)
        axes.text(
            1 + ranking.difference / 2,
            0.8,
            f"CD = {ranking.difference:.2f}",
            ha="center",
            va="bottom",
        )
    for position in range(k):
        _leader_line(axes, ranking, position, left=position < rows_a_side)
    for number, (first, last) in enumerate(ranking.cliques):
        span = [ranking.mean_ranks[ranking.order[p]] for p in (first, last)]
        y = -0.22 - 0.35 * number
        style: dict[str, Any] = {"color": plot.INK, "linewidth": 3.2, "solid_capstyle": "butt"}
        axes.plot([span[0] - 0.06, span[1] + 0.06], [y, y], **style)
    rows: Rows = [
        {"method": ranking.methods[i], "mean_rank": ranking.mean_ranks[i]} for i in ranking.order
    ]
    caption = (
        f"Mean ranks over {ranking.blocks} scenarios, best on the left. Thick bars join methods "
        "that do not differ by Wilcoxon's signed-rank test with Holm's correction at 5 %; CD is "
        "Nemenyi's critical "
        "difference" + ("." if fits else f", {ranking.difference:.2f} ranks, wider than the line.")
    )
    alt = "; ".join(f"{r['method']} {r['mean_rank']:.2f}" for r in rows)
    return ReportFigure("critical-difference", "Critical differences", caption, alt, figure, rows)


def _leader_line(axes: Any, ranking: Ranking, position: int, *, left: bool) -> None:
    """Draw the line from a method's mean rank to its name, on the left or on the right."""
    k, i = len(ranking.methods), ranking.order[position]
    row, rank = position if left else k - 1 - position, ranking.mean_ranks[i]
    y = -(0.35 * len(ranking.cliques) + 0.3) - 0.45 * row
    side, gap = (0.75, -0.1) if left else (k + 0.25, 0.1)
    axes.plot([rank, rank, side], [0, y, y], color=plot.FRAME, linewidth=0.9)
    style: dict[str, Any] = {"ha": "right" if left else "left", "va": "center", "fontsize": 8}
    axes.text(side + gap, y, _name(ranking, i), **style)


def _name(ranking: Ranking, i: int) -> str:
    """Return a method's name, shortened, with its mean rank."""
    return f"{plot.shorten(ranking.methods[i], 18)} {ranking.mean_ranks[i]:.2f}"


def _draw_lines(
    comparison: Comparison, curves: Mapping[str, Points], height: float
) -> tuple[plot.Figure, Any]:
    """Draw a line for each method's row, in its style; return the figure and its axes."""
    figure, [[axes]] = plot.panels(plot.WIDTH, height)
    styles = _styles(comparison)
    for row, points in curves.items():
        axes.plot(*zip(*points, strict=True), label=row, **_line_style(styles[row]))
    return figure, axes


def _label_lines(comparison: Comparison, axes: Any, curves: Mapping[str, Points]) -> None:
    """Write names at the ends of lines if there are many, and show the grid."""
    styles = _styles(comparison)
    plot.name_ends(axes, {row: (points, styles[row].colour) for row, points in curves.items()})
    axes.grid(axis="y")


def curves(comparison: Comparison, scenario: str) -> ReportFigure | None:
    """Draw the test metric of every method by round, averaged over clients and seeds."""
    every_line = [(e, _curve(e)) for e in comparison.in_scenario(scenario)]
    lines = [(e, curve) for e, curve in every_line if len(curve) > 1]
    if not lines:
        return None
    metric, column = lines[0][0].metric, lines[0][0].column
    points: dict[str, Points] = {
        e.row: [(r, metric.scaled(s.mean)) for r, s in curve.items()] for e, curve in lines
    }
    figure, axes = _draw_lines(comparison, points, 4.2)
    for entry, curve in lines:
        _band(axes, curve, metric, _styles(comparison)[entry.row].colour)
    _label_lines(comparison, axes, points)
    axes.set(xlabel="round", ylabel=f"test {metric.heading}")
    plot.legend_below(figure, 2)
    rows = [row for e, curve in lines for row in _spread_rows(e, curve)]
    last = "; ".join(f"{e.row} {metric.number(list(c.values())[-1].mean)}" for e, c in lines)
    caption = (
        "Mean over clients of the headline model of the method, mean over seeds; the band is ± "
        f"their standard deviation.{plot.coinciding(points)}"
    )
    return ReportFigure(
        f"curves-{slug(scenario)}", column, caption, f"At the end: {last}", figure, rows
    )


def _band(axes: Any, curve: Mapping[int, Spread], metric: Metric, colour: str) -> None:
    """Draw the standard deviations over seeds around a curve."""
    low, high = (
        [metric.scaled(s.mean + sign * (s.std or 0)) for s in curve.values()] for sign in (-1, 1)
    )
    axes.fill_between(list(curve), low, high, color=colour, alpha=0.12, linewidth=0)


def _spread_rows(entry: ComparisonRow, curve: Mapping[int, Spread]) -> Rows:
    lines = ((entry.row, number, s.mean, s.std, s.n) for number, s in curve.items())
    return plot.records(f"method round {entry.metric.name} std n", lines)


def _line_style(style: Style) -> dict[str, Any]:
    return {"color": style.colour, "linestyle": style.line}


def _curve(entry: ComparisonRow) -> dict[int, Spread]:
    """Return round -> the metric over seeds."""
    points = grouped(pair for curve in entry.curve() for pair in zip(*curve, strict=True))
    spreads = {number: spread(values) for number, values in points.items()}
    return {number: s for number, s in spreads.items() if s}


def gains_by_client(comparison: Comparison, scenario: str) -> ReportFigure | None:
    """Draw each client's gain over local training by method: of few clients as points with their
    names and intervals, of many sorted, as a line; None without gains.
    """
    gains = {
        entry.row: {client: gain for client, gain in enumerate(gained[0]) if gain}
        for entry, gained in zip(comparison.entries, comparison.gained, strict=True)
        if entry.scenario == scenario and not isinstance(gained, str)
    }
    if not gains:
        return None
    first = next(e for e in comparison.in_scenario(scenario) if e.cells)
    metric, names = first.metric, first.cells[0]["figures"]["clients"]
    if len(names) < FEW:
        figure, axes = _draw_points(comparison, gains, metric, names)
        note = (
            "; whiskers are each client's own 95 % interval, a hollow mark is a gain that is not "
            "significant (Holm's correction over all clients of a method)."
        )
    else:
        figure, axes, note = _draw_sorted(comparison, gains, metric)
    axes.axhline(0, color=plot.FRAME, linewidth=1)
    unit = "percentage points" if metric.percent else metric.title
    axes.set_ylabel(f"gain over Separate ({unit})")
    plot.legend_below(figure, 2)
    alt = "; ".join(
        f"{row}: {sum(g.value < 0 for g in by_client.values())} of {len(by_client)} below zero"
        for row, by_client in gains.items()
    )
    caption = (
        f"Gain of each client in {metric.title} over Separate, for the models, seeds and test "
        "samples of the table of gains; below zero a client did worse than alone on these samples"
        f"{note}"
    )
    title = f"Gain by client: {comparison.in_scenario(scenario)[0].column}"
    return ReportFigure(
        f"gains-{slug(scenario)}", title, caption, alt, figure, _gain_rows(gains, metric, names)
    )


def _gain_rows(
    gains: Mapping[str, Mapping[int, Gain]], metric: Metric, names: Sequence[str]
) -> Rows:
    """Return a row of the CSV for each method and client, by gain."""
    return plot.records(
        "method client metric gain_over_separate gain_low gain_high",
        (
            (row, names[c], metric.name, g.value, g.low, g.high)
            for row, by_client in gains.items()
            for c, g in sorted(by_client.items(), key=lambda pair: pair[1].value)
        ),
    )


def _draw_sorted(
    comparison: Comparison, gains: Mapping[str, Mapping[int, Gain]], metric: Metric
) -> tuple[plot.Figure, Any, str]:
    """Draw each method's sorted gains as a line; also return a note on lines that coincide."""
    points = {
        row: _by_share([metric.scaled(g.value) for g in by_client.values()])
        for row, by_client in gains.items()
    }
    figure, axes = _draw_lines(comparison, points, 4.0)
    _label_lines(comparison, axes, points)
    axes.set_xlabel("share of the clients, sorted by gain")
    return figure, axes, f".{plot.coinciding(points)}"


def _draw_points(
    comparison: Comparison,
    gains: Mapping[str, Mapping[int, Gain]],
    metric: Metric,
    names: Sequence[str],
) -> tuple[plot.Figure, Any]:
    """Draw a point for each client and method, the methods of a client side by side."""
    figure, [[axes]] = plot.panels(plot.WIDTH, 3.6)
    styles, step = _styles(comparison), WIDTH / max(5, len(gains))
    for k, (row, by_client) in enumerate(gains.items()):
        x = np.array([c + step * (k - (len(gains) - 1) / 2) for c in by_client])
        y = np.array([metric.scaled(g.value) for g in by_client.values()])
        bounds = [
            [metric.scaled(end) for end in g.interval or (g.value, g.value)]
            for g in by_client.values()
        ]
        hollow = [verdict not in ("better", "worse") for verdict in jointly([*by_client.values()])]
        style = {"color": styles[row].colour, "marker": styles[row].marker, "linestyle": "none"}
        whiskers = np.abs(np.transpose(bounds) - y)
        plot.estimates(axes, x, y, hollow, style | {"label": row}, yerr=whiskers, elinewidth=0.9)
    plot.label_ticks(axes.xaxis, [plot.shorten(name) for name in names], FEW)
    plot.grid(axes)
    return figure, axes


def _by_share(values: Sequence[float]) -> Points:
    """Return (share of the values below and half of itself, value) in rising order."""
    return [((i + 0.5) / len(values), v) for i, v in enumerate(sorted(values))]


def ablations(comparison: Comparison) -> list[ReportFigure]:
    """Draw the test metric against one setting, if at least three cells differ only in it."""
    finished = [(flat(e.settings), e) for e in comparison.entries if e.cells]
    numbers = sorted({k for tree, _ in finished for k, v in tree.items() if is_number(v)})
    return [
        _ablation(comparison, key, lines) for key in numbers if (lines := _lines(finished, key))
    ]


def _lines(
    finished: Sequence[tuple[Mapping[str, Any], ComparisonRow]], key: str
) -> list[list[tuple[float, ComparisonRow]]]:
    """Return groups of cells that differ in one key only, with at least three values of it."""

    def other_settings(item: tuple[Mapping[str, Any], ComparisonRow]) -> str:
        return repr(sorted((k, v) for k, v in item[0].items() if k != key))

    candidates = sorted(
        (item for item in finished if is_number(item[0].get(key))), key=other_settings
    )
    groups = [list(group) for _, group in groupby(candidates, key=other_settings)]
    lines = [sorted(((t[key], e) for t, e in group), key=lambda line: line[0]) for group in groups]
    return [line for line in lines if len({x for x, _ in line}) >= MIN_POINTS]


def _ablation(
    comparison: Comparison, key: str, lines: Sequence[Sequence[tuple[float, ComparisonRow]]]
) -> ReportFigure:
    figure, [[axes]] = plot.panels(plot.WIDTH, 3.6)
    rows: Rows = []
    metric = lines[0][0][1].metric
    trees = [flat(line[0][1].settings) for line in lines]
    labels = [
        _label(tree, trees, key) or line[0][1].row for tree, line in zip(trees, lines, strict=True)
    ]
    for label, line, style in zip(labels, lines, styles(labels), strict=True):
        points = [(x, s) for x, e in line if (s := comparison.ours(e))]
        _with_deviations(
            axes, points, metric, label=label, marker=style.marker, **_line_style(style)
        )
        rows += [
            {"line": label, key: x, metric.name: s.mean, "std": s.std, "n": s.n} for x, s in points
        ]
    axes.set(xlabel=key, ylabel=f"test {metric.heading}")
    axes.grid(axis="y")
    plot.legend_below(figure, 1)
    caption = (
        f"{capital(metric.title)}, {comparison.count}, ± standard deviation over seeds. All other "
        "settings are equal."
    )
    alt = "; ".join(f"{r['line']}, {r[key]}: {metric.number(r[metric.name])}" for r in rows)
    return ReportFigure(
        f"ablation-{slug(key)}", f"{capital(metric.title)} by {key}", caption, alt, figure, rows
    )


def _with_deviations(
    axes: Any, points: Sequence[tuple[float, Spread]], metric: Metric, **style: Any
) -> None:
    """Draw means over seeds with their standard deviations."""
    means = [metric.scaled(s.mean) for _, s in points]
    deviations = [metric.scaled(s.std or 0) for _, s in points]
    axes.errorbar([x for x, _ in points], means, deviations, capsize=3, **style)


def _label(tree: Mapping[str, Any], trees: Sequence[Mapping[str, Any]], key: str) -> str:
    """Return a label that distinguishes a line from the others."""
    keys = [k for k in tree if k != key and any(t.get(k) != tree[k] for t in trees)]
    return ", ".join(f"{k}={tree[k]}" for k in keys[:4])


def _styles(comparison: Comparison) -> dict[str, Style]:
    """Return each method's style by row, the same in all pictures of a page."""
    rows = {e.method: e.row for e in reversed(comparison.entries)}
    by_method = dict(
        zip(comparison.methods, styles(rows.get(m, m) for m in comparison.methods), strict=True)
    )
    return {e.row: by_method[e.method] for e in comparison.entries}

"""Figures of a comparison: critical-difference diagram, curves by round, ablations, and gains by
client.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from pomona.core.toml import flat, is_number
from pomona.metrics.client_statistics import Spread, spread
from pomona.metrics.metric import Metric
from pomona.record.paired_gain import Gain, jointly
from pomona.results.comparison import Comparison, ComparisonRow
from pomona.results.figures import plot
from pomona.results.figures.plot import Points, ReportFigure, Rows
from pomona.results.method_colours import Look, looks
from pomona.results.significance import Ranking
from pomona.results.wording import capital, slug

FEWEST = 3
"""Minimum number of values for a curve."""
FEW = 10
"""Number of clients from which their gains are drawn as a line, without names."""
WIDTH = 0.5
"""Width of a client's points; clients are 1 apart."""


def diagram(ranking: Ranking) -> ReportFigure:
    """Draw mean ranks on a line; bars join methods that do not differ (Demsar 2006, figure 1)."""
    k = len(ranking.methods)
    fits = ranking.difference <= k - 1
    half = (k + 1) // 2
    figure, [[axes]] = plot.panels(8.6, 1.3 + 0.27 * half)
    axes.axis("off")
    axes.set_xlim(-0.55 * k, 1.55 * k + 1)
    axes.set_ylim(-(0.45 * half + 0.35 * len(ranking.cliques) + 0.4), 1.1)
    axes.plot([1, k], [0, 0], color=plot.INK, linewidth=1.2)
    for tick in range(1, k + 1):
        axes.plot([tick, tick], [0, 0.12], color=plot.INK, linewidth=1)
        axes.text(tick, 0.2, str(tick), ha="center", va="bottom")
    if fits:
        axes.plot([1, 1 + ranking.difference], [0.75, 0.75], color=plot.FRAME, linewidth=2)
        axes.text(
            1 + ranking.difference / 2,
            0.8,
            f"CD = {ranking.difference:.2f}",
            ha="center",
            va="bottom",
        )
    for place in range(k):
        _leader_line(axes, ranking, place, left=place < half)
    for number, (first, last) in enumerate(ranking.cliques):
        ends = [ranking.mean_ranks[ranking.order[p]] for p in (first, last)]
        y = -0.22 - 0.35 * number
        axes.plot(
            [ends[0] - 0.06, ends[1] + 0.06],
            [y, y],
            color=plot.INK,
            linewidth=3.2,
            solid_capstyle="butt",
        )
    rows: Rows = [
        {"method": ranking.methods[i], "mean_rank": ranking.mean_ranks[i]} for i in ranking.order
    ]
    caption = (
        f"Mean ranks over {ranking.blocks} scenarios, best on the left. Thick bars join methods "
        "that do not differ by "
        "Wilcoxon's signed-rank test with Holm's correction at 5 %; CD is Nemenyi's critical "
        "difference" + ("." if fits else f", {ranking.difference:.2f} ranks, wider than the line.")
    )
    alt = "; ".join(f"{r['method']} {r['mean_rank']:.2f}" for r in rows)
    return ReportFigure("critical-difference", "Critical differences", caption, alt, figure, rows)


def _leader_line(axes: Any, ranking: Ranking, place: int, *, left: bool) -> None:
    """Draw the line from a method's mean rank to its name, on the left or on the right."""
    k, i = len(ranking.methods), ranking.order[place]
    row, rank = place if left else k - 1 - place, ranking.mean_ranks[i]
    y = -(0.35 * len(ranking.cliques) + 0.3) - 0.45 * row
    side, gap = (0.75, -0.1) if left else (k + 0.25, 0.1)
    text = f"{ranking.methods[i]} {rank:.2f}" if left else f"{rank:.2f} {ranking.methods[i]}"
    axes.plot([rank, rank, side], [0, y, y], color=plot.FRAME, linewidth=0.9)
    axes.text(side + gap, y, text, ha="right" if left else "left", va="center")


def _lines_drawn(
    made: Comparison, drawn: Mapping[str, Points], height: float
) -> tuple[plot.Figure, Any]:
    """Draw a line for each method's row, in its look; return the figure and its axes."""
    figure, [[axes]] = plot.panels(7.6, height)
    shown = _looks(made)
    for row, points in drawn.items():
        axes.plot(*zip(*points, strict=True), label=row, **_line(shown[row]))
    return figure, axes


def _named(made: Comparison, axes: Any, drawn: Mapping[str, Points]) -> None:
    """Write names at the ends of lines if there are many, and show the grid."""
    shown = _looks(made)
    plot.name_ends(axes, {row: (points, shown[row].colour) for row, points in drawn.items()})
    axes.grid(axis="y")


def curves(made: Comparison, scenario: str) -> ReportFigure | None:
    """Draw the test metric of every method by round, averaged over clients and seeds."""
    lines = [(e, curve) for e in made.of(scenario) if len(curve := _curve(e)) > 1]
    if not lines:
        return None
    metric, column = lines[0][0].metric, lines[0][0].column
    drawn: dict[str, Points] = {
        e.row: [(r, metric.scaled(s.mean)) for r, s in curve.items()] for e, curve in lines
    }
    figure, axes = _lines_drawn(made, drawn, 4.2)
    for entry, curve in lines:
        _band(axes, curve, metric, _looks(made)[entry.row].colour)
    _named(made, axes, drawn)
    axes.set(xlabel="round", ylabel=f"test {metric.heading}")
    plot.legend_below(figure, 4)
    rows = [row for e, curve in lines for row in _spread_rows(e, curve)]
    last = "; ".join(f"{e.row} {metric.number(list(c.values())[-1].mean)}" for e, c in lines)
    caption = (
        "Mean over clients of the headline model of the method, mean over seeds; the band is ± "
        f"their standard deviation.{plot.hidden(drawn)}"
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
    return [
        {"method": entry.row, "round": number, entry.metric.name: s.mean, "std": s.std, "n": s.n}
        for number, s in curve.items()
    ]


def _line(look: Look) -> dict[str, Any]:
    return {"color": look.colour, "linestyle": look.line}


def _curve(entry: ComparisonRow) -> dict[int, Spread]:
    """Return round -> the metric over seeds."""
    points: dict[int, list[float | None]] = {}
    for rounds, values in entry.curve():
        for number, value in zip(rounds, values, strict=True):
            points.setdefault(number, []).append(value)
    found = {number: spread(values) for number, values in points.items()}
    return {number: s for number, s in found.items() if s}


def who_benefits(made: Comparison, scenario: str) -> ReportFigure | None:
    """Draw each client's gain over local training by method: of few clients as points with their
    names and intervals, of many sorted, as a line; None without gains.
    """
    found = {
        entry.row: {client: gain for client, gain in enumerate(gained[0]) if gain}
        for entry, gained in zip(made.entries, made.gained, strict=True)
        if entry.scenario == scenario and not isinstance(gained, str)
    }
    if not found:
        return None
    first = next(e for e in made.of(scenario) if e.cells)
    metric, names = first.metric, first.cells[0]["figures"]["clients"]
    if len(names) < FEW:
        figure, axes = _points_drawn(made, found, metric, names)
        more = (
            "; whiskers are each client's own 95 % interval, a hollow mark is a gain that this "
            "data cannot tell from none (all clients of a method together, Holm)."
        )
    else:
        drawn = {
            row: _by_share([metric.scaled(g.value) for g in of.values()])
            for row, of in found.items()
        }
        figure, axes = _lines_drawn(made, drawn, 4.0)
        _named(made, axes, drawn)
        axes.set_xlabel("share of the clients, sorted by gain")
        more = "." + plot.hidden(drawn)
    axes.axhline(0, color=plot.FRAME, linewidth=1)
    axes.set_ylabel(
        f"gain over Separate ({'percentage points' if metric.percent else metric.title})"
    )
    plot.legend_below(figure, 4)
    rows: Rows = [
        {
            "method": row,
            "client": names[c],
            "metric": metric.name,
            "gain_over_separate": g.value,
            "gain_low": g.low,
            "gain_high": g.high,
        }
        for row, of in found.items()
        for c, g in sorted(of.items(), key=lambda pair: pair[1].value)
    ]
    alt = "; ".join(
        f"{row}: {sum(g.value < 0 for g in of.values())} of {len(of)} below zero"
        for row, of in found.items()
    )
    caption = (
        f"What each client gains in {metric.title} over Separate, of the models, seeds and test "
        "samples of the table of gains; below zero a client did worse than alone on these samples"
        f"{more}"
    )
    title = f"Who benefits: {made.of(scenario)[0].column}"
    return ReportFigure(f"gains-{slug(scenario)}", title, caption, alt, figure, rows)


def _points_drawn(
    made: Comparison, found: Mapping[str, Mapping[int, Gain]], metric: Metric, names: Sequence[str]
) -> tuple[plot.Figure, Any]:
    """Draw a point for each client and method, the methods of a client side by side."""
    figure, [[axes]] = plot.panels(7.6, 4.0)
    shown, step = _looks(made), WIDTH / max(5, len(found))
    for k, (row, of) in enumerate(found.items()):
        x = np.array([c + step * (k - (len(found) - 1) / 2) for c in of])
        y = np.array([metric.scaled(g.value) for g in of.values()])
        ends = [[metric.scaled(end) for end in g.ends or (g.value, g.value)] for g in of.values()]
        open_ = [verdict not in ("better", "worse") for verdict in jointly([*of.values()])]
        look = {"color": shown[row].colour, "marker": shown[row].marker, "linestyle": "none"}
        whiskers = np.abs(np.transpose(ends) - y)
        plot.estimates(axes, x, y, open_, look | {"label": row}, yerr=whiskers, elinewidth=0.9)
    plot.named(axes.xaxis, [plot.shorten(name) for name in names], FEW)
    plot.grid(axes)
    return figure, axes


def _by_share(values: Sequence[float]) -> Points:
    """Return (share of the values below and half of itself, value) in rising order."""
    return [((i + 0.5) / len(values), v) for i, v in enumerate(sorted(values))]


def ablations(made: Comparison) -> list[ReportFigure]:
    """Draw the test metric against one setting, if at least three cells differ only in it."""
    done = [(flat(e.settings), e) for e in made.entries if e.cells]
    numbers = sorted({k for tree, _ in done for k, v in tree.items() if is_number(v)})
    return [_ablation(made, key, lines) for key in numbers if (lines := _lines(done, key))]


def _lines(
    done: Sequence[tuple[Mapping[str, Any], ComparisonRow]], key: str
) -> list[list[tuple[float, ComparisonRow]]]:
    """Return groups of cells that differ in one key only, with at least three values of it."""

    def rest(item: tuple[Mapping[str, Any], ComparisonRow]) -> str:
        return repr(sorted((k, v) for k, v in item[0].items() if k != key))

    having = sorted((item for item in done if is_number(item[0].get(key))), key=rest)
    groups = [list(group) for _, group in groupby(having, key=rest)]
    lines = [sorted(((t[key], e) for t, e in group), key=lambda line: line[0]) for group in groups]
    return [line for line in lines if len({x for x, _ in line}) >= FEWEST]


def _ablation(
    made: Comparison, key: str, lines: Sequence[Sequence[tuple[float, ComparisonRow]]]
) -> ReportFigure:
    figure, [[axes]] = plot.panels(7.6, 4.0)
    rows: Rows = []
    metric = lines[0][0][1].metric
    trees = [flat(line[0][1].settings) for line in lines]
    labels = [
        _label(tree, trees, key) or line[0][1].row for tree, line in zip(trees, lines, strict=True)
    ]
    for label, line, look in zip(labels, lines, looks(labels), strict=True):
        known = [(x, s) for x, e in line if (s := made.ours(e))]
        _with_deviations(axes, known, metric, label=label, marker=look.marker, **_line(look))
        rows += [
            {"line": label, key: x, metric.name: s.mean, "std": s.std, "n": s.n} for x, s in known
        ]
    axes.set(xlabel=key, ylabel=f"test {metric.heading}")
    axes.grid(axis="y")
    plot.legend_below(figure, 1)
    caption = (
        f"{capital(metric.title)}, {made.count}, ± standard deviation over seeds. All else "
        "is the same."
    )
    alt = "; ".join(f"{r['line']}, {r[key]}: {metric.number(r[metric.name])}" for r in rows)
    return ReportFigure(
        f"ablation-{slug(key)}", f"{capital(metric.title)} by {key}", caption, alt, figure, rows
    )


def _with_deviations(
    axes: Any, known: Sequence[tuple[float, Spread]], metric: Metric, **look: Any
) -> None:
    """Draw means over seeds with their standard deviations."""
    means, deviations = (
        [metric.scaled(s.mean) for _, s in known],
        [metric.scaled(s.std or 0) for _, s in known],
    )
    axes.errorbar([x for x, _ in known], means, deviations, capsize=3, **look)


def _label(tree: Mapping[str, Any], trees: Sequence[Mapping[str, Any]], key: str) -> str:
    """Return a label that distinguishes a line from the others."""
    own = [k for k in tree if k != key and any(t.get(k) != tree[k] for t in trees)]
    return ", ".join(f"{k}={tree[k]}" for k in own[:4])


def _looks(made: Comparison) -> dict[str, Look]:
    """Return each method's look by row, the same in all pictures of a page."""
    rows = {e.method: e.row for e in reversed(made.entries)}
    found = dict(zip(made.methods, looks(rows.get(m, m) for m in made.methods), strict=True))
    return {e.row: found[e.method] for e in made.entries}

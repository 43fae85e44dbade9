"""Figures over rounds: curves of loss and metric, the metric against traffic."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from pomona.metrics.metric import Metric
from pomona.metrics.nan_safe import mean_of_known
from pomona.record.headline import views
from pomona.record.result import Result
from pomona.record.rows import Evaluation
from pomona.results.figures import plot
from pomona.results.figures.plot import Points, ReportFigure, Rows
from pomona.results.run_numbers import Run, same_metric
from pomona.results.run_numbers import runs as runs_of
from pomona.results.wording import capital, size

MEGABYTE = 1e6


def scenario_name(run: Run) -> str:
    """Describe a run's data set and partition; empty if not recorded."""
    names = [run.source, run.setting("partition.name")]
    return ", ".join(str(name) for name in names if name)


def panel(run: Run) -> str:
    """Return the key that runs must share to be drawn in one panel: scenario, loss and metric."""
    return "; ".join(
        text
        for text in (scenario_name(run), run.loss and f"loss {run.loss}", run.metric.title)
        if text
    )


def plotted(*results: Result) -> "plot.Figure | None":
    """Return the drawing of ``curves`` for these results, which a notebook shows also without
    Matplotlib's own integration; None without evaluations.
    """
    with plot.drawing():
        picture = curves(runs_of(list(results)))
    if picture is None:
        return None
    vars(picture.figure)["_repr_png_"] = picture.pixels
    return picture.figure


def curves(runs: list[Run]) -> ReportFigure | None:
    """Draw training loss, if on record, and the test metric, averaged over clients, over rounds.

    Two panels per data set and partition (APPLE, figures 2 and 7), and per loss, since losses are
    not comparable.
    """
    rows: Rows = []
    keys = list(dict.fromkeys(map(panel, runs)))
    with_losses = any(map(_losses, runs))  # private runs do not record them
    n = (1 + with_losses) * len(keys)
    figure, axes = plot.panels(plot.WIDTH, 2.4 * n + 0.8, n)
    for (*upper, lower), key in zip(axes.reshape(len(keys), -1), keys, strict=True):
        group = [run for run in runs if panel(run) == key]
        for run in group:
            rows += _run(upper, lower, run)
        for ax in upper:
            plot.name_ends(ax, _points_by_label(group, _losses))
            if not any(map(_losses, group)):
                ax.text(0.5, 0.5, "not on record", transform=ax.transAxes, ha="center")
                ax.set_yticks([])
        plot.name_ends(lower, _points_by_label(group, _tests))
        _titles(upper, lower, group[0], runs)
    if not rows:
        return None
    plot.over_rounds(*axes.flat)
    plot.grid(*axes.flat)
    plot.legend_below(figure, 2)
    titles = " and ".join(dict.fromkeys(run.metric.title for run in runs))
    above = "Above: the loss during local training, averaged over a round's clients. Below: test "
    return ReportFigure(
        name="curves",
        title=f"{f'Loss and {titles}' if with_losses else capital(titles)} over the rounds",
        caption=f"{above if with_losses else 'Test '}{titles}, each client counting once. A thick "
        "line is the headline model of a run; a thin dotted one is another model of the same run. "
        "“Received” models are at the round of the uploads that they combine."
        + _coinciding(runs, keys),
        alt=" ".join(
            [
                f"Line charts over rounds: {'training loss and ' * with_losses}test {titles}.",
                *_changes(runs),
            ]
        ),
        figure=figure,
        rows=rows,
    )


def _points_by_label(
    runs: list[Run], points_of: Callable[[Run], Points]
) -> dict[str, tuple[Points, str]]:
    """Return the points and the colour of each run that has some, by label."""
    return {run.label: (points, run.style.colour) for run in runs if (points := points_of(run))}


def _coinciding(runs: list[Run], keys: list[str]) -> str:
    """Describe curves of one panel that coincide; empty if there are none."""
    below = " below" * any(map(_losses, runs))
    panels = (
        (_points_by_label([run for run in runs if panel(run) == key], points_of), place)
        for key in keys
        for points_of, place in ((_losses, " above"), (_tests, below))
    )
    return "".join(
        dict.fromkeys(
            plot.coinciding({name: points for name, (points, _) in curves.items()}, place)
            for curves, place in panels
        )
    )


def _titles(upper: Sequence[Any], lower: Any, run: Run, runs: list[Run]) -> None:
    """Set the titles of a row of panels, with what distinguishes it from the others."""
    prefix = f"{scenario_name(run)}: " if len({scenario_name(r) for r in runs}) > 1 else ""
    loss = f" ({run.loss})" if len({r.loss for r in runs}) > 1 else ""
    metric = run.metric
    for ax in upper:
        ax.set(title=f"{prefix}training loss{loss}, mean over clients", ylabel="loss")
    lower.set(
        title=f"{prefix}test {metric.title}, mean over clients",
        ylabel="%" if metric.percent else metric.title,
    )


def _run(upper: Sequence[Any], lower: Any, run: Run) -> Rows:
    """Draw the curves of a run, its losses if there is an upper panel; return their numbers."""
    training = _losses(run)
    for ax in upper:
        _draw(ax, training, run, position=0, label=None if run.test else run.label)
    lines: list[tuple[Any, ...]] = [("train loss", "", "", x, y) for x, y in training]
    for position, (model, stage) in enumerate(views(run.result)):
        pairs = [(e.round, e.mean) for e in run.result.curve(model, stage) if e.mean is not None]
        scaled = [(x, run.metric.scaled(y)) for x, y in pairs]
        _draw(lower, scaled, run, position=position, label=f"{run.label}: {model}, {stage}")
        lines += [(f"test {run.metric.name}", model, stage, x, y) for x, y in pairs]
    columns = "run quantity model when round value"
    return plot.records(columns, ((run.label, *line) for line in lines))


def _losses(run: Run) -> list[tuple[int, float]]:
    losses = [(r.round, mean_of_known(r.loss)) for r in run.result.rounds]
    return [(x, y) for x, y in losses if y is not None]


def _tests(run: Run) -> list[tuple[int, float]]:
    return [(e.round, run.metric.scaled(e.mean)) for e in run.test if e.mean is not None]


def _draw(
    ax: Any, points: Sequence[tuple[float, float]], run: Run, *, position: int, label: str | None
) -> None:
    """Draw one curve of a run; a single point is drawn as a dot.

    ``position``: of the model among the run's; after the first, which is the headline, dotted.
    """
    ax.plot(
        [x for x, _ in points],
        [y for _, y in points],
        color=run.style.colour,
        linestyle=(0, (1, 1.6 * position)) if position else run.style.line,
        linewidth=1.3 if position else 2.0,
        marker=run.style.marker if len(points) == 1 else None,
        label=label,
    )


def _changes(runs: list[Run]) -> list[str]:
    """Describe the start and end of each run's headline curve, one sentence per run."""
    sentences = []
    for run in runs:
        values = [(e.round, e.mean) for e in run.test if e.mean is not None]
        if values:
            (first, start), (last, end) = values[0], values[-1]
            change = (
                f"from {run.metric.text(start)} at round {first} to {run.metric.text(end)} at "
                f"round {last}"
            )
            sentences.append(f"{run.label} ({run.model}) changes {change}.")
    return sentences


def traffic(runs: list[Run]) -> ReportFigure | None:
    """Draw the test metric against the megabytes sent so far, down and up, all clients together."""
    selected = same_metric(runs)
    metric = selected[0].metric
    points = {run: tests for run in selected if (tests := _metric_by_traffic(run))}
    curves = {run: _positive_points(run, tests) for run, tests in points.items()}
    if not any(curves.values()):
        return None
    rows = [row for run, tests in points.items() for row in _traffic_rows(run, tests)]
    final = {row["run"]: row for row in rows}
    return ReportFigure(
        name="traffic",
        title=f"{capital(metric.title)} against traffic",
        caption=f"Test {metric.title} of the headline model, mean over clients, against the total "
        f"traffic so far: downloads and uploads of all clients. Further left is cheaper, "
        f"{'higher' if metric.higher else 'lower'} is better; the marker is the last round. A "
        f"dashed horizontal line is the last value of a run that sends nothing.",
        alt=f"Line chart of test {metric.title} against megabytes sent, logarithmic. "
        + " ".join(
            f"{name} ends at {metric.text(row[metric.name])} after {size(1e6 * row['megabytes'])}."
            for name, row in final.items()
        ),
        figure=_draw_traffic(metric, curves, {run: tests[-1][1] for run, tests in points.items()}),
        rows=rows,
    )


def _draw_traffic(
    metric: Metric, curves: Mapping[Run, Points], last: Mapping[Run, float]
) -> plot.Figure:
    """Draw the curve of each run, or the last value of one that sends nothing."""
    figure, axes = plot.panels(plot.WIDTH, 4.0)
    ax = axes[0, 0]
    for run, curve in curves.items():
        if curve:
            _draw(ax, curve, run, position=0, label=run.label)
            ax.plot(*curve[-1], marker=run.style.marker, color=run.style.colour, markersize=7)
        else:
            style = {"color": run.style.colour, "linestyle": run.style.line}
            ax.axhline(metric.scaled(last[run]), label=f"{run.label} (sends nothing)", **style)
    _decades(ax)
    plot.name_ends(
        ax, {run.label: (curve, run.style.colour) for run, curve in curves.items() if curve}
    )
    ax.set(
        xlabel="MB sent so far, down + up, all clients (log scale)", ylabel=f"test {metric.heading}"
    )
    plot.grid(ax)
    plot.legend_below(figure, 2)
    return figure


def _metric_by_traffic(run: Run) -> list[tuple[float, float, Evaluation]]:
    """Return (megabytes sent so far, value, evaluation) for each test of the headline model."""
    rounds = run.result.rounds
    sums = accumulate((sum(r.bytes_down) + sum(r.bytes_up)) / MEGABYTE for r in rounds)
    megabytes = dict(zip((r.round for r in rounds), sums, strict=True))
    return [
        (megabytes[e.round], e.mean, e)
        for e in run.test
        if e.mean is not None and e.round in megabytes
    ]


def _traffic_rows(run: Run, tests: Sequence[tuple[float, float, Evaluation]]) -> Rows:
    lines = ((run.label, e.model, e.when, e.round, x, y) for x, y, e in tests)
    return plot.records(f"run model when round megabytes {run.metric.name}", lines)


def _positive_points(run: Run, tests: Sequence[tuple[float, float, Evaluation]]) -> Points:
    """Return the points of a curve that a logarithmic axis can show."""
    return [(x, run.metric.scaled(y)) for x, y, _ in tests if x > 0]


def _decades(ax: Any) -> None:
    """Set a logarithmic x axis with plain numbers: every power of ten, and intermediate ticks if
    there are few.
    """
    from matplotlib.ticker import LogLocator, NullLocator

    ax.set_xscale("log")
    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 300 * low else (1.0, 2.0, 5.0)))
    ax.xaxis.set_major_formatter("{x:,.10g}")
    ax.xaxis.set_minor_locator(NullLocator())

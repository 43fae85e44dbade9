"""Figures of clients-by-clients matrices, such as APPLE's directed relationships (its figures 3 and
8).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pomona.metrics.nan_safe import defined
from pomona.results.figures import plot
from pomona.results.figures.plot import ReportFigure
from pomona.results.figures.series import Series, Values, blocks, order
from pomona.results.wording import slug

MAX_PANELS = 6
TOLERANCE = 0.05
"""Distance from the start below which a relationship counts as unchanged."""
TARGET = "#d62728"
MAX_LABELS = 25
"""Maximum number of clients with name labels on a heat map."""
MAX_POINTS = 1500
"""Number of line points from which a panel is drawn as a small picture instead of paths."""


def figures(series: Series) -> list[ReportFigure]:
    """Draw the heat maps of a matrix; over several rounds also its trajectories, and its diagonal
    if it has a heading.
    """
    if series.n < 2:
        return []
    several = len(series.rounds) > 1
    return [
        heatmap(series),
        *([trajectories(series.thinned())] if several else []),
        *([diagonal(series.thinned())] if several and series.quantity.own else []),
    ]


def unmoved(series: Series) -> bool:
    """Return whether APPLE's relationships still equal their initial sample shares after the last
    round.

    The tolerance is ``TOLERANCE``, and for more than ten clients also half a mean share, since all
    shares are then small. False for any other quantity, and if the record lacks the clients'
    numbers of samples.
    """
    sizes = np.array((series.run.result.about.get("sizes") or {}).get("train") or (), dtype=float)
    last = (
        series.values[-1][series.participants] if series.quantity.name == "dr" else np.empty((0, 0))
    )
    if not last.size or last.shape[1] != len(sizes) or not sizes.sum():
        return False
    absent = sorted({e.clients[0] for e in series.run.result.unseen})
    sizes[absent] = 0.0
    deviations = np.delete(np.abs(last - sizes / max(sizes.sum(), 1.0)), absent, axis=1)
    return bool(deviations.size) and bool(
        np.nanmax(deviations) < min(TOLERANCE, 0.5 / deviations.shape[1])
    )


def heatmap(series: Series) -> ReportFigure:
    """Draw the matrix at the first, middle and last round, with clients in clustered order."""
    n, quantity, moments = series.n, series.quantity, series.moments
    absent = [i for i in range(n) if i not in series.participants]
    sequence = [
        series.participants[i]
        for i in order(series.values[-1][np.ix_(series.participants, series.participants)])
    ] + absent
    style, extend = scale(series.values[moments][:, ~np.eye(n, dtype=bool)])
    return ReportFigure(
        name=f"{slug(quantity.name)}-heatmap",
        title=quantity.title,
        caption=(
            f"{series.run.label}: "
            f"{quantity.meaning}{_legend_text(series, style, extend)}{series.absence}"
        ),
        alt=f"Heat maps of {quantity.symbol} between {n} clients with {series.run.label} at "
        f"round{'s' if len(moments) > 1 else ''} "
        f"{', '.join(str(series.rounds[t]) for t in moments)}. "
        f"{_strongest(series)}{_group_means(series)}",
        figure=_maps(series, sequence, style, extend),
        rows=series.records(_columns(series), moments),
    )


def _legend_text(series: Series, style: Mapping[str, Any], extend: str) -> str:
    """Describe the colours, the order and the marks of the heat maps."""
    diverging = style["cmap"].name == "RdBu_r"
    sentences = {
        "Red is positive, blue negative, white zero.": diverging,
        "Darker is higher.": not diverging,
        "The diagonal, each client's entry for itself, is left out.": True,
        "A few extremes exceed the scale, so that the other differences stay visible.": (
            extend != "neither"
        ),
        "Clients with high entries for each other are placed together (clustered on the last "
        "round).": True,
        "They have hardly changed from their initial values, the shares of the samples.": (
            unmoved(series)
        ),
        "A frame holds clients of one true group, unknown to every client.": bool(series.groups),
        "Dots mark the true group of client i's test samples where it differs from its own.": (
            bool(series.strangers)
        ),
    }
    return "".join(f" {sentence}" for sentence, applies in sentences.items() if applies)


def _maps(
    series: Series, sequence: list[int], style: Mapping[str, Any], extend: str
) -> plot.Figure:
    """Draw the last moment with names, and small above it the earlier ones."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    *early, last = series.moments
    grid: list[Any] = [*([early] if early else []), [last] * max(1, len(early))]
    engine = ConstrainedLayoutEngine(compress=True, hspace=0.09)
    figure = Figure(figsize=(plot.WIDTH, 6.2 if early else 4.2), layout=engine)
    axes = figure.subplot_mosaic(grid, height_ratios=[1, 2.2][-len(grid) :])
    for t in series.moments:
        matrix = np.where(~np.eye(series.n, dtype=bool), series.values[t], np.nan)
        image = axes[t].imshow(matrix[np.ix_(sequence, sequence)], interpolation="nearest", **style)
        _mark_groups(axes[t], series, sequence)
        axes[t].set(title=f"round {series.rounds[t]}", xticks=[], yticks=[])
        plot.bare(axes[t])
    names = [series.names[i] for i in sequence]
    size = min(9, 180 / len(names))
    plot.label_ticks(axes[last].xaxis, names, MAX_LABELS, rotation=90, fontsize=size)
    plot.label_ticks(axes[last].yaxis, names, MAX_LABELS, fontsize=size)
    axes[last].set(xlabel="client j", ylabel="client i")
    bar = figure.colorbar(image, ax=axes[last], label=series.quantity.symbol, extend=extend)
    bar.outline.set_visible(False)
    return figure


def _mark_groups(ax: Any, series: Series, sequence: list[int]) -> None:
    """Frame the true groups; dot the clients of the group of a client's test samples if it
    is another one.
    """
    from matplotlib.patches import Rectangle

    style: dict[str, Any] = {"fill": False, "edgecolor": plot.DARK, "linewidth": 1.6}
    for start, length in blocks(sequence, series.groups) if series.groups else ():
        ax.add_patch(Rectangle((start - 0.5, start - 0.5), length, length, **style))
    for row, i in enumerate(sequence):
        if i in series.strangers:
            columns = [
                k for k, j in enumerate(sequence) if series.groups[j] == series.target_groups[i]
            ]
            ax.plot(columns, [row] * len(columns), ".", color=TARGET, markersize=3)


def scale(values: Values) -> tuple[dict[str, Any], str]:
    """Return a colour scale for some numbers, and the ends at which values exceed it.

    Numbers of both signs get a diverging scale around zero, others one from the minimum to the
    maximum. If the maximum is more than three times the 95th percentile of the nonzero numbers, the
    scale ends at that percentile.
    """
    from matplotlib import colormaps

    finite = values[~np.isnan(values)]
    sizes = np.abs(finite[finite != 0])
    limit = float(sizes.max(initial=0.0)) or 1.0
    usual = float(np.percentile(sizes, 95)) if len(sizes) else limit
    limit = usual if limit > 3 * usual else limit
    signed = bool((finite < 0).any())
    low = -limit if signed else float(finite.min(initial=limit))
    low = low if low < limit else 0.0
    beyond = bool((finite < low).any()) + 2 * bool((finite > limit).any())
    extend = ("neither", "min", "max", "both")[beyond]
    colours = colormaps["RdBu_r" if signed else "Blues"].with_extremes(bad=plot.MISSING)
    return {"cmap": colours, "vmin": low, "vmax": limit}, extend


def _columns(series: Series) -> list[str]:
    """Return a name for each client's column."""
    prefix = series.quantity.column or series.quantity.name
    return [f"{prefix} {series.run.client(j)}" for j in range(series.n)]


def _strongest(series: Series) -> str:
    last = np.where(
        np.eye(series.n, dtype=bool) | np.isnan(series.values[-1]), -np.inf, series.values[-1]
    )
    if not np.isfinite(last).any():
        return "No client has an entry for another."
    i, j = (int(k) for k in np.unravel_index(int(last.argmax()), last.shape))
    return (
        f"At the last round, the highest is that of {series.run.client(i)} for "
        f"{series.run.client(j)}, {last[i, j]:.3g}."
    )


def _group_means(series: Series) -> str:
    """Compare entries within true groups to those across, in words; empty if undefined."""
    groups = np.asarray(series.groups)
    if not len(groups):
        return ""
    within = (groups[:, None] == groups[None, :]) & ~np.eye(series.n, dtype=bool)
    across = groups[:, None] != groups[None, :]
    last = series.values[-1]
    if not within.any() or not across.any() or np.isnan(last).any():
        return ""
    return (
        f" The mean is {last[within].mean():.3g} within a true group and "
        f"{last[across].mean():.3g} across groups."
    )


def trajectories(series: Series) -> ReportFigure:
    """Draw each client's row over the rounds, one small panel per client."""
    rounds, values, quantity = series.rounds, series.values, series.quantity
    clients = series.participants[:MAX_PANELS]
    first = ""
    if len(series.participants) > MAX_PANELS:
        first = f" The first {MAX_PANELS} of {series.n} clients are shown."
    highest = [
        i
        for i in clients
        if values[-1, i, i] >= np.nanmax(np.delete(values[-1, i], i), initial=-np.inf)
    ]
    return ReportFigure(
        name=f"{slug(quantity.name)}-trajectories",
        title=quantity.history or quantity.title,
        caption=f"{series.run.label}: {quantity.symbol} over the rounds, a panel for each client "
        "i, a line for each client j; the thick line is its entry for "
        f"itself.{_elsewhere(series)}{first}{series.absence}",
        alt=f"Small line charts of {quantity.symbol} with {series.run.label} over rounds "
        f"{rounds[0]} to {rounds[-1]}, one for each of {len(clients)} clients. At the end, "
        f"{len(highest)} of them have their own entry highest.",
        figure=_small_panels(series, clients),
        rows=series.records(_columns(series), clients=clients),
    )


def _small_panels(series: Series, clients: list[int]) -> plot.Figure:
    columns = min(3, len(clients))
    lines = -(-len(clients) // columns)
    height = 1.4 * lines + 0.9
    figure, axes = plot.panels(
        plot.WIDTH, height, lines, columns, layout=None, sharex=True, sharey=True
    )
    # A constrained layout of so many panels takes as long as all other figures.
    figure.subplots_adjust(
        left=0.13, right=0.99, top=1 - 0.3 / height, bottom=0.95 / height, wspace=0.1, hspace=0.3
    )
    for i, ax in zip(clients, axes.flat, strict=False):
        _draw_row(ax, series, i)
    for ax in list(axes.flat)[len(clients) :]:
        ax.set_visible(False)
    handles = [
        axes.flat[0].plot(
            [], [], color=series.run.style.colour, linewidth=2.4, label="client i itself"
        )[0]
    ]
    if series.groups:
        label = "clients of its true group"
        if series.strangers:
            label = "clients of its test samples' true group"
        handles += axes.flat[0].plot([], [], color=plot.GROUP, label=label)
    handles += axes.flat[0].plot([], [], color=plot.FRAME, label="other clients")
    figure.legend(handles=handles, loc="lower center", ncols=2)
    for ax in axes[:, 0]:
        ax.set_ylabel(series.quantity.symbol)
    plot.over_rounds(*axes[-1])
    return figure


def _draw_row(ax: Any, series: Series, i: int) -> None:
    """Draw client i's row over the rounds, with clients of its group in a separate colour."""
    rounds, values, peers = series.rounds, series.values, [j for j in range(series.n) if j != i]
    group = [j for j in peers if series.groups and series.target_groups[i] == series.groups[j]]
    # Many clients or rounds would be megabytes of paths, so they become one small picture.
    style: dict[str, Any] = {"linewidth": 1.0, "rasterized": series.n * len(rounds) > MAX_POINTS}
    plot.bundle(
        ax,
        rounds,
        values[:, i, [j for j in peers if j not in group]],
        color=plot.FRAME,
        alpha=0.7,
        **style,
    )
    plot.bundle(ax, rounds, values[:, i, group], color=plot.GROUP, **style)
    ax.plot(rounds, values[:, i, i], color=series.run.style.colour, linewidth=2.4)
    ax.set_title(f"{series.names[i]} *" if i in series.strangers else series.names[i])
    plot.grid(ax)


def _elsewhere(series: Series) -> str:
    """Describe clients that are evaluated on samples of another group; else empty."""
    if not series.strangers:
        return ""
    return (
        " A star marks clients whose test samples are of a different true group from their "
        "training samples."
    )


def diagonal(series: Series) -> ReportFigure:
    """Draw every client's entry for itself, over the rounds."""
    n, rounds, quantity = series.n, series.rounds, series.quantity
    symbol = quantity.symbol.replace(", j)", ", i)")
    entries = np.diagonal(series.values, axis1=1, axis2=2)
    labelled = n <= 20
    figure, axes = plot.panels(plot.WIDTH, 3.6)
    ax = axes[0, 0]
    colours = plot.client_colours(n)
    for i in series.participants if labelled else ():
        style: dict[str, Any] = {"color": colours[i], "linewidth": 1.7, "label": series.names[i]}
        ax.plot(rounds, entries[:, i], **style)
    if not labelled:
        thin: dict[str, Any] = {"color": plot.FRAME, "linewidth": 0.8}
        plot.bundle(ax, rounds, entries, rasterized=entries.size > 2 * MAX_POINTS, **thin)
        ax.plot(
            rounds, np.nanmedian(entries, axis=1), color=plot.INK, linewidth=2.4, label="median"
        )
    ax.set_ylabel(symbol)
    plot.over_rounds(ax)
    plot.grid(ax)
    plot.legend_below(figure, 4)
    lowest, highest = (int(pick(entries[-1])) for pick in (np.nanargmin, np.nanargmax))
    return ReportFigure(
        name=f"{slug(quantity.name)}-self",
        title=quantity.own,
        caption=(
            f"{series.run.label}: {symbol}, each client's entry for itself, over the "
            f"rounds.{series.absence}"
        ),
        alt=f"Line chart of {symbol} of {n} clients with {series.run.label} over rounds "
        f"{rounds[0]} to {rounds[-1]}. At the end they range from {entries[-1, lowest]:.3f} "
        f"({series.run.client(lowest)}) to {entries[-1, highest]:.3f} "
        f"({series.run.client(highest)}).",
        figure=figure,
        rows=[
            {
                "run": series.run.label,
                "round": int(r),
                **dict(zip(_columns(series), map(defined, entries[t]), strict=True)),
            }
            for t, r in enumerate(rounds)
        ],
    )

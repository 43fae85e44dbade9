"""Figures of CFL: the clients of each cluster, and the norms that trigger splits."""

from typing import Any, TypeAlias

import numpy as np

from pomona.metrics.nan_safe import defined
from pomona.results.figures import plot
from pomona.results.figures.plot import ReportFigure, Rows
from pomona.results.figures.series import Series
from pomona.results.run_numbers import Run

MAX_LABELS = 45
"""Maximum number of clients with name labels."""
BOUND = "#d55e00"
NORMS = ("update_norm", "cluster_norms")
"""Quantities of clusters in ``info``: a client's own update (n,), its cluster's mean and largest
one (n, 2).
"""
Norm: TypeAlias = tuple[int, float, float]
"""A round, and the norms of a cluster's mean and largest update in it."""


def figures(series: Series, norms: dict[str, Series]) -> list[ReportFigure]:
    """Draw the clusters over the rounds, if there ever were two, and the recorded norms."""
    updates, means = (norms.get(name) for name in NORMS)
    if (
        updates is None
        or means is None
        or updates.values.shape[2] != 1
        or means.values.shape[2] != 2
    ):
        return [clusters(series.thinned())]
    return [
        *([clusters(series.thinned())] if len(cluster_ids(series)) > 1 else []),
        splits(series, updates, means),
    ]


def cluster_ids(series: Series) -> list[int]:
    """Return the numbers of all clusters that ever existed."""
    return [int(c) for c in np.unique(series.values[~np.isnan(series.values)])]


def clusters(series: Series) -> ReportFigure:
    """Draw clients by rounds, with one colour per cluster."""
    n, rounds, labels = series.n, series.rounds, series.values[:, :, 0]
    final = [int(v) for v in labels[-1][~np.isnan(labels[-1])]]
    marked = bool(series.groups) and n <= MAX_LABELS
    numbered = (
        " The number after a name is its true group, unknown to every client." if marked else ""
    )
    return ReportFigure(
        name="cluster-map",
        title=series.quantity.title,
        caption=f"{series.run.label}: {series.quantity.meaning} One colour per cluster; a split of "
        f"round r shows from round r + 1. Sorted by the last cluster.{numbered}{series.absence}",
        alt=f"Chart of {n} clients by rounds {rounds[0]} to {rounds[-1]} with {series.run.label}, "
        f"coloured by cluster. {_sizes(final)}{_agreement(series)}",
        figure=_map(series, final),
        rows=[
            {
                "run": series.run.label,
                "round": int(r),
                "client": i,
                "name": series.run.client(i),
                "cluster": None if np.isnan(labels[t, i]) else int(labels[t, i]),
            }
            for t, r in enumerate(rounds)
            for i in range(n)
        ],
    )


def _map(series: Series, final: list[int]) -> plot.Figure:
    """Draw the clusters (rounds, clients) as a picture, clients sorted by their last cluster."""
    from matplotlib.colors import ListedColormap

    n, rounds, labels = series.n, series.rounds, series.values[:, :, 0]
    ids = cluster_ids(series)
    colours = plot.client_colours(len(ids))
    groups = series.groups or [0] * n
    sequence = sorted(
        range(n), key=lambda i: (np.inf if np.isnan(labels[-1, i]) else labels[-1, i], groups[i], i)
    )
    figure, axes = plot.panels(plot.WIDTH, min(max(0.22 * n + 1.5, 2.6), 9))
    ax = axes[0, 0]
    image = labels[:, sequence].T
    indices = np.where(
        np.isnan(image), np.nan, np.searchsorted(ids, np.nan_to_num(image, nan=ids[0]))
    )
    ax.imshow(
        indices,
        cmap=ListedColormap(colours).with_extremes(bad=plot.MISSING),
        vmin=-0.5,
        vmax=len(ids) - 0.5,
        aspect="auto",
        interpolation="none",
    )
    plot.bare(ax)
    ticks = np.unique(np.linspace(0, len(rounds) - 1, min(len(rounds), 11)).round().astype(int))
    ax.set_xticks(ticks, [str(rounds[t]) for t in ticks])
    ax.set(xlabel="round", ylabel="" if n <= MAX_LABELS else f"{n} clients")
    plot.label_ticks(
        ax.yaxis,
        [series.names[i] + (f" · {groups[i]}" if series.groups else "") for i in sequence],
        MAX_LABELS,
    )
    for c, colour in zip(ids, colours, strict=True):
        ax.plot(
            [],
            [],
            "s",
            color=colour,
            markersize=9,
            label=f"cluster {c}: {final.count(c)} at the end",
        )
    # A plot changes the limits of a picture.
    ax.set(xlim=(-0.5, len(rounds) - 0.5), ylim=(n - 0.5, -0.5))
    plot.legend_below(figure, 2)
    return figure


def _sizes(final: list[int]) -> str:
    counted = sorted({c: final.count(c) for c in final}.items())
    if len(counted) == 1:
        return f"At the end all {len(final)} are in one cluster."
    return "At the end: " + ", ".join(f"{size} in cluster {c}" for c, size in counted) + "."


def _agreement(series: Series) -> str:
    """Describe the adjusted Rand index of the last clusters and the true groups (Hubert and Arabie
    1985).
    """
    if len(set(series.groups)) < 2 or len(series.participants) < 2:
        return ""
    from sklearn.metrics import adjusted_rand_score

    clusters = [int(series.values[-1, i, 0]) for i in series.participants]
    score = adjusted_rand_score([series.groups[i] for i in series.participants], clusters)
    return f" The adjusted Rand index against the true groups is {score:.2f}."


def splits(series: Series, updates: Series, norms: Series) -> ReportFigure:
    """Draw the norms of each cluster's mean and largest update over the rounds, with the thresholds
    of a split.
    """
    run, bounds = series.run, thresholds(updates)
    measured = {c: course for c in cluster_ids(series) if (course := points(series, norms, c))}
    final = [
        f"cluster {c} mean {p[-1][1]:.3g}, largest {p[-1][2]:.3g}" for c, p in measured.items()
    ]
    return ReportFigure(
        name="cluster-norms",
        title="Norms of updates and of their mean",
        caption=f"{run.label}: above the norm of the mean of a cluster's updates, below the "
        "largest norm of one of them; a small mean of large updates means that the members "
        "disagree."
        + (_rule(run, bounds) if bounds else "")
        + (
            ""
            if len(cluster_ids(series)) > 1
            else " No cluster was split: all clients shared one model."
        )
        + updates.absence,
        alt=(
            f"Two line charts of update norms with {run.label}, by cluster, up to round "
            f"{updates.rounds[-1]}. "
        )
        + (
            f"At the last round measured: {'; '.join(final)}."
            if final
            else "No cluster was measured yet."
        ),
        figure=_norms(series, updates, measured, bounds),
        rows=_norm_rows(updates, measured),
    )


def _rule(run: Run, bounds: tuple[float, float]) -> str:
    """Describe when a cluster splits."""
    warmup = run.setting("method.warmup_rounds")
    later = f", after round {warmup}" if warmup else ""
    return (
        f" A cluster splits while the first is below {bounds[0]:.3g} and the second above "
        f"{bounds[1]:.3g}{later}."
    )


def _norms(
    series: Series,
    updates: Series,
    measured: dict[int, list[Norm]],
    bounds: tuple[float, float] | None,
) -> plot.Figure:
    """Draw norms: of mean updates above, of the largest and of clients' own below."""
    client_norms, ids = updates.values[:, :, 0], cluster_ids(series)
    figure, axes = plot.panels(plot.WIDTH, 5.6, 2)
    upper, lower = axes[:, 0]
    plot.bundle(
        lower,
        updates.rounds,
        client_norms,
        color=plot.FRAME,
        linewidth=0.9,
        alpha=0.7,
        rasterized=client_norms.size > 3000,
    )
    lower.plot([], [], color=plot.FRAME, linewidth=0.9, label="update of each client")
    colours = dict(zip(ids, plot.client_colours(len(ids)), strict=True))
    for c, course in measured.items():
        rounds, means, largest = zip(*course, strict=True)
        style: dict[str, Any] = {
            "color": colours[c],
            "linewidth": 2.2,
            "marker": "o" if len(course) == 1 else None,
        }
        upper.plot(rounds, means, **style, label=f"cluster {c}")
        lower.plot(rounds, largest, **style)
    threshold: dict[str, Any] = {"color": BOUND, "linewidth": 1.4, "linestyle": (0, (4, 2))}
    for ax, bound, title in zip(
        axes[:, 0], bounds or (None, None), ("mean", "largest"), strict=True
    ):
        ax.set_title(f"Norm of a cluster's {title} update")
        plot.over_rounds(ax)
        if bound is not None:
            ax.axhline(bound, **threshold)
        ax.set_ylim(bottom=0)
        plot.grid(ax)
    if bounds:
        upper.plot([], [], **threshold, label="threshold of a split")
    plot.legend_below(figure, 2)
    return figure


def _norm_rows(updates: Series, measured: dict[int, list[Norm]]) -> Rows:
    """Return a row per round and client, or cluster."""
    clients = [
        (int(r), "client", i, "update", updates.values[t, i, 0])
        for t, r in enumerate(updates.rounds)
        for i in range(updates.n)
    ]
    clusters = [
        (r, "cluster", c, name, norm)
        for c, course in measured.items()
        for r, *norms in course
        for name, norm in zip(("mean update", "largest update"), norms, strict=True)
    ]
    return [
        {
            "run": updates.run.label,
            "round": r,
            "of": level,
            "number": k,
            "quantity": name,
            "norm": defined(norm),
        }
        for r, level, k, name, norm in clients + clusters
    ]


def points(series: Series, norms: Series, cluster: int) -> list[Norm]:
    """Return (round, mean, largest) of a cluster.

    Values recorded in a round were measured in the previous one.
    """
    cohorts = {row.round: set(row.cohort) for row in series.run.result.rounds}
    measured = []
    for t in range(1, len(norms.rounds)):
        previous, current = int(norms.rounds[t - 1]), int(norms.rounds[t])
        members = set(np.flatnonzero(series.values[t, :, 0] == cluster).tolist())
        # A cluster without participants was not measured: its recorded value is older.
        if (present := members & cohorts[current]) and members & cohorts[previous]:
            mean, largest = norms.values[t, min(present)]
            measured.append((previous, float(mean), float(largest)))
    return measured


def thresholds(updates: Series) -> tuple[float, float] | None:
    """Return the norms below and above which a cluster splits; None if not in the settings."""
    bounds: list[Any] = [updates.run.setting(f"method.{key}") for key in ("eps_mean", "eps_max")]
    if not all(isinstance(bound, int | float) for bound in bounds):
        return None
    relative = updates.run.setting("method.units") == "first-round"
    unit = float(np.nanmean(updates.values[0])) if relative else 1.0
    return bounds[0] * unit, bounds[1] * unit

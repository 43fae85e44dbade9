"""The figure of clusters, as of CFL and IFCA: who is in which, over the rounds."""

import numpy as np

from pomona.results.figures import plot
from pomona.results.figures.plot import ReportFigure
from pomona.results.figures.series import Series

MAX_LABELS = 45
"""Maximum number of clients with name labels."""


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
            {**row, "cluster": None if row["cluster"] is None else int(row["cluster"])}
            for row in series.records(["cluster"])
        ],
    )


def _map(series: Series, final: list[int]) -> plot.Figure:
    """Draw the clusters (rounds, clients) as a picture, clients sorted by their last cluster."""
    from matplotlib.colors import ListedColormap

    n, rounds, labels = series.n, series.rounds, series.values[:, :, 0]
    ids = np.unique(labels[~np.isnan(labels)])
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
        interpolation="nearest",
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

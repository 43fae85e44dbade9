"""Figures of CFL: the clients of each cluster, and the norms that trigger splits."""

from typing import Any

import numpy as np

from pomona.results.figures.figure import ReportFigure, Rows
from pomona.results.figures.series import Series, number
from pomona.results.figures.style import (
    FRAME,
    MISSING,
    bare,
    bundle,
    client_colours,
    grid,
    legend_below,
    over_rounds,
    panels,
)

NAMED = 45
"""Maximum number of clients with name labels."""
BOUND = "#d55e00"
NORMS = ("update_norm", "cluster_norms")
"""Quantities of clusters in ``info``: a client's own update (n,), its cluster's mean and largest one (n, 2)."""


def figures(series: Series, shown: dict[str, Series]) -> list[ReportFigure]:
    """Draw the clusters over the rounds, if there ever were two, and the norms if they are among ``shown``."""
    updates, norms = (shown.get(name) for name in NORMS)
    if updates is None or norms is None or updates.values.shape[2] != 1 or norms.values.shape[2] != 2:
        return [clusters(series.thinned())]
    return [*([clusters(series.thinned())] if len(ever(series)) > 1 else []), splits(series, updates, norms)]


def ever(series: Series) -> list[int]:
    """Return the numbers of all clusters that ever existed."""
    return [int(c) for c in np.unique(series.values[~np.isnan(series.values)])]


def clusters(series: Series) -> ReportFigure:
    """Draw clients by rounds, with one colour per cluster."""
    from matplotlib.colors import ListedColormap

    n, rounds, labels = series.n, series.rounds, series.values[:, :, 0]
    known = ever(series)
    colours = client_colours(len(known))
    last = np.where(np.isnan(labels[-1]), np.inf, labels[-1])
    groups = series.groups or [0] * n
    sequence = sorted(range(n), key=lambda i: (last[i], groups[i], i))
    figure, axes = panels(7.6, min(max(0.22 * n + 1.5, 2.6), 9))
    ax = axes[0, 0]
    places = np.searchsorted(known, np.nan_to_num(labels[:, sequence].T, nan=known[0])).astype(float)
    places[np.isnan(labels[:, sequence].T)] = np.nan
    ax.imshow(
        places, cmap=ListedColormap(colours).with_extremes(bad=MISSING), vmin=-0.5, vmax=len(known) - 0.5,
        aspect="auto", interpolation="none",
    )  # fmt: skip
    bare(ax)
    ticks = np.unique(np.linspace(0, len(rounds) - 1, min(len(rounds), 11)).round().astype(int))
    ax.set_xticks(ticks, [str(rounds[t]) for t in ticks])
    ax.set(xlabel="round")
    if n <= NAMED:
        mark = [f" · {series.groups[i]}" if series.groups else "" for i in sequence]
        ax.set_yticks(range(n), [series.names[i] + m for i, m in zip(sequence, mark, strict=True)])
    else:
        ax.set(yticks=[], ylabel=f"{n} clients")
    final = [int(v) for v in labels[-1][~np.isnan(labels[-1])]]
    for c, colour in zip(known, colours, strict=True):
        ax.plot([], [], "s", color=colour, markersize=9, label=f"cluster {c}: {final.count(c)} at the end")
    # A plot changes the limits of a picture.
    ax.set(xlim=(-0.5, len(rounds) - 0.5), ylim=(n - 0.5, -0.5))
    legend_below(figure, 3)
    marked = bool(series.groups) and n <= NAMED
    numbered = " The number behind a name is its true group, which no client knows." if marked else ""
    return ReportFigure(
        name="cluster-map",
        title=series.quantity.title,
        caption=f"{series.run.label}: {series.quantity.meaning} A colour a cluster; a split of round r shows from "
        f"round r + 1. Sorted by the last cluster.{numbered}{series.absence}",
        alt=f"Chart of {n} clients by rounds {rounds[0]} to {rounds[-1]} with {series.run.label}, coloured by cluster. "
        f"{_sizes(final)}{_agreement(series)}",
        figure=figure,
        rows=[
            {
                "run": series.run.label, "round": int(r), "client": i, "name": series.run.client(i),
                "cluster": None if np.isnan(labels[t, i]) else int(labels[t, i]),
            }
            for t, r in enumerate(rounds)
            for i in range(n)
        ],
    )  # fmt: skip


def _sizes(final: list[int]) -> str:
    counted = sorted({c: final.count(c) for c in final}.items())
    if len(counted) == 1:
        return f"At the end all {len(final)} are in one cluster."
    return "At the end: " + ", ".join(f"{size} in cluster {c}" for c, size in counted) + "."


def _agreement(series: Series) -> str:
    """Describe the adjusted Rand index of the last clusters and the true groups (Hubert and Arabie 1985)."""
    if len(set(series.groups)) < 2 or len(series.seen) < 2:
        return ""
    from sklearn.metrics import adjusted_rand_score

    found = [int(series.values[-1, i, 0]) for i in series.seen]
    score = adjusted_rand_score([series.groups[i] for i in series.seen], found)
    return f" The adjusted Rand index against the true groups is {score:.2f}."


def splits(series: Series, updates: Series, norms: Series) -> ReportFigure:
    """Draw the norms of each cluster's mean and largest update over the rounds, with the thresholds of a split."""
    run, own = series.run, updates.values[:, :, 0]
    figure, axes = panels(9.5, 3.6, columns=2)
    bundle(axes[0, 1], updates.rounds, own, color=FRAME, linewidth=0.9, alpha=0.7, rasterized=own.size > 3000)
    axes[0, 1].plot([], [], color=FRAME, linewidth=0.9, label="update of each client")
    known = ever(series)
    measured = {c: course for c in known if (course := points(series, norms, c))}
    colours = [colour for c, colour in zip(known, client_colours(len(known)), strict=True) if c in measured]
    for (c, course), colour in zip(measured.items(), colours, strict=True):
        look: dict[str, Any] = {"color": colour, "linewidth": 2.2, "marker": "o" if len(course) == 1 else None}
        rounds = [r for r, _, _ in course]
        axes[0, 0].plot(rounds, [mean for _, mean, _ in course], **look, label=f"cluster {c}")
        axes[0, 1].plot(rounds, [largest for _, _, largest in course], **look)
    bounds = thresholds(updates)
    for ax, bound, title in zip(axes[0], bounds or (None, None), ("mean", "largest"), strict=True):
        ax.set_title(f"Norm of a cluster's {title} update")
        over_rounds(ax)
        if bound is not None:
            ax.axhline(bound, color=BOUND, linewidth=1.4, linestyle=(0, (4, 2)))
        ax.set_ylim(bottom=0)
        grid(ax)
    if bounds:
        axes[0, 0].plot([], [], color=BOUND, linewidth=1.4, linestyle=(0, (4, 2)), label="threshold of a split")
    legend_below(figure, 4)
    warmup = run.setting("method.warmup_rounds")
    later = f", after round {warmup}" if warmup else ""
    ends = [f"cluster {c} mean {p[-1][1]:.3g}, largest {p[-1][2]:.3g}" for c, p in measured.items()]
    return ReportFigure(
        name="cluster-norms",
        title="How large updates are, and how much of them cancels out",
        caption=f"{run.label}: left the norm of the mean of a cluster's updates, right the largest norm of one of "
        "them; a small mean of large updates says that its members pull apart."
        + (f" A cluster splits while the left is below {bounds[0]:.3g} and the right above {bounds[1]:.3g}{later}."
           if bounds else "")
        + ("" if len(known) > 1 else " No cluster was split: all clients shared one model.")
        + updates.absence,
        alt=f"Two line charts of update norms with {run.label}, by cluster, up to round {updates.rounds[-1]}. "
        + (f"At the last round measured: {'; '.join(ends)}." if ends else "No cluster was measured yet."),
        figure=figure,
        rows=_norm_rows(updates, measured),
    )  # fmt: skip


def _norm_rows(updates: Series, measured: dict[int, list[tuple[int, float, float]]]) -> Rows:
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
        {"run": updates.run.label, "round": r, "of": of, "number": k, "quantity": name, "norm": number(norm)}
        for r, of, k, name, norm in clients + clusters
    ]


def points(series: Series, norms: Series, cluster: int) -> list[tuple[int, float, float]]:
    """Return (round, mean, largest) of a cluster. Values recorded in a round were measured in the previous one."""
    cohorts = {row.round: set(row.cohort) for row in series.run.result.rounds}
    found = []
    for t in range(1, len(norms.rounds)):
        before, now = int(norms.rounds[t - 1]), int(norms.rounds[t])
        members = set(np.flatnonzero(series.values[t, :, 0] == cluster).tolist())
        # A cluster without participants was not measured: its recorded value is older.
        if (present := members & cohorts[now]) and members & cohorts[before]:
            mean, largest = norms.values[t, min(present)]
            found.append((before, float(mean), float(largest)))
    return found


def thresholds(updates: Series) -> tuple[float, float] | None:
    """Return the norms below and above which a cluster splits; None if not in the settings."""
    bounds: list[Any] = [updates.run.setting(f"method.{key}") for key in ("eps_mean", "eps_max")]
    if not all(isinstance(bound, int | float) for bound in bounds):
        return None
    relative = updates.run.setting("method.units") == "first-round"
    unit = float(np.nanmean(updates.values[0])) if relative else 1.0
    return bounds[0] * unit, bounds[1] * unit

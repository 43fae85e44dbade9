"""Figures of APPLE's directed relationships: who listens to whom, and how that came about (its figures 3 and 8)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pomona.report.directed import Relationships, blocks, find, order
from pomona.report.numbers import Run
from pomona.report.picture import Picture, Rows
from pomona.report.style import DARK, FRAME, INK, MISSING, bare, client_colours, colour_of, grid, panels

PANELS = 12
ROUNDS = 200
"""At most so many rounds are drawn; more would be finer than the paper."""


def heatmap(runs: list[Run]) -> Picture | None:
    """The matrix of directed relationships at the first, middle and last round, clients in clustered order."""
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    dr = find(runs)
    if dr is None:
        return None
    moments = sorted({0, (len(dr.rounds) - 1) // 2, len(dr.rounds) - 1})
    sequence = order(dr.values[-1])
    off = ~np.eye(dr.n, dtype=bool)
    limit = float(np.nanmax(np.abs(dr.values[moments][:, off]), initial=0.0)) or 1.0
    figure, axes = panels(3.1 * len(moments) + 1.4, 3.9, columns=len(moments), sharey=True, layout="compressed")
    names = [dr.names[i] for i in sequence]
    for ax, t in zip(axes[0], moments, strict=True):
        shown = np.where(off, dr.values[t], np.nan)[np.ix_(sequence, sequence)]
        image = ax.imshow(
            shown, cmap=colormaps["RdBu_r"].with_extremes(bad=MISSING), vmin=-limit, vmax=limit, interpolation="none"
        )
        if dr.groups:
            for start, length in blocks(sequence, dr.groups):
                ax.add_patch(
                    Rectangle((start - 0.5, start - 0.5), length, length, fill=False, edgecolor=DARK, linewidth=1.6)
                )
        ax.set_title(f"round {dr.rounds[t]}")
        ax.set_xlabel("to client j")
        bare(ax)
        if dr.n <= 25:
            ax.set_xticks(range(dr.n), names, rotation=90)
            ax.set_yticks(range(dr.n), names)
        else:
            ax.set(xticks=[], yticks=[])
    axes[0, 0].set_ylabel("client i listens")
    figure.colorbar(image, ax=list(axes[0]), label="p(i, j)", shrink=0.8).outline.set_visible(False)
    return Picture(
        name="dr-heatmap",
        title="Who listens to whom",
        caption=f"{dr.run.label}: the directed relationships p(i, j), the weight that client i (row) gives the core "
        "model of client j (column). Red is a positive weight, blue a negative one, white none; each client's own "
        "weight, on the diagonal, is left out. Clients that weigh each other alike "
        "stand together (clustered on the last round)."
        + (" Frames are the true groups, which no client was told." if dr.groups else "")
        + " In a deployment each row stays with its client.",
        alt=f"Heat maps of the directed relationships between {dr.n} clients at rounds "
        f"{', '.join(str(dr.rounds[t]) for t in moments)}. {_strongest(dr)}{_group_means(dr)}",
        figure=figure,
        rows=_rows(dr, moments, sequence),
    )


def _rows(dr: Relationships, moments: Sequence[int], clients: Sequence[int]) -> Rows:
    """A row a round and listening client, a column p_j a core model; blank before the client's first round."""
    return [
        {
            "round": int(dr.rounds[t]),
            "listener": i,
            "listener_name": dr.run.client(i),
            **{f"p_{j}": _known(dr.values[t, i, j]) for j in range(dr.n)},
        }
        for t in moments
        for i in clients
    ]


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _strongest(dr: Relationships) -> str:
    last = np.where(np.eye(dr.n, dtype=bool), -np.inf, np.nan_to_num(dr.values[-1]))
    i, j = np.unravel_index(int(last.argmax()), last.shape)
    return f"In the last, {dr.run.client(int(i))} gives {dr.run.client(int(j))} the highest weight, {last[i, j]:.3f}."


def _group_means(dr: Relationships) -> str:
    """How weights within true groups compare to those across, in words; nothing where that is undefined."""
    if not dr.groups:
        return ""
    groups = np.asarray(dr.groups)
    same = (groups[:, None] == groups[None, :]) & ~np.eye(dr.n, dtype=bool)
    across = groups[:, None] != groups[None, :]
    if not same.any() or not across.any() or np.isnan(dr.values[-1]).any():
        return ""
    return (
        f" The mean weight is {dr.values[-1][same].mean():.3f} within a true group"
        f" and {dr.values[-1][across].mean():.3f} across."
    )


def _thinned(rounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Positions of at most ROUNDS evenly spaced rounds, the first and the last among them."""
    spaced = np.linspace(0, len(rounds) - 1, min(len(rounds), ROUNDS))
    return np.unique(spaced.round().astype(np.int64))


def trajectories(runs: list[Run]) -> Picture | None:
    """Each client's directed relationships over the rounds, one small panel a client."""
    dr = find(runs)
    if dr is None or len(dr.rounds) < 2:
        return None
    kept = _thinned(dr.rounds)
    rounds, values = dr.rounds[kept], dr.values[kept]
    clients = range(min(dr.n, PANELS))
    columns = min(4, len(clients))
    lines = -(-len(clients) // columns)
    figure, axes = panels(2.35 * columns + 0.4, 1.65 * lines + 0.9, lines, columns, sharex=True, sharey=True)
    own = colour_of(dr.run.result.name)
    for i, ax in zip(clients, axes.flat, strict=False):
        kin = [j for j in range(dr.n) if j != i and dr.groups and dr.groups[i] == dr.groups[j]]
        rest = [j for j in range(dr.n) if j != i and j not in kin]
        # A hundred clients would be a hundred paths a panel: those become one small picture.
        common = {"linewidth": 1.0, "rasterized": dr.n > 24}
        ax.plot(rounds, values[:, i, rest], color=FRAME, alpha=0.7, **common)
        ax.plot(rounds, values[:, i, kin], color="#009e73", **common)
        ax.plot(rounds, values[:, i, i], color=own, linewidth=2.4)
        ax.set_title(dr.names[i])
        grid(ax)
    for ax in list(axes.flat)[len(clients) :]:
        ax.set_visible(False)
    key = [axes.flat[0].plot([], [], color=own, linewidth=2.4, label="its own core")[0]]
    if dr.groups:
        key += axes.flat[0].plot([], [], color="#009e73", label="clients of its true group")
    key += axes.flat[0].plot([], [], color=FRAME, label="other clients")
    figure.legend(handles=key, loc="outside lower center", ncols=3)
    for ax in axes[:, 0]:
        ax.set_ylabel("p(i, j)")
    for ax in axes[-1]:
        ax.set_xlabel("round")
    first = f" The first {PANELS} of {dr.n} clients are drawn." if dr.n > PANELS else ""
    grown = [i for i in clients if values[-1, i, i] >= np.nanmax(np.delete(values[-1, i], i), initial=-np.inf)]
    return Picture(
        name="dr-trajectories",
        title="How each client came to choose",
        caption=f"{dr.run.label}: a panel a client, a line for every core model it may use; the thick line is its "
        f"own.{first}",
        alt=f"Small line charts of directed relationships over rounds {rounds[0]} to {rounds[-1]}, one for each of "
        f"{len(clients)} clients. At the end {len(grown)} of them give their own core model the highest weight.",
        figure=figure,
        rows=_rows(dr, kept.tolist(), clients),
    )


def self_relationships(runs: list[Run]) -> Picture | None:
    """The weight p_ii that every client gives its own core model, over the rounds."""
    dr = find(runs)
    if dr is None or len(dr.rounds) < 2:
        return None
    kept = _thinned(dr.rounds)
    rounds, own = dr.rounds[kept], np.diagonal(dr.values[kept], axis1=1, axis2=2)
    few = dr.n <= 20
    figure, axes = panels(5.4, 3.6)
    ax = axes[0, 0]
    for i, colour in enumerate(client_colours(dr.n)):
        ax.plot(
            rounds,
            own[:, i],
            color=colour if few else FRAME,
            linewidth=1.7 if few else 0.8,
            label=dr.names[i] if few else None,
        )
    if not few:
        ax.plot(rounds, np.nanmedian(own, axis=1), color=INK, linewidth=2.4, label="median")
    ax.set(xlabel="round", ylabel="p(i, i)")
    grid(ax)
    figure.legend(loc="outside right center")
    least, most = (int(pick(own[-1])) for pick in (np.nanargmin, np.nanargmax))
    return Picture(
        name="dr-self",
        title="How much each client relies on itself",
        caption=f"{dr.run.label}: the self-relationship p(i, i), the weight of a client's own core model in its "
        "personal model.",
        alt=f"Line chart of {dr.n} self-relationships over rounds {rounds[0]} to {rounds[-1]}. At the end they range "
        f"from {own[-1, least]:.3f} ({dr.run.client(least)}) to {own[-1, most]:.3f} ({dr.run.client(most)}).",
        figure=figure,
        rows=[
            {"round": int(r), **{f"p_{i}_{i}": _known(own[t, i]) for i in range(dr.n)}} for t, r in enumerate(rounds)
        ],
    )

"""Figures over clients: accuracy and gain of each, their spread, and what gets confused with what."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.metrics.summary import summarize
from pomona.report.axes import bare, grid, legend_below, panels
from pomona.report.numbers import Run, baseline, headline, leader, percent
from pomona.report.picture import Picture, Rows
from pomona.report.style import DARK, FRAME, INK, PALE, colour_of, marker_of, shorten

LABELLED = 45
"""Rows of a figure that still carry a name each."""


def accuracies(runs: list[Run]) -> Picture | None:
    """Last test accuracy of every client and run, and the gain over separate training where it was run."""
    shown = [run for run in runs if run.accuracies]
    lead = leader(shown)
    if lead is None:
        return None
    base = baseline(shown, lead)
    compared = [run for run in shown if base and run is not base and run.scenario == base.scenario]
    floor = base.accuracies if base else {}
    ranking: Mapping[int, float] = lead.accuracies
    if lead in compared:
        ranking = {c: a - floor[c] if c in floor else a for c, a in lead.accuracies.items()}
    clients = sorted({c for run in shown for c in run.accuracies}, key=lambda c: (ranking.get(c, -2.0), c))
    place = {client: y for y, client in enumerate(clients)}

    height = min(max(0.25 * len(clients) + 1.5, 2.4), 11)
    figure, axes = panels(9.5 if compared else 5.4, height, columns=2 if compared else 1, sharey=True)
    dots, gains = axes[0, 0], axes[0, -1]
    rows: Rows = []
    for run in shown:
        gain = {c: a - floor[c] for c, a in run.accuracies.items() if c in floor} if run in compared else {}
        look: dict[str, Any] = {
            "color": colour_of(run.result.name), "marker": marker_of(run.result.name), "linestyle": "none",
            "markersize": 6.5 if len(clients) <= LABELLED else 3.5, "alpha": 0.9,
            "zorder": 3 if run is lead else 2,
        }  # fmt: skip
        dots.plot(
            [100 * a for a in run.accuracies.values()], [place[c] for c in run.accuracies], label=run.label, **look
        )
        if gain:
            gains.plot([100 * g for g in gain.values()], [place[c] for c in gain], **look)
        rows += [_client_row(run, c, a, gain.get(c)) for c, a in sorted(run.accuracies.items())]
    every = [[100 * run.accuracies[c] for run in shown if c in run.accuracies] for c in clients]
    dots.hlines(
        range(len(clients)),
        [min(v) for v in every],
        [max(v) for v in every],
        color=FRAME,
        linewidth=0.8,
        alpha=0.6,
        zorder=0,
    )
    dots.set(xlabel="test accuracy (%)", ylim=(-0.7, len(clients) - 0.3))
    if len(clients) <= LABELLED:
        dots.set_yticks(range(len(clients)), [shorten(lead.client(c), 20) for c in clients])
    else:
        dots.set(ylabel=f"{len(clients)} clients, sorted", yticks=[])
    grid(dots, along="x")
    if compared:
        gains.axvline(0, color=colour_of("separate"), linestyle=(0, (4, 2)))
        gains.set(xlabel="gain over Separate (points)")
        gains.tick_params(left=False)
        grid(gains, along="x")
    legend_below(figure, min(4, len(shown)))
    return Picture(
        name="clients",
        title="What each client gets" + (", and what it gains" if compared else ""),
        caption="Test accuracy of each client with the headline model of each run, after the last round evaluated."
        + (" Right: the difference to separate training on the same client; left of the dashed line a client would"
           " have done better alone." if compared else "")
        + f" Sorted by {'gain' if lead in compared else 'accuracy'} with {lead.label}, best on top.",
        alt=f"Dot plot of test accuracy for {len(clients)} clients. "
        + " ".join(_outcomes(compared, floor) or [_extremes(lead)]),
        figure=figure,
        rows=rows,
    )  # fmt: skip


def _client_row(run: Run, client: int, accuracy: float, gain: float | None) -> dict[str, Any]:
    last = run.last
    assert last is not None
    return {
        "run": run.label, "model": last.model, "when": last.when, "round": last.round, "client": client,
        "name": run.client(client), "accuracy": accuracy, "gain_over_separate": gain,
    }  # fmt: skip


def wins(run: Run, floor: Mapping[int, float]) -> tuple[int, int, int]:
    """On how many clients a run is better than, worse than, equal to the accuracies in ``floor``."""
    differences = [a - floor[c] for c, a in run.accuracies.items() if c in floor]
    return sum(d > 0 for d in differences), sum(d < 0 for d in differences), sum(d == 0 for d in differences)


def _outcomes(compared: list[Run], floor: Mapping[int, float]) -> list[str]:
    counted = [(run.label, *wins(run, floor)) for run in compared]
    return [f"{label} is better than Separate on {up} clients and worse on {down}." for label, up, down, _ in counted]


def _extremes(run: Run) -> str:
    low, high = (pick(run.accuracies, key=run.accuracies.__getitem__) for pick in (min, max))
    return (
        f"{run.label} ranges from {percent(run.accuracies[low])} % on {run.client(low)} "
        f"to {percent(run.accuracies[high])} % on {run.client(high)}."
    )


def spread(runs: list[Run]) -> Picture | None:
    """The distribution of client accuracies of each run: box, every client, the worst and the 10th percentile."""
    shown = [run for run in runs if len(run.accuracies) > 1]
    if not shown:
        return None
    figure, axes = panels(5.4, 0.55 * len(shown) + 1.5)
    ax = axes[0, 0]
    rows: Rows = []
    for y, run in enumerate(reversed(shown)):
        values = 100 * np.sort(list(run.accuracies.values()))
        colour = colour_of(run.result.name)
        ax.boxplot(
            values, positions=[y], widths=0.5, orientation="horizontal", whis=(0, 100),
            boxprops={"color": colour}, medianprops={"color": colour, "linewidth": 2.2},
            whiskerprops={"color": colour}, capprops={"color": "none"},
        )  # fmt: skip
        # Neighbours in rank go to different heights, so that equal accuracies stay apart.
        jitter = (np.arange(len(values)) * 0.618 % 1 - 0.5) * 0.3
        ax.plot(values, y + jitter, "o", color=colour, markersize=3.5, alpha=0.55, markeredgewidth=0)
        over_clients = summarize(list(run.accuracies.values()), [1] * len(values))
        named = {name: over_clients[name] for name in ("clients", "mean", "worst", "percentile_10")}
        ax.plot(100 * named["worst"], y, "X", color=colour, markersize=8, markeredgewidth=0)
        look: dict[str, Any] = {"markersize": 7.5, "markerfacecolor": "none", "markeredgewidth": 1.6}
        ax.plot(100 * named["percentile_10"], y, "D", color=colour, **look)
        marks = np.percentile(values / 100, [25, 50, 75, 100])
        quartiles = dict(zip(("lower_quartile", "median", "upper_quartile", "best"), map(float, marks), strict=True))
        rows.insert(0, {"run": run.label, "model": run.model, **named, **quartiles})
    ax.plot([], [], "X", color=INK, linestyle="none", label="worst client")
    ax.plot([], [], "D", color=INK, markerfacecolor="none", linestyle="none", label="10th percentile")
    ax.set_yticks(range(len(shown)), [run.label for run in reversed(shown)])
    ax.set(xlabel="test accuracy of a client (%)", ylim=(-0.6, len(shown) - 0.4))
    ax.tick_params(left=False)
    grid(ax, along="x")
    legend_below(figure, 2)
    return Picture(
        name="spread",
        title="How evenly the clients fare",
        caption="Test accuracy of all clients with the headline model of each run, last round evaluated: a dot a "
        "client, the box holds the middle half, the bar in it is the median, whiskers reach the extremes.",
        alt="Box plot of client accuracies. "
        + " ".join(
            f"{r['run']}: worst {percent(r['worst'])} %, 10th percentile {percent(r['percentile_10'])} %, "
            f"median {percent(r['median'])} %."
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


def pooled_confusion(run: Run) -> NDArray[np.int64] | None:
    """The (C, C) confusion counts over all clients, rows true classes; None without at least two classes."""
    matrices = [np.asarray(r["confusion"], dtype=np.int64) for r in records(run) if r.get("confusion")]
    square = [m for m in matrices if m.ndim == 2 and m.shape[0] == m.shape[1] > 1 and m.shape == matrices[0].shape]
    total: NDArray[np.int64] | None = sum(square[1:], start=square[0]) if square else None
    return total if total is not None and total.any() else None


def confusion(runs: list[Run]) -> Picture | None:
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
    return Picture(
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

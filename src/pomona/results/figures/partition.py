"""The figure of the partition: the labels of each client (APPLE, figure 5)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.results.figures import plot
from pomona.results.figures.plot import ReportFigure
from pomona.results.run_numbers import Run

MAX_MARKS = 1500
"""Number of bubbles from which they are a raster instead of paths."""
MAX_LABELS = 40
"""Maximum number of clients or classes with name labels."""
SPLITS = {"train": "#0072b2", "validation": "#e69f00", "test": "#56b4e9"}


@dataclass(frozen=True)
class Labels:
    """Label counts of the training splits: ``counts[i, c]`` samples of class c at client i."""

    counts: NDArray[np.int64]
    clients: list[str]
    classes: list[str]
    groups: list[int]
    sizes: dict[str, list[int]]


def label_counts(runs: list[Run]) -> Labels | None:
    """Return the label counts of the first run that has some."""
    return next((labels for run in runs if (labels := _labels(run))), None)


def _labels(run: Run) -> Labels | None:
    metadata = run.result.about
    counts = np.asarray(metadata.get("label_counts") or [], dtype=np.int64)
    if counts.ndim != 2 or not counts.any():
        return None
    n, c = counts.shape
    sizes = {split: _of_length((metadata.get("sizes") or {}).get(split), n) for split in SPLITS}
    return Labels(
        counts,
        [run.client(i) for i in range(n)],
        [str(name) for name in _of_length(metadata.get("classes"), c) or range(c)],
        _of_length(metadata.get("groups"), n),
        {split: size for split, size in sizes.items() if any(size)},
    )


def _of_length(values: Iterable[Any] | None, n: int) -> list[Any]:
    """Return the values if there are exactly n, else an empty list."""
    items = list(values or ())
    return items if len(items) == n else []


def bubbles(runs: list[Run]) -> ReportFigure | None:
    """Draw clients by classes, with the area of a bubble proportional to the count; next to it the
    clients' sizes.
    """
    labels = label_counts(runs)
    if labels is None:
        return None
    n_classes, sizes = (labels.counts > 0).sum(axis=1), labels.counts.sum(axis=1)
    n, c = labels.counts.shape
    shares = labels.counts.max(axis=0) / np.maximum(labels.counts.sum(axis=0), 1)
    top = int(shares.argmax())
    return ReportFigure(
        name="labels",
        title="Labels by client",
        caption="The area of a bubble is the number of training samples of a class at a client."
        + (" Right: the sizes of each client's splits." if labels.sizes else "")
        + (" Clients of the same colour belong to the same true group." if labels.groups else ""),
        alt=f"Bubble chart of {c} classes over {n} clients. Clients hold {sizes.min():,} to "
        f"{sizes.max():,} training samples of {n_classes.min()} to {n_classes.max()} classes. The "
        f"most concentrated class is {labels.classes[top]}: "
        f"{labels.clients[int(labels.counts[:, top].argmax())]} holds {100 * shares[top]:.1f} % of "
        "it.",
        figure=_draw_bubbles(labels),
        rows=plot.records(
            "client name class count",
            (
                (i, labels.clients[i], labels.classes[k], int(count))
                for (i, k), count in np.ndenumerate(labels.counts)
            ),
        ),
        tips={
            "counts": [
                f"{labels.clients[i]}, class {labels.classes[k]}: {labels.counts[i, k]:,}"
                for i, k in np.argwhere(labels.counts)
            ]
        },
    )


def _draw_bubbles(labels: Labels) -> plot.Figure:
    n, c = labels.counts.shape
    height = min(max(0.27 * n + 1.6, 2.6), 11)
    ratios = [5, 1.2] if labels.sizes else [1]
    figure, axes = plot.panels(
        plot.WIDTH, height, columns=len(ratios), sharey=True, width_ratios=ratios
    )
    ax = axes[0, 0]
    i, k = np.nonzero(labels.counts)
    counts = labels.counts[i, k]
    cell = 72 * min((plot.WIDTH - 2.2) / c, (height - 1.6) / n)
    area = (0.95 * cell) ** 2 / counts.max()
    style: Any = {"linewidths": 0, "rasterized": len(counts) > MAX_MARKS, "gid": "counts"}
    ax.scatter(k, i, s=counts * area, c=_colours(labels, i), alpha=0.8, **style)
    for reference in sorted({int(counts.max()), int(max(1, counts.max() // 4))}):
        label = f"{reference:,} sample{'s' * (reference > 1)}"
        ax.scatter([], [], s=reference * area, color=plot.FRAME, linewidths=0, label=label)
    upright = max(map(len, labels.classes)) > 2
    classes = [plot.shorten(name) for name in labels.classes]
    plot.label_ticks(ax.xaxis, classes, MAX_LABELS, rotation=90 if upright else 0)
    plot.label_ticks(ax.yaxis, [plot.shorten(name) for name in labels.clients], MAX_LABELS)
    ax.set(ylim=(n - 0.4, -0.6), xlim=(-0.7, c - 0.3), xlabel="class")
    ax.set_ylabel("" if n <= MAX_LABELS else f"{n} clients")
    ax.grid(visible=True, alpha=0.2)
    if labels.sizes:
        _size_bars(axes[0, 1], labels.sizes)
    plot.legend_below(figure, 3)
    return figure


def _colours(labels: Labels, clients: NDArray[np.int64]) -> Any:
    """Return the colour of each client's group; one colour if groups are unknown."""
    if not labels.groups:
        return "#0072b2"
    groups = sorted(set(labels.groups))
    by_group = dict(zip(groups, plot.client_colours(len(groups)), strict=True))
    return [by_group[labels.groups[client]] for client in clients]


def _size_bars(ax: Any, sizes: dict[str, list[int]]) -> None:
    """Draw stacked bars of the clients' splits."""
    n = len(next(iter(sizes.values())))
    start, width = np.zeros(n), 0.7 * 72 * (ax.figure.get_figheight() - 1.6) / n
    style: Any = {"linewidth": width, "capstyle": "butt", "rasterized": n > MAX_LABELS}
    for split, size in sizes.items():
        # Lines, since a patch for each client takes ten times as long.
        ax.hlines(range(n), start, start + size, color=SPLITS[split], label=split, **style)
        start += size
    ax.set_xlabel("samples")
    ax.tick_params(left=False)
    ax.locator_params(axis="x", nbins=2)
    plot.grid(ax, along="x")

"""Figures of the partition: the labels of each client, and the clients of each class (APPLE,
figures 5 and 6).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.results.figures import plot
from pomona.results.figures.plot import ReportFigure
from pomona.results.run_numbers import Run

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
    """Draw clients by classes, with the area of a bubble proportional to the count; above it the
    clients' sizes.
    """
    labels = label_counts(runs)
    if labels is None:
        return None
    n_classes, sizes = (labels.counts > 0).sum(axis=1), labels.counts.sum(axis=1)
    n, c = labels.counts.shape
    return ReportFigure(
        name="labels",
        title="Labels by client",
        caption="The area of a bubble is the number of training samples of a class at a client."
        + (" Above: the sizes of each client's splits." if labels.sizes else "")
        + (" Clients of the same colour belong to the same true group." if labels.groups else ""),
        alt=f"Bubble chart of {c} classes over {n} clients. Clients hold {sizes.min():,} to "
        f"{sizes.max():,} training samples of {n_classes.min()} to {n_classes.max()} classes.",
        figure=_draw_bubbles(labels),
        rows=[
            {
                "client": client,
                "name": labels.clients[client],
                "class": labels.classes[label],
                "count": int(count),
            }
            for (client, label), count in np.ndenumerate(labels.counts)
        ],
    )


def _draw_bubbles(labels: Labels) -> plot.Figure:
    n, c = labels.counts.shape
    width, height = min(max(0.5 * n + 2.2, 5.0), 11), min(max(0.32 * c + 1.2, 2.6), 12)
    strip = 1.1 if labels.sizes else 0.0
    ratios = [strip, height] if labels.sizes else [height]
    figure, axes = plot.panels(
        width, height + strip, len(ratios), sharex=True, height_ratios=ratios
    )
    ax = axes[-1, 0]
    i, k = np.nonzero(labels.counts)
    counts = labels.counts[i, k]
    cell = 72 * min((width - 2.2) / n, (height - 1.2) / c)
    area = (0.95 * cell) ** 2 / counts.max()
    style: Any = {"linewidths": 0, "rasterized": len(counts) > 1500}
    ax.scatter(i, k, s=counts * area, c=_colours(labels, i), alpha=0.8, **style)
    for reference in sorted({int(counts.max()), int(max(1, counts.max() // 4))}):
        ax.scatter(
            [], [], s=reference * area, color=plot.FRAME, linewidths=0, label=f"{reference:,}"
        )
    upright = max(map(len, labels.clients)) > 2
    plot.label_ticks(
        ax.xaxis,
        [plot.shorten(name) for name in labels.clients],
        MAX_LABELS,
        rotation=90 if upright else 0,
    )
    plot.label_ticks(ax.yaxis, [plot.shorten(name) for name in labels.classes], MAX_LABELS)
    ax.set(xlim=(-0.7, n - 0.3), ylim=(c - 0.4, -0.6), xlabel="client", ylabel="class")
    ax.grid(visible=True, alpha=0.2)
    if labels.sizes:
        _size_bars(axes[0, 0], labels.sizes)
        axes[0, 0].legend(
            loc="upper left", bbox_to_anchor=(1.0, 1.1), handlelength=1, labelspacing=0.2
        )
    ax.legend(
        title="samples",
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        labelspacing=1.1,
        borderpad=0.8,
    )
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
    bottom = np.zeros(len(next(iter(sizes.values()))))
    for split, size in sizes.items():
        ax.bar(range(len(size)), size, bottom=bottom, width=0.7, color=SPLITS[split], label=split)
        bottom += size
    ax.set_ylabel("samples")
    ax.tick_params(bottom=False)
    ax.locator_params(axis="y", nbins=3)
    plot.grid(ax, along="y")


def holders(runs: list[Run]) -> ReportFigure | None:
    """Draw a bar for each class, divided among the clients that have it."""
    labels = label_counts(runs)
    if labels is None:
        return None
    n, c = labels.counts.shape
    shares = labels.counts.max(axis=0) / np.maximum(labels.counts.sum(axis=0), 1)
    top = int(shares.argmax())
    return ReportFigure(
        name="holders",
        title="Clients by class",
        caption="One bar per class, divided among the clients that hold its training samples."
        + (" Colours repeat after twenty clients." if n > 20 else ""),
        alt=f"Stacked bars of {c} classes divided among {n} clients. The most concentrated is "
        f"{labels.classes[top]}: {labels.clients[int(labels.counts[:, top].argmax())]} holds "
        f"{100 * shares[top]:.1f} % of it.",
        figure=_draw_holders(labels),
        rows=[
            {
                "class": labels.classes[label],
                **{
                    f"count_{name}": int(count)
                    for name, count in zip(labels.clients, labels.counts[:, label], strict=True)
                },
            }
            for label in range(c)
        ],
    )


def _draw_holders(labels: Labels) -> plot.Figure:
    n, c = labels.counts.shape
    figure, axes = plot.panels(8.2 if n <= 20 else 7.0, min(max(0.34 * c + 1.1, 2.6), 12))
    ax = axes[0, 0]
    left = np.zeros(c)
    letter_width = labels.counts.sum(axis=0).max() / 70  # about as many as fit the longest bar
    for i, colour in enumerate(plot.client_colours(n)):
        name, counts = plot.shorten(labels.clients[i]), labels.counts[i]
        classes = np.flatnonzero(counts)
        ax.barh(classes, counts[classes], left=left[classes], color=colour, height=0.78, label=name)
        for k in (
            classes[counts[classes] > (len(name) + 1) * letter_width] if c <= MAX_LABELS else ()
        ):
            ax.text(
                left[k] + counts[k] / 2,
                k,
                name,
                ha="center",
                va="center",
                fontsize=8,
                color=plot.DARK,
            )
        left += counts
    plot.label_ticks(ax.yaxis, [plot.shorten(name) for name in labels.classes], MAX_LABELS)
    ax.invert_yaxis()
    ax.tick_params(left=False)
    ax.set(xlabel="training samples", ylabel="class")
    plot.grid(ax, along="x")
    if n <= 20:
        figure.legend(loc="outside right center", handlelength=1, labelspacing=0.3)
    return figure

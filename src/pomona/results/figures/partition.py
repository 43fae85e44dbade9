"""Figures of the partition: the labels of each client, and the clients of each class (APPLE, figures 5 and 6)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.results.figures.figure import ReportFigure
from pomona.results.figures.style import DARK, FRAME, client_colours, grid, panels, shorten
from pomona.results.run_numbers import Run, client_names

NAMED = 40
"""Maximum number of clients or classes with name labels."""
PARTS = {"train": "#0072b2", "validation": "#e69f00", "test": "#56b4e9"}


@dataclass(frozen=True)
class Labels:
    """Label counts of the training parts: ``counts[i, c]`` samples of class c at client i."""

    counts: NDArray[np.int64]
    clients: list[str]
    classes: list[str]
    groups: list[int]
    sizes: dict[str, list[int]]


def find(runs: list[Run]) -> Labels | None:
    """Return the label counts of the first run that has some."""
    for run in runs:
        about = run.result.about
        counts = np.asarray(about.get("label_counts") or [], dtype=np.int64)
        if counts.ndim == 2 and counts.any():
            n, c = counts.shape
            classes = [str(name) for name in about.get("classes") or ()]
            groups = list(about.get("groups") or ())
            sizes = {part: list(about.get("sizes", {}).get(part) or ()) for part in PARTS}
            return Labels(
                counts,
                client_names(run.result, n)[:n],
                classes if len(classes) == c else [str(k) for k in range(c)],
                groups if len(groups) == n else [],
                {part: size for part, size in sizes.items() if len(size) == n and sum(size)},
            )
    return None


def bubbles(runs: list[Run]) -> ReportFigure | None:
    """Draw clients by classes, with the area of a bubble proportional to the count; above it the clients' sizes."""
    labels = find(runs)
    if labels is None:
        return None
    n, c = labels.counts.shape
    width, height = min(max(0.5 * n + 2.2, 5.0), 11), min(max(0.32 * c + 1.2, 2.6), 12)
    strip = 1.1 if labels.sizes else 0.0
    ratios = [strip, height] if labels.sizes else [height]
    figure, axes = panels(width, height + strip, len(ratios), sharex=True, height_ratios=ratios)
    ax = axes[-1, 0]
    i, k = np.nonzero(labels.counts)
    counts = labels.counts[i, k]
    cell = 72 * min((width - 2.2) / n, (height - 1.2) / c)
    area = (0.95 * cell) ** 2 / counts.max()
    colours: Any = "#0072b2"
    if labels.groups:
        palette = client_colours(len(set(labels.groups)))
        by_group = dict(zip(sorted(set(labels.groups)), palette, strict=True))
        colours = [by_group[labels.groups[client]] for client in i]
    ax.scatter(i, k, s=counts * area, c=colours, alpha=0.8, linewidths=0, rasterized=len(counts) > 1500)
    for reference in sorted({int(counts.max()), int(max(1, counts.max() // 4))}):
        ax.scatter([], [], s=reference * area, color=FRAME, linewidths=0, label=f"{reference:,}")
    _name(ax.set_xticks, labels.clients, rotation=90 if max(map(len, labels.clients)) > 2 else 0)
    _name(ax.set_yticks, labels.classes)
    ax.set(xlim=(-0.7, n - 0.3), ylim=(c - 0.4, -0.6), xlabel="client", ylabel="class")
    ax.grid(visible=True, alpha=0.2)
    if labels.sizes:
        _size_bars(axes[0, 0], labels.sizes)
        axes[0, 0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.1), handlelength=1, labelspacing=0.2)
    ax.legend(title="samples", loc="upper left", bbox_to_anchor=(1.0, 1.0), labelspacing=1.1, borderpad=0.8)
    held = (labels.counts > 0).sum(axis=1)
    sizes = labels.counts.sum(axis=1)
    return ReportFigure(
        name="labels",
        title="Which labels each client holds",
        caption="The area of a bubble is the number of training samples of a class at a client."
        + (" Above: the size of each client's parts." if labels.sizes else "")
        + (" Clients of one colour belong to one true group." if labels.groups else ""),
        alt=f"Bubble chart of {c} classes over {n} clients. Clients hold {sizes.min():,} to {sizes.max():,} training "
        f"samples of {held.min()} to {held.max()} classes.",
        figure=figure,
        rows=[
            {"client": client, "name": labels.clients[client], "class": labels.classes[label], "count": int(count)}
            for (client, label), count in np.ndenumerate(labels.counts)
        ],
    )


def _size_bars(ax: Any, sizes: dict[str, list[int]]) -> None:
    """Draw stacked bars of the clients' splits."""
    bottom = np.zeros(len(next(iter(sizes.values()))))
    for part, size in sizes.items():
        ax.bar(range(len(size)), size, bottom=bottom, width=0.7, color=PARTS[part], label=part)
        bottom += size
    ax.set_ylabel("samples")
    ax.tick_params(bottom=False)
    ax.locator_params(axis="y", nbins=3)
    grid(ax, along="y")


def _name(ticks: Any, names: list[str], **look: Any) -> None:
    """Set the names on an axis, or none if they would overlap."""
    ticks(range(len(names)), [shorten(n) for n in names], **look) if len(names) <= NAMED else ticks([])


def holders(runs: list[Run]) -> ReportFigure | None:
    """Draw a bar for each class, divided among the clients that have it."""
    labels = find(runs)
    if labels is None:
        return None
    n, c = labels.counts.shape
    figure, axes = panels(8.2 if n <= 20 else 7.0, min(max(0.34 * c + 1.1, 2.6), 12))
    ax = axes[0, 0]
    left = np.zeros(c)
    letter = labels.counts.sum(axis=0).max() / 70  # about as many as fit the longest bar
    for i, colour in enumerate(client_colours(n)):
        name, counts = shorten(labels.clients[i]), labels.counts[i]
        held = np.flatnonzero(counts)
        ax.barh(held, counts[held], left=left[held], color=colour, height=0.78, label=name)
        for k in held[counts[held] > (len(name) + 1) * letter] if c <= NAMED else ():
            ax.text(left[k] + counts[k] / 2, k, name, ha="center", va="center", fontsize=8, color=DARK)
        left += counts
    _name(ax.set_yticks, labels.classes)
    ax.invert_yaxis()
    ax.tick_params(left=False)
    ax.set(xlabel="training samples", ylabel="class")
    grid(ax, along="x")
    if n <= 20:
        figure.legend(loc="outside right center", handlelength=1, labelspacing=0.3)
    shares = labels.counts.max(axis=0) / np.maximum(labels.counts.sum(axis=0), 1)
    top = int(shares.argmax())
    return ReportFigure(
        name="holders",
        title="Who holds each class",
        caption="A bar a class, divided among the clients that hold its training samples."
        + (" Colours come round again after twenty clients." if n > 20 else ""),
        alt=f"Stacked bars of {c} classes divided among {n} clients. The most concentrated is {labels.classes[top]}: "
        f"{labels.clients[int(labels.counts[:, top].argmax())]} holds {100 * shares[top]:.1f} % of it.",
        figure=figure,
        rows=[
            {"class": labels.classes[label], **{f"client_{i}": int(labels.counts[i, label]) for i in range(n)}}
            for label in range(c)
        ],
    )

"""Draw each client's gain over training alone against the size of its data, over many draws of
clients.

    python tools/gain_by_size.py runs/apple-draws  # a bench of one scenario: table and figure
    python tools/gain_by_size.py                   # the figure again, from clients.csv

A gain is the difference of a client's test accuracies, each in its method's best validation round,
in points. The table has a line for each method, draw and client; the figure a dot for each, and
means over clients of like size with their standard error over draws.
"""

import csv
import json
import sys
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt

import pomona

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "reproduction" / "results" / "apple-draws-cpu" / "clients.csv"
FIGURE = ROOT / "docs" / "images" / "gain-by-size.png"
LOCAL = "Separate"
MARKERS = {"FedAvg-FT": "s", "APPLE, paper's step": "o", "APPLE, local step": "D"}
EDGES = (0, 120, 450, 1200, 10**9)  # of the classes of size, in training images: gaps between sizes

Key = tuple[str, int, int]  # method, seed, client


def measured(bench: Path) -> Iterable[dict[str, Any]]:
    """Yield method, seed, client, its training samples and its test accuracy in the best validation
    round.
    """
    results = json.loads((bench / "results.json").read_text(encoding="utf-8"))
    for entry in results["results"]:
        for cell in entry["cells"]:
            sizes = pomona.load(bench / cell["folder"]).about["sizes"]["train"]
            figures = cell["figures"]
            values = figures["models"][figures["headline"]]["best_validation"]["accuracy"]
            for client, (train, accuracy) in enumerate(zip(sizes, values, strict=True)):
                row = results["methods"][entry["method"]]["row"]
                yield {
                    "method": row,
                    "seed": cell["seed"],
                    "client": client,
                    "train": train,
                    "accuracy": accuracy,
                }


def gains(rows: Iterable[Mapping[str, str]]) -> dict[str, np.ndarray]:
    """Return (clients over all draws, 3) seed, training samples and gain in points, by method."""
    scores: dict[Key, tuple[int, float]] = {}
    for row in rows:
        scores[row["method"], int(row["seed"]), int(row["client"])] = (
            int(row["train"]),
            float(row["accuracy"]),
        )
    return {
        method: np.array(
            [
                (seed, train, 100 * (accuracy - scores[LOCAL, seed, client][1]))
                for (name, seed, client), (train, accuracy) in scores.items()
                if name == method
            ]
        )
        for method in MARKERS
    }


def means(points: np.ndarray) -> np.ndarray:
    """Return (classes, 4) geometric mean size, mean gain, its standard error over draws, and the
    number of clients.
    """
    classes = []
    for low, high in pairwise(EDGES):
        bin_points = points[(low <= points[:, 1]) & (points[:, 1] < high)]
        seed_means = [
            bin_points[bin_points[:, 0] == seed, 2].mean() for seed in np.unique(bin_points[:, 0])
        ]
        if len(seed_means) > 1:
            error = np.std(seed_means, ddof=1) / len(seed_means) ** 0.5
            classes.append(
                (
                    np.exp(np.log(bin_points[:, 1]).mean()),
                    np.mean(seed_means),
                    error,
                    len(bin_points),
                )
            )
    return np.array(classes)


def figure(points: Mapping[str, np.ndarray]) -> None:
    """Write the figure."""
    plot, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    axes.axhline(0, color="0.4", linewidth=1)
    for shift, (method, clouds) in zip((0.94, 1.0, 1.06), points.items(), strict=True):
        colour = next(iter(axes.plot([], [])))
        axes.plot(
            clouds[:, 1] * shift,
            clouds[:, 2],
            ".",
            color=colour.get_color(),
            alpha=0.3,
            markersize=4,
        )
        size, mean, error, clients = means(clouds).T
        axes.errorbar(
            size * shift,
            mean,
            error,
            color=colour.get_color(),
            marker=MARKERS[method],
            capsize=3,
            label=method,
        )
    for x, count in zip(size, clients, strict=True):
        text = f"{count:.0f} clients"
        axes.annotate(text, (x, 0), xycoords=("data", "axes fraction"), ha="center", va="bottom")
    axes.set_xscale("log")
    axes.set_xticks([100, 200, 500, 1000, 2000], ["100", "200", "500", "1,000", "2,000"])
    axes.minorticks_off()
    axes.set_xlabel("training images of the client")
    axes.set_ylabel("gain over training alone,\npercentage points of test accuracy")
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    plot.legend(loc="outside upper center", ncols=3, frameon=False)
    FIGURE.parent.mkdir(exist_ok=True)
    plot.savefig(FIGURE, dpi=120)


def main(*benches: str) -> None:
    """Write the table of a bench, if one is given, and the figure; print the means."""
    for bench in benches:
        rows = list(measured(Path(bench)))
        TABLE.parent.mkdir(parents=True, exist_ok=True)
        with TABLE.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    with TABLE.open(encoding="utf-8") as file:
        points = gains(csv.DictReader(file))
    figure(points)
    for method, cloud in points.items():
        print(
            method,
            *(
                f"{size:.0f} ({n:.0f}): {mean:+.1f} +- {error:.1f}"
                for size, mean, error, n in means(cloud)
            ),
            sep="  ",
        )


if __name__ == "__main__":
    main(*sys.argv[1:])

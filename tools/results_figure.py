"""Draw the figure of docs/results/local-step.md from the committed tables of two benches.

``python tools/results_figure.py`` writes docs/images/results.png.
"""

import csv
from pathlib import Path

from matplotlib import pyplot as plt

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BENCHES = ("apple-local-cpu", "apple-local-cpu-other-images")
TABLES = [ROOT / "reproduction" / "results" / name / "comparison.csv" for name in BENCHES]
MARKERS = {"FedAvg-FT": "s", "APFL": "^", "APPLE, paper's step": "o", "APPLE, local step": "D"}
DATASETS = ("digits", "MNIST", "CIFAR10", "AG News", "FashionMNIST", "CIFAR100")


def gains() -> dict[str, dict[str, float]]:
    """For each data set and setting, each method's mean accuracy less that of training alone, in
    points.
    """
    accuracies: dict[str, dict[str, float]] = {}
    for table in TABLES:
        for row in csv.DictReader(table.read_text().splitlines()):
            name = f"{row['dataset']}, {row['setting']}"
            accuracies.setdefault(name, {})[row["row"]] = 100 * float(row["best_validation_mean"])
    return {
        name: {row: value - methods["Separate"] for row, value in methods.items()}
        for name, methods in accuracies.items()
    }


def main() -> None:
    """Write the figure."""
    points = gains()
    names = sorted(points, key=lambda name: DATASETS.index(name.split(",")[0]), reverse=True)
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    axes.axvline(0, color="0.4", linewidth=1)
    for k, (method, marker) in enumerate(MARKERS.items()):
        shift = 0.15 * (1.5 - k)  # so that equal values do not hide each other
        axes.plot(
            [points[n][method] for n in names],
            [y + shift for y in range(len(names))],
            marker,
            label=method,
            markersize=7,
            alpha=0.85,
        )
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel(
        "test accuracy above training alone, in percentage points\n"
        "(best validation round, mean over clients and three draws)"
    )
    axes.grid(axis="x", color="0.9")
    axes.hlines([y + 0.5 for y in range(len(names) - 1)], *axes.get_xlim(), color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    (DOCS / "images").mkdir(exist_ok=True)
    figure.savefig(DOCS / "images" / "results.png", dpi=120)


if __name__ == "__main__":
    main()
